"""Servers in Kubernetes clusters. What runs is recorded on the objects, as labels and annotations."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any, Final

from orchestrator.core.console import note, warn
from orchestrator.core.errors import DeployError, HostError, NameTakenError, StartError
from orchestrator.core.files import read_own, write_whole
from orchestrator.core.log_lines import LogTail, redacted, split_lines
from orchestrator.core.paths import Home
from orchestrator.core.secret import Secret
from orchestrator.core.shell import ProgramResult
from orchestrator.core.waiting import look_until
from orchestrator.engine import delivery
from orchestrator.plan import NAME as SERVER_NAME
from orchestrator.render import Artifacts
from orchestrator.runtimes.base import LOG, Handle, ServerState, Status, since_then
from orchestrator.runtimes.kubernetes.files import image_of_pods
from orchestrator.runtimes.kubernetes.forward import Forward
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.logs import ServerLog
from orchestrator.runtimes.kubernetes.manifests import (
    CONFIG,
    CONTAINER,
    Manifest,
    cluster_of,
    metadata,
    secret_name,
    server_objects,
)
from orchestrator.runtimes.kubernetes.record import NAME, PLAN, PROFILE, RUN_DIR, URL, object_name
from orchestrator.runtimes.kubernetes.staging import staging_job
from orchestrator.runtimes.kubernetes.state import PodView, has_started, is_over, newest, server_state, trouble

# Everything that a start makes; a claim is none of it: nobody's weights are deleted. What would make a pod anew goes
# before the pod does.
_KINDS: Final = "deployments,replicasets,services,networkpolicies,poddisruptionbudgets,secrets,jobs"
_FRESH: Final = 0.8  # seconds for which what was seen is taken for what is
_PAUSE: Final = 0.5
_OUTAGE: Final = 60.0  # seconds without an answer in which what was seen last is taken for what is
_UNSTARTED: Final = 15.0  # seconds beyond its grace after which nothing of a deleted pod starts any more
_LATE: Final = 60.0  # seconds beyond its grace after which a pod's end is not waited for
# The command line of each process that is no zombie: behind the name in /proc/PID/stat stands its state (proc(5)).
_TITLES: Final = """\
for process in /proc/[0-9]*; do
  read -r stat < "$process/stat" || continue
  case "${stat##*) }" in Z*) continue ;; esac
  tr '\\0' ' ' < "$process/cmdline" && echo
