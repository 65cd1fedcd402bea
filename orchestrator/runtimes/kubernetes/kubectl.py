"""Access to a cluster: every query and every change goes through kubectl.

This tool runs the user's own kubectl, with the contexts, login plug-ins and proxies of the user's shell.
"""

import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final
from urllib.parse import quote as quote_url

from orchestrator.core.errors import HostError
from orchestrator.core.subprocesses import (
    PIPE,
    CompletedProgram,
    Program,
    ProgramMissingError,
    quote,
    run,
    run_concurrently,
    start,
)
from orchestrator.hosts.ports import free_port

MANAGER: Final = "deploy"  # owns the fields that this tool applies
_REQUEST_TIMEOUT: Final = 10.0  # timeout of a request, in seconds
_BRIEF_TIMEOUT: Final = 4.0  # timeout of each request if all clusters are asked, in seconds
_BRIEF_MARGIN: Final = 4.0  # additional seconds for kubectl in that case
_AT_ONCE: Final = 16  # clusters asked at the same time
_LISTED: Final = {"Deployment": "apis/apps/v1", "Pod": "api/v1"}  # the API group of each kind
_KUBECTL_MARGIN: Final = 50.0  # additional seconds for kubectl and its login plug-ins
_LOOPBACK: Final = "127.0.0.1"  # otherwise kubectl continues on ::1 alone if another process has the port
_OPENS: Final = 10.0  # seconds for the tunnel to open
_INTERVAL: Final = 0.02
_CHUNK_BYTES: Final = 1 << 16
# Messages of kubectl (1.20 and 1.32) for a cluster that is unreachable or rejects the login. If kubectl
# has already read one of several requested kinds, the message has Go's form (net/url, `Error`): `Get "https://…": …`.
_UNREACHED: Final = re.compile(
    r'(?m:^(?:error: )?(?:Get|Post|Patch|Put|Delete) "https?://)|'
    r"Unable to connect|was refused|no such host|i/o timeout|Client\.Timeout|timed out|TLS handshake|x509:|EOF"
    r"|context .* does not exist|no context exists|You must be logged in|Unauthorized|getting credentials"
    r"|invalid configuration|ServiceUnavailable|the server is currently unable|etcdserver"
)


