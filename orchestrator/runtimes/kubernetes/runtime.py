"""Servers in Kubernetes clusters. The labels and annotations of their objects are the record."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from orchestrator.core.console import warn
from orchestrator.core.errors import DeployError, HostError
from orchestrator.core.files import atomic_write
from orchestrator.core.imported import Imported
from orchestrator.core.logs.lines import Lines, redacted
from orchestrator.core.paths import Home
from orchestrator.core.polling import poll_until
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import Secret
from orchestrator.core.signals import defer_signals
from orchestrator.core.subprocesses import quote
from orchestrator.plan.plan import NAME as SERVER_NAME
from orchestrator.plan.units import Role
from orchestrator.render.artifacts import Artifacts
from orchestrator.runs.run_dir import runs_by_name
from orchestrator.runtimes.base import EXIT_FILE, LOG, PartialResultError, Runtime, ServerState, Status, Unit
from orchestrator.runtimes.kubernetes.deletion import OF_REPLICAS, Removal
from orchestrator.runtimes.kubernetes.kubectl import Cluster, Forward, list_objects
from orchestrator.runtimes.kubernetes.logs import ServerLog
from orchestrator.runtimes.kubernetes.observations import ObservationCache
from orchestrator.runtimes.kubernetes.record import (
    CONTAINER,
    OURS,
    ROLE,
    ReplicaRef,
    cluster_of,
    deployment_name,
    object_name,
    replica_of,
    role_label,
    selector,
)
from orchestrator.runtimes.kubernetes.state import PodView, scheduling_problem, server_state
from orchestrator.runtimes.labels import GATEWAY, NAME, PLAN, PROFILE, RUN_DIR, STARTER, URL, is_record
from orchestrator.runtimes.replicas import in_order, replica_name, role_of
from orchestrator.runtimes.saved_logs import keep_log, saved_log

_APPEARS: Final = 10.0  # seconds for the pod of a new Deployment to appear
_INTERVAL: Final = 0.2
# Prints the command line of each process that is not a zombie; in /proc/PID/stat the state follows the name (proc(5)).
_TITLES: Final = """\
for process in /proc/[0-9]*; do
  read -r stat < "$process/stat" || continue
  case "${stat##*) }" in Z*) continue ;; esac
  tr '\\0' ' ' < "$process/cmdline" && echo