done 2>/dev/null
"""
_OWN: Final = (NAME, "app.kubernetes.io/managed-by=deploy")


class KubernetesRuntime:
    """The `kubernetes` runtime, in the namespaces that the run directories of this home name."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._places: dict[str, Cluster] = {}  # by the identity of a server
        self._forwards: dict[str, Forward] = {}
        self._tails: list[ServerLog] = []
        self._seen: dict[str, tuple[float, Mapping[str, Any] | None, PodView | None]] = {}
        self._stuck_since: dict[str, float] = {}
        self._patience: dict[str, float] = {}

    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Handle:
        """See `Runtime.start`. What was applied is deleted before an error leaves."""
        plan, settings = artifacts.plan, cluster_of(artifacts.plan)
        cluster = Cluster(settings.context or "", settings.namespace)
        self._require_free(cluster, name)
        objects = list(self._objects(cluster, artifacts, name, secrets))
        for each in objects:
            each["metadata"]["annotations"][RUN_DIR] = str(run_dir.absolute())
        try:
            _require_taken(cluster.apply(objects))
            made = cluster.json("get", "deployment", object_name(name))
        except BaseException:  # Ctrl-C, above all: nobody would know of these objects
            self._discard(cluster, name)
            raise
        handle = self._handle(cluster, made)
        self._patience[handle.identity] = settings.patience
        self._forwards[handle.identity] = forward = Forward(cluster, plan.server.port)
        return replace(handle, url=forward.url)

    def find(self, name: str | None = None) -> tuple[Handle, ...]:
        """See `Runtime.find`. One that is asked for by name is reached from here; others by their Service alone."""
        selected = ",".join((f"{NAME}={name}" if name else NAME, *_OWN[1:]))
        handles = []
        for cluster in known_places(self._home, name):
            items = cluster.json("get", "deployments,pods", "--selector", selected)["items"]
            for each in items:
                if each["kind"] == "Deployment" and is_record(each["metadata"]):
                    handles.append(self._handle(cluster, each))
                    self._see(handles[-1], items)
        if name is not None:
            handles = [self._reached(handle) for handle in handles]
        return tuple(sorted(handles, key=lambda handle: handle.name))

    def state(self, handle: Handle) -> ServerState:
        """See `Runtime.state`. One that has waited too long for what it will not get is stuck."""
        deployment, view = self._look(handle)
        state = server_state(deployment, view)
        if view is not None and view.runs_since and (forward := self._forwards.get(handle.identity)):
            forward.lead_to(view.name, _run(view))
        if state.status is not Status.PENDING or not trouble(deployment, view):
            self._stuck_since.pop(handle.identity, None)
            return state
        since = self._stuck_since.setdefault(handle.identity, time.monotonic())
        about = ("pod", view.name) if view is not None else ("deployment", object_name(handle.name))
        more = self._places[handle.identity].shown("describe", *about)
        stuck = time.monotonic() - since >= self._patience.get(handle.identity, inf)
        return replace(state, stuck=stuck, detail=f"{state.detail}; {more} shows more")

    def titles(self, handle: Handle) -> tuple[str, ...]:
        """See `Runtime.titles`. By a shell in the pod, which has a process table of its own."""
        _, view = self._look(handle)
        if view is None or view.runs_since is None:
            return ()
        asked = ("exec", view.name, "--container", CONTAINER, "--", "sh", "-c", _TITLES)
        listed = self._places[handle.identity].ask(*asked)
        return tuple(line.strip() for line in listed.stdout.splitlines() if line.strip()) if listed.ok else ()

    def logs(self, handle: Handle, *, follow: bool, since: datetime | None = None) -> Iterator[str]:
        """See `Runtime.logs`. Follows through restarts; for a server that is gone, what was saved at its stop."""
        if self._look(handle)[0] is None:
            kept = LogTail(Path(handle.run_dir, LOG)).to_end()
            yield from kept if since is None else since_then(kept, since, started=None, zone=UTC)
            return
        log = self._log(handle, since)
        yield from split_lines(redacted(log.follow() if follow else log.so_far()))

    def tail(self, handle: Handle) -> Callable[[], Iterator[str]]:
        """See `Runtime.tail`."""
        self._tails.append(self._log(handle))
        return self._tails[-1].tail

    def stop(self, handle: Handle, *, grace: float) -> None:
        """See `Runtime.stop`. Raises HostError for a pod whose node does not say that it has ended."""
        cluster = self._places[handle.identity]
        self._keep_log(handle)
        self._delete(cluster, handle.name, grace)
        began = time.monotonic()

        def running() -> list[Mapping[str, Any]]:
            pods = cluster.json("get", "pods", "--selector", f"{NAME}={handle.name}")["items"]
            late = time.monotonic() - began > grace + _UNSTARTED
            return [pod for pod in pods if not (is_over(pod) or (late and not has_started(pod)))]

        left = look_until(lambda found: not found, running, within=grace + _LATE, pause=_PAUSE)
        self._forget(handle)
        if left:
            pod, node = left[0]["metadata"]["name"], left[0]["spec"].get("nodeName", "no node")
            force = cluster.shown("delete", "pod", pod, "--force", "--grace-period=0")
            raise HostError(
                f"pod `{pod}` is deleted, and {node} does not say that it has ended",
                hint=f"where that node is gone for good: {force}",
            )

    def close(self) -> None:
        """See `Runtime.close`."""
        for forward in self._forwards.values():
            forward.close()
        for tail in self._tails:
            tail.close()

    def _objects(
        self, cluster: Cluster, artifacts: Artifacts, name: str, secrets: Mapping[str, Secret]
    ) -> Iterator[Manifest]:
        """What is applied: the manifests as they are rendered, and the Secret, which is in none of them."""
        plan = artifacts.plan
        given = delivery(secrets, api_key_env=plan.server.api_key_env)
        if given.config is not None and cluster_of(plan).secret is None:
            about = metadata(plan, name, secret_name(plan, name))
            data = {CONFIG: given.config.reveal()}
            yield {"apiVersion": "v1", "kind": "Secret", "metadata": about, "type": "Opaque", "stringData": data}
        if (job := staging_job(plan, name)) is not None:
            yield job
        for each in server_objects(artifacts, image_of_pods(artifacts).reference, name):
            if each["apiVersion"] == "policy/v1" and not cluster.ask("get", "--raw", "/apis/policy/v1").ok:
                warn("this Kubernetes is older than 1.21: who drains its node evicts the server")
                continue
            yield each

    def _require_free(self, cluster: Cluster, name: str) -> None:
        """Raise NameTakenError where somebody's server has that name, HostError for a namespace that is not there."""
        if not cluster.ask("get", "namespace", cluster.namespace).ok:
            create = replace(cluster, namespace="default").shown("create", "namespace", cluster.namespace)
            raise HostError(f"there is no namespace `{cluster.namespace}` that you may look at", hint=create)
        found = cluster.json("get", "deployment", object_name(name), "--ignore-not-found")
        if found:
            raise NameTakenError(
                f"`{name}` exists in namespace `{cluster.namespace}`",
                hint=f"another `--name`; {cluster.shown('get', 'deployment', object_name(name))} shows it",
            )

    def _look(self, handle: Handle) -> tuple[Mapping[str, Any] | None, PodView | None]:
        """The Deployment and the pod, at most a second old. Raises HostError for a cluster that does not answer."""
        at, deployment, view = self._seen.get(handle.identity, (-inf, None, None))
        if time.monotonic() - at < _FRESH:
            return deployment, view
        cluster = self._places[handle.identity]
        try:
            items = cluster.json("get", "deployments,pods", "--selector", f"{NAME}={handle.name}")["items"]
        except HostError:  # its API server is restarted, say: pods run on
            if time.monotonic() - at > _OUTAGE:
                raise
            return deployment, view
        self._see(handle, items)
        return self._seen[handle.identity][1:]

    def _see(self, handle: Handle, items: Sequence[Mapping[str, Any]]) -> None:
        """Keep what a list of objects says of a server; of a pod that does not start its warnings are asked."""
        ours = [each for each in items if each["metadata"]["labels"][NAME] == handle.name]
        deployment = next((each for each in ours if each["metadata"]["uid"] == handle.identity), None)
        pod = newest([each for each in ours if each["kind"] == "Pod"])
        view = PodView(pod=pod) if pod else None
        if view is not None and view.placed:
            view = replace(view, events=self._events(self._places[handle.identity], view))
        self._seen[handle.identity] = (time.monotonic(), deployment, view)

    def _events(self, cluster: Cluster, view: PodView) -> tuple[Mapping[str, Any], ...]:
        about = f"involvedObject.name={view.name},type=Warning"
        found = cluster.json("get", "events", "--field-selector", about)["items"]
        return tuple(sorted(found, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or "")))

    def _log(self, handle: Handle, since: datetime | None = None) -> ServerLog:
        def look() -> tuple[bool, PodView | None]:
            deployment, view = self._look(handle)
            return deployment is not None, view

        return ServerLog(self._places[handle.identity], look, since)

    def _keep_log(self, handle: Handle) -> None:
        """Keep the log where this home has a directory for it; what fails keeps nobody from stopping a server."""
        run_dir = Path(handle.run_dir)
        if not self._home.holds(run_dir):
            note(f"the log is not kept: `{run_dir}` is not a run directory of this home")
            return
        try:
            self._seen.pop(handle.identity, None)
            if self._look(handle)[0] is not None:
                write_whole(run_dir / LOG, "".join(f"{line}\n" for line in self.logs(handle, follow=False)))
        except (DeployError, OSError) as error:
            warn(f"the log is not kept: {error}")

    def _delete(self, cluster: Cluster, name: str, grace: float) -> None:
        """Delete every object of a server; its pod has `grace` seconds. Raises HostError."""
        selected = ("--selector", f"{NAME}={name},{_OWN[1]}", "--ignore-not-found", "--wait=false")
        done = cluster.ask("delete", _KINDS, *selected)
        if not done.ok:
            raise cluster.refused(done)
        cluster.ask("delete", "pods", *selected, f"--grace-period={max(int(grace), 1)}")

    def _discard(self, cluster: Cluster, name: str) -> None:
        """Delete what a start has made; where that fails, say so: the error to raise is the start's own."""
        try:
            self._delete(cluster, name, 1)
        except DeployError as error:
            hint = f"{cluster.shown('delete', _KINDS, '--selector', f'{NAME}={name}')} removes it"
            warn(f"objects of `{name}` may be left: {error}", hint=hint)

    def _handle(self, cluster: Cluster, deployment: Mapping[str, Any]) -> Handle:
        about = deployment["metadata"]
        said, identity = about["annotations"], str(about["uid"])
        self._places[identity] = cluster
        name = about["labels"][NAME]
        return Handle(
            runtime="kubernetes",
            name=name,
            profile=said[PROFILE],
            plan_digest=said[PLAN],
            url=self._forwards[identity].url if identity in self._forwards else said[URL],
            run_dir=said.get(RUN_DIR) or str(self._home.runs / name / "unknown"),
            identity=identity,
        )

    def _reached(self, handle: Handle) -> Handle:
        """With a local port that leads to the server, where it runs."""
        if handle.identity not in self._forwards:
            port = int(handle.url.rpartition(":")[2])
            self._forwards[handle.identity] = Forward(self._places[handle.identity], port)
            self.state(handle)
        return replace(handle, url=self._forwards[handle.identity].url)

    def _forget(self, handle: Handle) -> None:
        self._seen.pop(handle.identity, None)
        if forward := self._forwards.get(handle.identity):
            forward.close()


