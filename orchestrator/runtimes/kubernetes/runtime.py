"""Servers in Kubernetes clusters. What runs is recorded on the objects, as labels and annotations."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from orchestrator.core.console import note, warn
from orchestrator.core.errors import DeployError, HostError
from orchestrator.core.files import write_whole
from orchestrator.core.logs.lines import Lines, LogTail, redacted
from orchestrator.core.paths import Home
from orchestrator.core.polling import look_until
from orchestrator.core.secret import Secret
from orchestrator.core.signals import held
from orchestrator.core.subprocesses import quote
from orchestrator.plan.plan import Plan
from orchestrator.render.artifacts import Artifacts, ContextFile
from orchestrator.runtimes.base import (
    LOG,
    Handle,
    Place,
    Pods,
    Prepared,
    Runtime,
    ServerState,
    Status,
    UnansweredError,
    since_then,
)
from orchestrator.runtimes.kubernetes.creation import create_deployment, objects_of_start, require_taken
from orchestrator.runtimes.kubernetes.deletion import LATE, Removal, kinds_of
from orchestrator.runtimes.kubernetes.files import manifest_files
from orchestrator.runtimes.kubernetes.kubectl import Cluster, ask_each
from orchestrator.runtimes.kubernetes.logs import ServerLog
from orchestrator.runtimes.kubernetes.manifests import CONTAINER, cluster_of
from orchestrator.runtimes.kubernetes.namespaces import Seat, is_record, known_places, part_in
from orchestrator.runtimes.kubernetes.observations import Sightings, warnings_of
from orchestrator.runtimes.kubernetes.port_forward import Forward
from orchestrator.runtimes.kubernetes.record import (
    GATEWAY,
    NAME,
    OURS,
    PLAN,
    PROFILE,
    REPLICA,
    ROLE,
    RUN_DIR,
    STARTER,
    URL,
    deployment_name,
    object_name,
    selector,
)
from orchestrator.runtimes.kubernetes.state import PodView, server_state, trouble
from orchestrator.runtimes.replicas import NO_GATEWAY, all_logs, all_tails, each_of, number_of, part_of, together

if TYPE_CHECKING:
    from orchestrator.hosts.report import Finding
    from orchestrator.plan.rules import Rule
    from orchestrator.profiles.schema import Profile

_APPEARS: Final = 10.0  # seconds that a new Deployment's pod may take to be there
_BRIEFLY: Final = 10.0  # seconds beyond its grace for a pod's end, where another's was awaited in vain
_PAUSE: Final = 0.2
# The command line of each process that is no zombie: behind the name in /proc/PID/stat stands its state (proc(5)).
_TITLES: Final = """\
for process in /proc/[0-9]*; do
  read -r stat < "$process/stat" || continue
  case "${stat##*) }" in Z*) continue ;; esac
  tr '\\0' ' ' < "$process/cmdline" && echo