done 2>/dev/null
"""


class KubernetesRuntime(Runtime):
    """Servers in pods, in the namespaces recorded in this home's run directories."""

    name = "kubernetes"
    in_container = True
    is_local = False
    cluster_managed = True
    gateway_discovery = True
    drains_on_stop = True  # by a preStop hook
    rules = Imported("orchestrator.runtimes.kubernetes.spec:RULES")
    settings = Imported("orchestrator.runtimes.kubernetes.spec:settings")
    built_image_problems = Imported("orchestrator.runtimes.kubernetes.spec:built_image_problems")
    start_problems = Imported("orchestrator.runtimes.kubernetes.spec:start_problems")
    remote_checks = Imported("orchestrator.runtimes.kubernetes.checks:cluster_findings")
    render = Imported("orchestrator.runtimes.kubernetes.spec:rendered")
    files = Imported("orchestrator.runtimes.kubernetes.spec:manifest_files")
    prepare = Imported("orchestrator.runtimes.kubernetes.spec:prepare")
    monitoring_targets = Imported("orchestrator.runtimes.kubernetes.spec:monitoring_targets")
    restart_owner = Imported("orchestrator.runtimes.kubernetes.spec:restart_owner")

    def __init__(self, home: Home, host: str | None = None) -> None:
        super().__init__(home, host)
        self._replicas: dict[str, ReplicaRef] = {}  # by the `runtime_id` of a unit
        self._tails: list[ServerLog] = []
        self._seen = ObservationCache()

    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Unit:
        """See `Runtime.start`. Deletes all objects of the start before it raises.

        The Deployment comes first, and is created rather than applied: of two starts of a name, the API server accepts
        only the one that first creates the Deployment with the server's own name. The pod comes last, when everything
        that it mounts exists.
        """
        from orchestrator.runtimes.kubernetes import creation  # noqa: PLC0415 - `status` does not need it

        plan, settings = artifacts.plan, cluster_of(artifacts.plan)
        cluster = Cluster(settings.context or "", settings.namespace)
        replica = ReplicaRef(cluster, replica_name(run_dir) or (GATEWAY if plan.gateway is not None else ""))
        *objects, deployment = creation.objects_of_start(replica, artifacts, name, secrets)
        start = {RUN_DIR: str(run_dir.absolute()), STARTER: str(uuid.uuid4())}
        for other in (*objects, deployment):
            other["metadata"]["annotations"] |= start
        try:
            with defer_signals():  # a request in flight cannot be undone
                created = creation.create_deployment(
                    cluster, deployment | {"spec": deployment["spec"] | {"replicas": 0}}
                )
            creation.require_applied(cluster.apply(objects))
            creation.require_applied(cluster.change(deployment, {"spec": {"replicas": deployment["spec"]["replicas"]}}))
        except BaseException:  # mainly Ctrl-C; otherwise these objects would remain without a record
            self._discard(replica, name, start[STARTER])
            raise
        self._seen.forget()
        unit = self._unit(cluster, created)
        replica, forward = self._replicas[unit.runtime_id], Forward(cluster, plan.server.port)
        replica.pending_timeout, replica.forward = settings.pending_timeout, forward
        return replace(unit, name=name, url=forward.url, run_dir=start[RUN_DIR])  # as this start has them

    def find(self, name: str | None = None) -> tuple[Unit, ...]:
        """See `Runtime.find`.

        Opens a tunnel only to servers found by name; the others have their Service's URL.
        """
        locations = known_namespaces(self._home, name)
        answers = list_objects(locations, selector(name) if name else f"{NAME},{OURS}")
        units, unreachable = list[Unit](), list[HostError]()
        for cluster, items in zip(locations, answers, strict=True):
            try:
                units += self._servers(cluster, items)
            except HostError as error:
                unreachable.append(error)
        if name is not None:
            units = [self._reached(unit) for unit in units]
        units.sort(key=lambda unit: in_order(self._replicas[unit.runtime_id].unit_name))  # a gateway first
        if unreachable:
            text = "; ".join(dict.fromkeys(error.message for error in unreachable))
            raise PartialResultError(text, units=tuple(units), hint=unreachable[0].hint, details=unreachable[0].details)
        return tuple(units)

    def state(self, unit: Unit) -> ServerState:
        """See `Runtime.state`. Reports a server as unschedulable if it has waited too long for a resource."""
        return self._report(unit, *self._inspect(unit))

    def _report(self, unit: Unit, deployment: Mapping[str, Any] | None, view: PodView | None) -> ServerState:
        state = server_state(deployment, view)
        replica = self._replicas[unit.runtime_id]
        forward = replica.forward
        # Until its startupProbe has succeeded, a gateway may not listen, and `kubectl port-forward` would end.
        accepts_connections = view is not None and (replica.unit_name != GATEWAY or bool(view.container.get("started")))
        if (
            view
            and accepts_connections
            and state.status is Status.RUNNING
            and forward
            and self._seen.answers(replica.cluster)
        ):
            forward.connect(view.name, f"{view.name}/{view.runs_since}")
        if state.status is not Status.PENDING or not scheduling_problem(deployment, view):
            replica.stuck_since = None
            return state
        now = time.monotonic()
        replica.stuck_since = since = now if replica.stuck_since is None else replica.stuck_since
        resource = ("pod", view.name) if view else ("deployment", deployment_name(unit.name, replica.unit_name))
        command = replica.cluster.command_text("describe", *resource)
        is_stuck = state.unschedulable or now - since >= replica.pending_timeout
        return replace(state, unschedulable=is_stuck, detail=f"{state.detail}; {command} shows more")

    def process_cmdlines(self, unit: Unit) -> tuple[str, ...]:
        """See `Runtime.process_cmdlines`. Runs a shell in the pod, which has its own process table."""
        view = self._inspect(unit)[1] if unit.runtime_id else None
        if view is None or view.runs_since is None:
            return ()
        words = ("exec", view.name, "--container", CONTAINER, "--", "sh", "-c", _TITLES)
        done = self._replicas[unit.runtime_id].cluster.ask(*words)
        return tuple(line.strip() for line in done.stdout.splitlines() if line.strip()) if done.ok else ()

    def logs(self, unit: Unit, *, follow: bool) -> Iterator[str]:
        """See `Runtime.logs`. Follows across restarts; reads the saved log of a deleted server."""
        if not unit.runtime_id or self._inspect(unit)[0] is None:
            yield from saved_log(unit)
            return
        log = self._log(unit)
        yield from Lines(redacted(log.follow() if follow else log.so_far()))

    def tail(self, unit: Unit) -> Callable[[], Iterator[str]]:
        self._tails.append(self._log(unit))
        return self._tails[-1].tail

    def stop(self, unit: Unit, *, grace: float) -> None:
        """See `Runtime.stop`. Deletes the objects and waits until the pod has ended.

        Raises HostError if the pod's node does not report that.
        """
        self.stop_all([unit], grace=grace)

    def stop_all(self, units: Sequence[Unit], *, grace: float) -> None:
        for unit in units:
            keep_log(self._home, unit, partial(self._save_log, unit))
        self._end(units, grace=grace)

    def set_routable(self, unit: Unit, *, routable: bool) -> None:
        """See `Runtime.set_routable`. Adds or removes the label by which the gateway discovers the pod.

        A replacement pod has the label again, from its Deployment's template.
        """
        replica = self._replicas[unit.runtime_id]
        words = ("pods", "--selector", selector(unit.name, replica.unit_name))
        label = f"{ROLE}={role_label(replica.unit_name)}" if routable else f"{ROLE}-"

        def labeled() -> bool:  # a new Deployment has no pod yet, and a pod may be replaced meanwhile
            done = replica.cluster.ask("label", *words, label, "--overwrite")
            if not done.ok and "(NotFound)" in done.stderr:
                return False
            if not done.ok:
                raise replica.cluster.rejection(done)
            return bool(done.stdout.strip())

        appeared = poll_until(bool, labeled, timeout=_APPEARS, interval=_INTERVAL)
        self._seen.forget()
        if not appeared:
            deployment, detail = f"deployment/{deployment_name(unit.name, replica.unit_name)}", self.state(unit).detail
            hint = f"{replica.cluster.command_text('describe', deployment)} shows more"
            raise HostError(f"`{deployment}` has no pod after {_APPEARS:.0f} s: {detail}", hint=hint)

    def is_routable(self, unit: Unit) -> bool:
        view = self._inspect(unit)[1]
        return view is not None and ROLE in view.pod["metadata"]["labels"]

    def is_ready(self, unit: Unit) -> bool:
        return (view := self._inspect(unit)[1]) is not None and bool(view.container.get("ready"))  # by its probe

    def close(self) -> None:
        for replica in self._replicas.values():
            if replica.forward:
                replica.forward.close()
        for tail in self._tails:
            tail.close()

    def _servers(self, cluster: Cluster, items: list[Mapping[str, Any]] | HostError) -> list[Unit]:
        """Return the servers among a namespace's objects, with their states. Raises HostError."""
        if isinstance(items, HostError):
            raise items
        records = [item for item in items if item["kind"] == "Deployment" and is_record(_labels_of(item))]
        units = [self._unit(cluster, record) for record in records]
        listing = self._seen.keep(cluster, {unit.name for unit in units}, items)
        observed = (listing.of(unit, self._replicas[unit.runtime_id]) for unit in units)
        return [replace(unit, state=self._report(unit, *seen)) for unit, seen in zip(units, observed, strict=True)]

    def _inspect(self, unit: Unit) -> tuple[Mapping[str, Any] | None, PodView | None]:
        """Return the Deployment and the pod. Raises HostError if the cluster has not answered for too long."""
        replica = self._replicas[unit.runtime_id]
        return self._seen.current(unit.name, replica.cluster).of(unit, replica)

    def _log(self, unit: Unit) -> ServerLog:
        def probe() -> tuple[bool, PodView | None]:
            deployment, view = self._inspect(unit)
            return deployment is not None, view

        return ServerLog(self._replicas[unit.runtime_id].cluster, probe)

    def _save_log(self, unit: Unit, run_dir: Path) -> None:
        self._seen.forget()
        if (state := self.state(unit)).status is Status.UNKNOWN:
            raise HostError(state.detail)
        if self._inspect(unit)[0] is not None:
            atomic_write(run_dir / LOG, "".join(f"{line}\n" for line in self.logs(unit, follow=False)))

    def _end(self, units: Sequence[Unit], *, grace: float) -> None:
        """Delete units of one name. Raises HostError."""
        replicas = {unit.runtime_id: self._replicas[unit.runtime_id] for unit in units}
        unit_names = {identity: replica.unit_name for identity, replica in replicas.items()}
        try:
            Removal(replicas[units[0].runtime_id].cluster, units[0].name, unit_names).run(grace)
        finally:
            self._seen.forget()
            for unit in units:
                if forward := replicas[unit.runtime_id].forward:
                    forward.close()

    def _discard(self, replica: ReplicaRef, name: str, starter: str) -> None:
        """Delete the objects of a failed start. Only report an error, since the caller raises that of the start."""
        cluster, name_in_cluster = replica.cluster, deployment_name(name, replica.unit_name)
        try:
            deployment = cluster.json("get", "deployment", name_in_cluster, "--ignore-not-found")
            if deployment and deployment["metadata"].get("annotations", {}).get(STARTER) == starter:
                self._end([self._unit(cluster, deployment)], grace=1)
        except DeployError as error:
            selected = selector(name, replica.unit_name)
            hint = (
                f"{cluster.command_text('delete', f'deployments,{OF_REPLICAS}', '--selector', selected)} removes them"
            )
            warn(f"cannot remove the objects of `{name}`: {error}", hint=hint)

    def _unit(self, cluster: Cluster, deployment: Mapping[str, Any]) -> Unit:
        deployment_metadata = deployment["metadata"]
        text, identity = deployment_metadata["annotations"], str(deployment_metadata["uid"])
        replica = self._replicas.setdefault(identity, ReplicaRef(cluster, replica_of(deployment)))
        name, port = deployment_metadata["labels"][NAME], text[URL].rpartition(":")[2]
        return Unit(
            runtime="kubernetes",
            name=name,
            profile=text[PROFILE],
            plan_digest=text[PLAN],
            url=replica.forward.url if replica.forward else text[URL],
            run_dir=text.get(RUN_DIR) or str(self._home.runs / FileName(name) / "unknown"),
            runtime_id=identity,
            role=Role.GATEWAY if replica.unit_name == GATEWAY else role_of(replica.unit_name),
            service_url=text[URL],
            forward_command=quote(
                cluster.argv("port-forward", f"service/{object_name(name, replica.unit_name)}", port)
            ),
        )

    def _reached(self, unit: Unit) -> Unit:
        """Return the unit with a local URL that leads to the server while it runs."""
        replica = self._replicas[unit.runtime_id]
        if replica.forward is None:
            replica.forward = Forward(replica.cluster, int(unit.service_url.rpartition(":")[2]))
            self.state(unit)
        return replace(unit, url=replica.forward.url)


def known_namespaces(home: Home, name: str | None = None) -> tuple[Cluster, ...]:
    """Return the namespaces in which this home started servers, from the newest plan of each name.

    If this home knows the name, return only its namespace, since the clusters of other names may no longer exist.
    Without a name, omit the namespaces of servers that this home has stopped.
    """
    if name is not None and not SERVER_NAME.match(name):
        return ()
    recorded = runs_by_name(home)
    newest = (runs[0] for runs in ([recorded[name]] if name in recorded else recorded.values()) if runs)
    plans = (run.read_any("plan.json") for run in newest if name is not None or not (run.path / EXIT_FILE).is_file())
    sections = (plan["kubernetes"] for plan in plans if isinstance(plan.get("kubernetes"), dict))
    return tuple(
        sorted({Cluster(text.get("context") or "", text["namespace"]) for text in sections if "namespace" in text})
    )


def _labels_of(item: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels and annotations of an object."""
    item_metadata = item["metadata"]
    return {**item_metadata.get("annotations", {}), **item_metadata.get("labels", {})}