def known_places(home: Home, name: str | None = None) -> tuple[Cluster, ...]:
    """The namespaces in which servers were started from a home, by the newest plan of each name.

    Of a name that this home knows it is its own alone: another cluster may be gone.
    """
    found = set()
    own = home.runs / (name or "")
    folders = [own] if name and own.is_dir() else home.runs.glob("*") if home.runs.is_dir() else ()
    for folder in folders:
        newest_run = max((path for path in folder.glob("*-*") if path.is_dir()), default=None)
        if newest_run is None or newest_run.is_symlink():
            continue
        try:
            said = json.loads(read_own(newest_run / "plan.json"))["kubernetes"]
            found.add(Cluster(said["context"] or "", said["namespace"]))
        except (OSError, ValueError, KeyError, TypeError):  # no plan, or one for another runtime
            continue
    return tuple(sorted(found))


def is_record(about: Mapping[str, Any]) -> bool:
    """Whether labels and annotations are as a start writes them; anybody may put others on an object of theirs."""
    said, name = about.get("annotations", {}), about.get("labels", {}).get(NAME, "")
    texts = [said.get(each, "") for each in (PLAN, PROFILE, URL)]
    port = texts[2].rpartition(":")[2]
    return bool(SERVER_NAME.match(name)) and all(text and text.isprintable() for text in texts) and port.isdecimal()


def _run(view: PodView) -> str:
    """What tells one run of a server from another."""
    return f"{view.name}/{view.runs_since}"


def _require_taken(applied: ProgramResult) -> None:
    if not applied.ok:
        said = "\n".join(f"  {line}" for line in applied.stderr.strip().splitlines())
        raise StartError("the cluster does not take the server", details=said)