done 2>/dev/null
"""


class KubernetesRuntime(Runtime):
    """Servers in pods, in the namespaces that the run directories of this home name."""

    name = "kubernetes"
    contained = True
    here = False
    elsewhere = True
    discovers = True
    leaves: ClassVar = frozenset({"kubernetes.yaml", "weights.yaml"})

    @classmethod
    def rules(cls) -> Sequence[Rule]:
        from orchestrator.runtimes.image import has_image
        from orchestrator.runtimes.kubernetes.spec import asks_for_a_key, weights_have_a_place

        return (has_image, weights_have_a_place, asks_for_a_key)

    @staticmethod
    def settle(plan: Plan, profile: Profile) -> Plan:
        from orchestrator.runtimes.kubernetes.spec import settle

        return settle(plan, profile)

    @classmethod
    def remote_checks(cls, plan: Plan) -> Iterator[Finding]:
        from orchestrator.runtimes.kubernetes.checks import cluster_findings

        return cluster_findings(plan)

    @classmethod
    def render(cls, plan: Plan, inputs: Mapping[str, bytes]) -> Artifacts:
        from orchestrator.runtimes.kubernetes.spec import rendered

        return rendered(plan, inputs)

    @classmethod
    def files(cls, artifacts: Artifacts, name: str) -> Sequence[ContextFile]:
        return manifest_files(artifacts, name)

    @classmethod
    def prepare(cls, artifacts: Artifacts, _place: Place) -> Prepared:
        from orchestrator.runtimes.kubernetes.spec import prepare

        return prepare(artifacts)

    @classmethod
    def pods(cls, plan: Plan, name: str) -> Pods | None:
        from orchestrator.runtimes.kubernetes.spec import pods

        return pods(plan, name)

    @classmethod
    def keeper(cls, plan: Plan) -> str | None:
        from orchestrator.runtimes.kubernetes.spec import keeper

        return keeper(plan)

    def __init__(self, home: Home, host: str | None = None) -> None:
        super().__init__(home, host)
        self._seats: dict[str, Seat] = {}  # by the identity of a server
        self._forwards: dict[str, Forward] = {}
        self._tails: list[ServerLog] = []
        self._seen = Sightings()
        self._stuck_since: dict[str, float] = {}
        self._patience: dict[str, float] = {}

    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Handle:
        """See `Runtime.start`. What was made is deleted before an error leaves.

        The Deployment is made first, and made rather than applied: of two starts of a name the API server lets one win,
        by the Deployment that has the name itself. Its pod comes last, when everything that it mounts is there.
        """
        plan, settings = artifacts.plan, cluster_of(artifacts.plan)
        cluster = Cluster(settings.context or "", settings.namespace)
        seat = Seat(cluster, part_of(run_dir) or (GATEWAY if plan.gateway is not None else ""))
        *others, deployment = objects_of_start(seat, artifacts, name, secrets)
        start = {RUN_DIR: str(run_dir.absolute()), STARTER: f"{socket.gethostname()}/{uuid.uuid4()}"}
        for each in (*others, deployment):
            each["metadata"]["annotations"] |= start
        try:
            with held():  # a request that was sent cannot be taken back
                made = create_deployment(cluster, {**deployment, "spec": {**deployment["spec"], "replicas": 0}})
            require_taken(cluster.apply(others))
            require_taken(cluster.change(deployment, {"spec": {"replicas": deployment["spec"]["replicas"]}}))
        except BaseException:  # Ctrl-C, above all: nobody would know of these objects
            self._discard(seat, name, start[STARTER])
            raise
        handle = self._handle(cluster, made)
        self._patience[handle.identity] = settings.patience
        self._forwards[handle.identity] = forward = Forward(cluster, plan.server.port)
        return replace(handle, url=forward.url)

    def find(self, name: str | None = None) -> tuple[Handle, ...]:
        """See `Runtime.find`. One that is asked for by name is reached from here; others by their Service alone."""
        places = known_places(self._home, name)
        selected = selector(name) if name else f"{NAME},{OURS}"
        answers = ask_each(places, "get", "deployments,pods", "--selector", selected)
        found = [self._servers(*each, named=name is not None) for each in zip(places, answers, strict=True)]
        handles = [handle for each in found if not isinstance(each, HostError) for handle in each]
        if name is not None:
            handles = [self._reached(handle) for handle in handles]
        handles.sort(key=lambda handle: handle.name)
        if silent := [each for each in found if isinstance(each, HostError)]:
            said = "; ".join(dict.fromkeys(error.message for error in silent))
            raise UnansweredError(said, found=tuple(handles), hint=silent[0].hint, details=silent[0].details)
        return tuple(handles)

    def state(self, handle: Handle) -> ServerState:
        """See `Runtime.state`. One that has waited too long for what it will not get is stuck."""
        if handle.replicas and not handle.identity:
            return NO_GATEWAY
        deployment, view = self._look(handle)
        state = server_state(deployment, view)
        seat, forward = self._seats[handle.identity], self._forwards.get(handle.identity)
        listens = view is not None and (seat.part != GATEWAY or view.listens)  # kubectl ends where nobody does
        if view and listens and state.status is Status.RUNNING and forward and self._seen.answers(seat.cluster):
            forward.lead_to(view.name, f"{view.name}/{view.runs_since}")
        if state.status is not Status.PENDING or not trouble(deployment, view):
            self._stuck_since.pop(handle.identity, None)
            return state
        since = self._stuck_since.setdefault(handle.identity, time.monotonic())
        about = ("pod", view.name) if view is not None else ("deployment", deployment_name(handle.name, seat.part))
        more = seat.cluster.shown("describe", *about)
        stuck = state.stuck or time.monotonic() - since >= self._patience.get(handle.identity, inf)
        return replace(state, stuck=stuck, detail=f"{state.detail}; {more} shows more")

    def titles(self, handle: Handle) -> tuple[str, ...]:
        """See `Runtime.titles`. By a shell in the pod, which has a process table of its own."""
        view = self._look(handle)[1] if handle.identity else None
        if view is None or view.runs_since is None:
            return ()
        asked = ("exec", view.name, "--container", CONTAINER, "--", "sh", "-c", _TITLES)
        listed = self._seats[handle.identity].cluster.ask(*asked)
        return tuple(line.strip() for line in listed.stdout.splitlines() if line.strip()) if listed.ok else ()

    def logs(self, handle: Handle, *, follow: bool, since: datetime | None = None) -> Iterator[str]:
        """See `Runtime.logs`. Follows through restarts; for a server that is gone, what was saved at its stop."""
        if handle.replicas:
            yield from all_logs(self, handle, follow=follow, since=since)
            return
        if not handle.identity or self._look(handle)[0] is None:
            kept = LogTail(Path(handle.own_dir, LOG)).to_end()
            yield from kept if since is None else since_then(kept, since, started=None, zone=UTC)
            return
        log = self._log(handle, since)
        yield from Lines(redacted(log.follow() if follow else log.so_far()))

    def tail(self, handle: Handle) -> Callable[[], Iterator[str]]:
        if handle.replicas:
            return all_tails([self.tail(each) for each in each_of(handle) if each.identity])
        self._tails.append(self._log(handle))
        return self._tails[-1].tail

    def stop(self, handle: Handle, *, grace: float) -> None:
        """See `Runtime.stop`. A gateway ends first, and then everything of that name.

        Raises HostError for a pod whose node does not say that it has ended.
        """
        until = time.monotonic() + grace
        own, patience = [replace(handle, replicas=())] if handle.identity else [], LATE
        for each in own:
            self._keep_log(each)
            try:
                self._end(own, part=self._seats[each.identity].part, grace=grace)
            except HostError:
                if not handle.replicas:
                    raise
                patience = _BRIEFLY  # for its servers, which may be elsewhere, and for it once more
        for each in handle.replicas:
            self._keep_log(each)
        if handle.replicas:
            self._end([*handle.replicas, *own], part="", grace=max(until - time.monotonic(), 0), late=patience)

    def show(self, handle: Handle, *, shown: bool) -> None:
        """See `Runtime.show`. Its pod bears the label by which the gateway looks for it, or not.

        What comes in its place, on another node, bears it again: that is its Deployment's to say.
        """
        seat = self._seats[handle.identity]
        asked = ("pods", "--selector", selector(handle.name, seat.part))
        label = f"{ROLE}={REPLICA}" if shown else f"{ROLE}-"

        def labelled() -> bool:  # of a Deployment that was just made there is no pod yet
            done = seat.cluster.ask("label", *asked, label, "--overwrite")
            if not done.ok:
                raise seat.cluster.refused(done)
            return bool(done.stdout.strip())

        if not look_until(bool, labelled, within=_APPEARS, pause=_PAUSE):
            self._seen.forget(handle)
            what, detail = f"deployment/{deployment_name(handle.name, seat.part)}", self.state(handle).detail
            hint = f"{seat.cluster.shown('describe', what)} shows more"
            raise HostError(f"`{what}` has no pod after {_APPEARS:.0f} s: {detail}", hint=hint)

    def is_shown(self, handle: Handle) -> bool:
        view = self._look(handle)[1]
        return view is not None and view.pod["metadata"]["labels"].get(ROLE) == REPLICA

    def is_ready(self, handle: Handle) -> bool:
        return (view := self._look(handle)[1]) is not None and view.ready

    def close(self) -> None:
        for forward in self._forwards.values():
            forward.close()
        for tail in self._tails:
            tail.close()

    def _servers(
        self, cluster: Cluster, answer: Mapping[str, Any] | HostError, *, named: bool
    ) -> list[Handle] | HostError:
        """The servers in what a namespace has answered, several of a name as one; or why it has not."""
        if isinstance(answer, HostError):
            return answer
        items = answer["items"]
        records = [each for each in items if each["kind"] == "Deployment" and is_record(each["metadata"])]
        handles = [self._handle(cluster, each) for each in records]
        warns = any(PodView(pod=each).warns for each in items if each["kind"] == "Pod")
        try:
            warnings = warnings_of(cluster) if warns and not named else None  # of all at once
            for handle in handles:
                self._seen.keep(handle, self._seats[handle.identity], items, warnings)
        except HostError as error:
            return error
        names = dict.fromkeys(handle.name for handle in handles)
        return [self._one([handle for handle in handles if handle.name == each]) for each in names]

    def _look(self, handle: Handle) -> tuple[Mapping[str, Any] | None, PodView | None]:
        """The Deployment and the pod. Raises HostError for a cluster that has not answered for too long."""
        seen = self._seen.of(handle, self._seats[handle.identity])
        return seen.deployment, seen.view

    def _log(self, handle: Handle, since: datetime | None = None) -> ServerLog:
        def look() -> tuple[bool, PodView | None]:
            deployment, view = self._look(handle)
            return deployment is not None, view

        return ServerLog(self._seats[handle.identity].cluster, look, since)

    def _keep_log(self, handle: Handle) -> None:
        """Keep the log where this home has a directory for it; what fails keeps nobody from stopping a server."""
        run_dir = Path(handle.own_dir)
        if not self._home.holds(run_dir):
            note(f"the log is not kept: `{run_dir}` is not a run directory of this home")
            return
        try:
            self._seen.forget(handle)
            if (state := self.state(handle)).status is Status.UNKNOWN:
                warn(f"the log is not kept: {state.detail}")
            elif self._look(handle)[0] is not None:
                write_whole(run_dir / LOG, "".join(f"{line}\n" for line in self.logs(handle, follow=False)))
        except (DeployError, OSError) as error:
            warn(f"the log is not kept: {error}")

    def _end(self, servers: Sequence[Handle], *, part: str, grace: float, late: float = LATE) -> None:
        """End one server, or with no `part` everything of a name. Raises HostError."""
        seat, meant = self._seats[servers[0].identity], {each.identity for each in servers}
        several = bool(part or seat.part)
        silent = not self._seen.answers(seat.cluster)
        try:
            removal = Removal(seat.cluster, servers[0].name, meant, part=part, several=several, silent=silent)
            removal.carry_out(grace, late=late)
        finally:
            for each in servers:
                self._forget(each)

    def _discard(self, seat: Seat, name: str, starter: str) -> None:
        """Delete what a start has made; where that fails, say so: the error to raise is the start's own."""
        cluster, called = seat.cluster, deployment_name(name, seat.part)
        try:
            found = cluster.json("get", "deployment", called, "--ignore-not-found")
            if found and found["metadata"].get("annotations", {}).get(STARTER) == starter:
                self._end([self._handle(cluster, found)], part=seat.part, grace=1)
        except DeployError as error:
            selected = selector(name, seat.part)
            hint = f"{cluster.shown('delete', kinds_of(seat.part), '--selector', selected)} removes them"
            warn(f"objects of `{name}` may be left: {error}", hint=hint)

    def _handle(self, cluster: Cluster, deployment: Mapping[str, Any]) -> Handle:
        about = deployment["metadata"]
        said, identity = about["annotations"], str(about["uid"])
        self._seats[identity] = seat = Seat(cluster, part_in(deployment))
        name, port = about["labels"][NAME], said[URL].rpartition(":")[2]
        return Handle(
            runtime="kubernetes",
            name=name,
            profile=said[PROFILE],
            plan_digest=said[PLAN],
            url=self._forwards[identity].url if identity in self._forwards else said[URL],
            run_dir=said.get(RUN_DIR) or str(self._home.runs / name / "unknown"),
            identity=identity,
            service=said[URL],
            forward=quote(cluster.argv("port-forward", f"service/{object_name(name, seat.part)}", port)),
        )

    def _reached(self, handle: Handle) -> Handle:
        """With a local port that leads to the server, where it runs."""
        if handle.replicas:
            behind = tuple(self._reached(each) for each in handle.replicas)
            own = self._reached(replace(handle, replicas=())) if handle.identity else handle
            return replace(own, replicas=behind)
        if handle.identity not in self._forwards:
            port = int(handle.service.rpartition(":")[2])
            self._forwards[handle.identity] = Forward(self._seats[handle.identity].cluster, port)
            self.state(handle)
        return replace(handle, url=self._forwards[handle.identity].url)

    def _one(self, found: Sequence[Handle]) -> Handle:
        """The Deployments of one name as one server."""
        numbers = {each.identity: number_of(self._seats[each.identity].part) for each in found}
        own = next((each for each in found if not numbers[each.identity]), None)
        behind = sorted((each for each in found if numbers[each.identity]), key=lambda each: numbers[each.identity])
        return own if own is not None and not behind else together(own, behind)

    def _forget(self, handle: Handle) -> None:
        self._seen.forget(handle)
        if forward := self._forwards.get(handle.identity):
            forward.close()
