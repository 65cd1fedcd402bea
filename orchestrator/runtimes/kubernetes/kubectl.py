"""The cluster as kubectl reaches it: every question and every change goes through it.

It is the user's own: contexts, plug-ins that log in and proxies are as in their shell.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from orchestrator.core.errors import HostError
from orchestrator.core.shell import PIPE, Program, ProgramMissingError, ProgramResult, quote, run, start

MANAGER: Final = "deploy"  # of the fields that we apply
_LIMIT: Final = 60.0  # seconds that kubectl may take, its plug-ins included
_ASKED: Final = "10s"  # that the API server may take
# What kubectl says of a cluster that it cannot reach, or that does not know us (1.20 and 1.32).
_UNREACHED: Final = re.compile(
    r"Unable to connect|was refused|no such host|i/o timeout|Client\.Timeout|timed out|TLS handshake|x509:|EOF"
    r"|context .* does not exist|no context exists|You must be logged in|Unauthorized|getting credentials"
    r"|invalid configuration|ServiceUnavailable|the server is currently unable|etcdserver"
)


@dataclass(frozen=True, order=True)
class Cluster:
    """One namespace of a context; "" is the kubeconfig's current one."""

    context: str
    namespace: str

    def argv(self, *words: str) -> list[str]:
        """The kubectl command."""
        context = ["--context", self.context] if self.context else []
        return ["kubectl", *context, "--namespace", self.namespace, *words]

    def shown(self, *words: str) -> str:
        """The same as a person would write it."""
        return f"`{quote(self.argv(*words))}`"

    def ask(self, *words: str, stdin: str | None = None, limit: float = _LIMIT) -> ProgramResult:
        """Run kubectl to its end. Raises HostError for a cluster that does not answer; a refusal is a result."""
        done = _run(self.argv(f"--request-timeout={_ASKED}", *words), stdin=stdin, limit=limit)
        if not done.ok and (done.code == 124 or _UNREACHED.search(done.stderr)):
            raise self._silent(done)
        return done

    def json(self, *words: str) -> Mapping[str, Any]:
        """What it answers, as JSON. Raises HostError where it refuses."""
        done = self.ask(*words, *(() if "--raw" in words else ("--output", "json")))
        if not done.ok:
            raise self.refused(done)
        found: Mapping[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
        return found

    def apply(self, objects: Sequence[Mapping[str, Any]]) -> ProgramResult:
        """Apply objects on the server's side, as ours. They go through a pipe: no argv and no file holds a Secret."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        return self.ask("apply", "--server-side", f"--field-manager={MANAGER}", "--filename", "-", stdin=text)

    def start(self, *words: str, output: int | IO[bytes] = PIPE, errors: int | IO[bytes]) -> Program:
        """Start kubectl; it ends with this process at the latest. Raises HostError where there is none."""
        try:
            return start(self.argv(*words), output=output, errors=errors, tied=True)
        except ProgramMissingError as error:
            raise _no_kubectl() from error

    def refused(self, done: ProgramResult) -> HostError:
        """What is said of an answer that is a refusal."""
        said = done.stderr.strip().removeprefix("Error from server ").removeprefix("error: ")
        return HostError(
            f"the cluster refuses: {said.splitlines()[0] if said else f'exit code {done.code}'}", details=said
        )

    def _silent(self, done: ProgramResult) -> HostError:
        where = f"context `{self.context}`" if self.context else "the kubeconfig's current context"
        said = done.stderr.strip().splitlines()
        return HostError(
            f"the cluster of {where} does not answer",
            hint=f"{self.shown('get', 'pods')} has to work; `--set kubernetes.context=…` names another",
            details=f"  {said[-1]}" if said else "",
        )


def _run(argv: Sequence[str], *, stdin: str | None, limit: float) -> ProgramResult:
    try:
        return run(argv, stdin=stdin, timeout=limit)
    except ProgramMissingError as error:
        raise _no_kubectl() from error


def _no_kubectl() -> HostError:
    hint = "https://kubernetes.io/docs/tasks/tools, or `apt-get install kubernetes-client`"
    return HostError("there is no `kubectl` on this machine", hint=hint)