@dataclass(frozen=True, order=True)
class Cluster:
    """A namespace in a context; "" is the kubeconfig's current context."""

    context: str
    namespace: str

    def argv(self, *words: str) -> list[str]:
        """Return a kubectl command for this namespace."""
        context = ["--context", self.context] if self.context else []
        return ["kubectl", *context, "--namespace", self.namespace, *words]

    def command_text(self, *words: str) -> str:
        """Return the command as shell text in backquotes, for messages."""
        return f"`{quote(self.argv(*words))}`"

    def ask(self, *words: str, stdin: str | None = None, timeout: float = _REQUEST_TIMEOUT) -> CompletedProgram:
        """Run kubectl to completion, with a timeout of `timeout` seconds for each request.

        Raises HostError if the cluster does not answer. A rejected request is a normal result.
        """
        with _kubectl_needed():
            done = run(self.argv(_timeout(timeout), *words), stdin=stdin, timeout=timeout + _KUBECTL_MARGIN)
        self.require_answer(done)
        return done

    def json(self, *words: str, timeout: float = _REQUEST_TIMEOUT) -> Mapping[str, Any]:
        """Return kubectl's JSON output. Raises HostError if the cluster does not answer or rejects the request."""
        return self.read(self.ask(*words, *(() if "--raw" in words else ("--output", "json")), timeout=timeout))

    def read(self, done: CompletedProgram) -> Mapping[str, Any]:
        """Parse kubectl's JSON output. Raises HostError if the cluster does not answer or rejected the request."""
        self.require_answer(done)
        if not done.ok:
            raise self.rejection(done)
        answer: Mapping[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
        return answer

    def create(self, manifest: Mapping[str, Any]) -> CompletedProgram:
        """Create an object as `MANAGER`; fail if it exists. The output is the created object as JSON."""
        words = ("create", f"--field-manager={MANAGER}", "--output", "json", "--filename", "-")
        return self.ask(*words, stdin=json.dumps(manifest))

    def change(self, manifest: Mapping[str, Any], patch: Mapping[str, Any]) -> CompletedProgram:
        """Change fields of an existing object as `MANAGER`."""
        resource = f"{manifest['kind']}/{manifest['metadata']['name']}".lower()
        return self.ask("patch", resource, f"--field-manager={MANAGER}", "--patch", json.dumps(patch))

    def apply(self, objects: Sequence[Mapping[str, Any]]) -> CompletedProgram:
        """Apply objects server-side as `MANAGER`. They go through a pipe, so no argv and no file contains a Secret."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        return self.ask("apply", "--server-side", f"--field-manager={MANAGER}", "--filename", "-", stdin=text)

    def start(self, *words: str, output: int | IO[bytes] = PIPE, errors: int | IO[bytes]) -> Program:
        """Start kubectl; it ends no later than this process. Raises HostError if it is not installed."""
        with _kubectl_needed():
            return start(self.argv(*words), output=output, errors=errors, tied=True)

    def rejection(self, done: CompletedProgram) -> HostError:
        """Return the error for a rejected request."""
        text = done.stderr.strip().removeprefix("Error from server ").removeprefix("error: ")
        message = f"the cluster rejected the request: {text.splitlines()[0] if text else f'exit code {done.code}'}"
        return HostError(message, details=text)

    def require_answer(self, done: CompletedProgram) -> None:
        """Raise HostError if the cluster is unreachable or rejects the login."""
        if done.ok or (done.code != 124 and not _UNREACHED.search(done.stderr)):
            return
        context = f"context `{self.context}`" if self.context else "the kubeconfig's current context"
        text = done.stderr.strip().splitlines()
        hint = f"{self.command_text('get', 'pods')} must work; `--set kubernetes.context=…` selects another cluster"
        raise HostError(f"the cluster of {context} does not answer", hint=hint, details=f"  {text[-1]}" if text else "")


class Forward:
    """A local port that `kubectl port-forward` connects to the server's current pod once it is running."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        """Prepare a tunnel to `port`, the server's port in its pod."""
        self._cluster, self._inside = cluster, port
        self._local = free_port()  # the pod's port would often collide with that of a server on this host
        self._program: Program | None = None
        self._output: IO[bytes] | None = None
        self._run = ""

    @property
    def url(self) -> str:
        """The local URL of the tunnel."""
        return f"http://{_LOOPBACK}:{self._local}"

    def connect(self, pod: str, run: str) -> None:
        """Open the tunnel to a run of a pod, unless it is already open to that run."""
        if self._program is not None and self._program.code is None and self._run == run:
            return
        self.close()
        self._run = run
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe would fill up: kubectl prints each connection
        words = ("port-forward", "--address", _LOOPBACK, f"pod/{pod}", f"{self._local}:{self._inside}")
        self._program = self._cluster.start(*words, output=self._output, errors=self._output)
        end = time.monotonic() + _OPENS
        while b"Forwarding" not in os.pread(self._output.fileno(), _CHUNK_BYTES, 0) and self._program.code is None:
            if time.monotonic() > end:
                break
            time.sleep(_INTERVAL)

    def close(self) -> None:
        """Close the tunnel."""
        if self._program is not None:
            self._program.end(signal.SIGTERM, grace=1)
        if self._output is not None:
            self._output.close()
        self._program = self._output = None


def list_objects(clusters: Sequence[Cluster], selector: str) -> Iterator[list[Mapping[str, Any]] | HostError]:
    """Yield the Deployments and pods of each cluster that match a label selector, or the cluster's error.

    All requests run at the same time with a short timeout. `--raw` copies the API's answer, which lists one kind and
    does not name it: otherwise kubectl takes three times as long for 50 servers.
    """
    query = f"?labelSelector={quote_url(selector)}"
    for batch in (clusters[at : at + _AT_ONCE] for at in range(0, len(clusters), _AT_ONCE)):
        argvs = [
            cluster.argv(
                *(_timeout(_BRIEF_TIMEOUT), "get", "--raw"),
                f"/{group}/namespaces/{cluster.namespace}/{kind.lower()}s{query}",
            )
            for cluster in batch
            for kind, group in _LISTED.items()
        ]
        with _kubectl_needed():
            answers = iter(run_concurrently(argvs, timeout=_BRIEF_TIMEOUT + _BRIEF_MARGIN))
        for cluster in batch:
            lists = [(kind, next(answers)) for kind in _LISTED]
            try:
                yield [{**item, "kind": kind} for kind, done in lists for item in cluster.read(done)["items"]]
            except HostError as error:
                yield error


def _timeout(seconds: float) -> str:
    return f"--request-timeout={seconds:g}s"


@contextmanager
def _kubectl_needed() -> Iterator[None]:
    """Raise HostError if kubectl is not installed."""
    try:
        yield
    except ProgramMissingError as error:
        hint = "https://kubernetes.io/docs/tasks/tools, or `apt-get install kubernetes-client`"
        raise HostError("no `kubectl` found on this host", hint=hint) from error
