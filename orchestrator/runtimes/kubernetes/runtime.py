"""Servers in Kubernetes clusters. What runs is recorded on the objects, as labels and annotations."""

import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any, Final

from orchestrator.core.console import note, warn
from orchestrator.core.errors import DeployError, HostError, NameTakenError, StartError
from orchestrator.core.files import read_own, write_whole
from orchestrator.core.log_lines import Lines, LogTail, redacted
from orchestrator.core.paths import Home
from orchestrator.core.secret import Secret
from orchestrator.core.shell import ProgramResult, quote
from orchestrator.core.signals import held
from orchestrator.core.text import printable
from orchestrator.core.waiting import look_until
from orchestrator.engine import delivery
from orchestrator.plan import NAME as SERVER_NAME
from orchestrator.render import Artifacts
from orchestrator.runtimes.base import ENDING, LOG, Handle, ServerState, Status, UnansweredError, since_then
from orchestrator.runtimes.kubernetes.files import image_of_pods
from orchestrator.runtimes.kubernetes.forward import Forward
from orchestrator.runtimes.kubernetes.kubectl import Cluster, ask_each
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
from orchestrator.runtimes.kubernetes.record import NAME, PLAN, PROFILE, RUN_DIR, STARTER, URL, object_name
from orchestrator.runtimes.kubernetes.sightings import Sightings, warnings_of
from orchestrator.runtimes.kubernetes.staging import staging_job
from orchestrator.runtimes.kubernetes.state import PodView, has_started, is_over, server_state, trouble

# What a start makes beside the Deployment; a claim is none of it: nobody's weights are deleted.
_KINDS: Final = "services,networkpolicies,poddisruptionbudgets,secrets,jobs"
_PAUSE: Final = 0.5
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
_OURS: Final = "app.kubernetes.io/managed-by=deploy"


class KubernetesRuntime:
    """The `kubernetes` runtime, in the namespaces that the run directories of this home name."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._places: dict[str, Cluster] = {}  # by the identity of a server
        self._forwards: dict[str, Forward] = {}
        self._tails: list[ServerLog] = []
        self._seen = Sightings()
        self._stuck_since: dict[str, float] = {}
        self._patience: dict[str, float] = {}

    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Handle:
        """See `Runtime.start`. What was made is deleted before an error leaves.

        The Deployment is made first, and made rather than applied: of two starts of a name the API server lets one win.
        Its pod comes last, when everything that it mounts is there.
        """
        plan, settings = artifacts.plan, cluster_of(artifacts.plan)
        cluster = Cluster(settings.context or "", settings.namespace)
        *others, deployment = self._objects(cluster, artifacts, name, secrets)
        start = {RUN_DIR: str(run_dir.absolute()), STARTER: f"{socket.gethostname()}/{uuid.uuid4()}"}
        for each in (*others, deployment):
            each["metadata"]["annotations"] |= start
        try:
            with held():  # a request that was sent cannot be taken back
                made = self._made(cluster, {**deployment, "spec": {**deployment["spec"], "replicas": 0}}, name)
            _require_taken(cluster.apply(others))
            _require_taken(cluster.change(deployment, {"spec": {"replicas": deployment["spec"]["replicas"]}}))
        except BaseException:  # Ctrl-C, above all: nobody would know of these objects
            self._discard(cluster, name, start[STARTER])
            raise
        handle = self._handle(cluster, made)
        self._patience[handle.identity] = settings.patience
        self._forwards[handle.identity] = forward = Forward(cluster, plan.server.port)
        return replace(handle, url=forward.url)

    def find(self, name: str | None = None) -> tuple[Handle, ...]:
        """See `Runtime.find`. One that is asked for by name is reached from here; others by their Service alone."""
        places = known_places(self._home, name)
        selected = ",".join((f"{NAME}={name}" if name else NAME, _OURS))
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
        deployment, view = self._look(handle)
        state = server_state(deployment, view)
        forward = self._forwards.get(handle.identity)
        if view is not None and view.runs_since and forward and self._seen.answers(self._places[handle.identity]):
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
        yield from Lines(redacted(log.follow() if follow else log.so_far()))

    def tail(self, handle: Handle) -> Callable[[], Iterator[str]]:
        """See `Runtime.tail`."""
        self._tails.append(self._log(handle))
        return self._tails[-1].tail

    def stop(self, handle: Handle, *, grace: float) -> None:
        """See `Runtime.stop`. Raises HostError for a pod whose node does not say that it has ended."""
        cluster = self._places[handle.identity]
        self._keep_log(handle)
        self._stop(cluster, handle, grace)

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

    def _made(self, cluster: Cluster, deployment: Manifest, name: str) -> Mapping[str, Any]:
        """The Deployment as it was made. Raises NameTakenError, or StartError for a refusal."""
        done = cluster.create(deployment)
        if done.ok:
            made: Mapping[str, Any] = json.loads(done.stdout)
            return made
        if "AlreadyExists" not in done.stderr:
            _require_taken(done)
        found = cluster.json("get", "deployment", object_name(name), "--ignore-not-found")
        raise NameTakenError(
            f"`{name}` exists in namespace `{cluster.namespace}`{holder(found.get('metadata', {}))}",
            hint=f"another `--name`; {cluster.shown('get', 'deployment', object_name(name))} shows it",
        )

    def _servers(
        self, cluster: Cluster, answer: Mapping[str, Any] | HostError, *, named: bool
    ) -> list[Handle] | HostError:
        """The servers in what a namespace has answered; or why it has not."""
        if isinstance(answer, HostError):
            return answer
        items = answer["items"]
        records = [each for each in items if each["kind"] == "Deployment" and is_record(each["metadata"])]
        handles = [self._handle(cluster, each) for each in records]
        wait = any(PodView(pod=each).placed for each in items if each["kind"] == "Pod")
        try:
            warnings = warnings_of(cluster) if wait and not named else None  # of all at once
            for handle in handles:
                self._seen.keep(handle, cluster, items, warnings)
        except HostError as error:
            return error
        return handles

    def _look(self, handle: Handle) -> tuple[Mapping[str, Any] | None, PodView | None]:
        """The Deployment and the pod. Raises HostError for a cluster that has not answered for too long."""
        seen = self._seen.of(handle, self._places[handle.identity])
        return seen.deployment, seen.view

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
            self._seen.forget(handle)
            if self._look(handle)[0] is not None:
                write_whole(run_dir / LOG, "".join(f"{line}\n" for line in self.logs(handle, follow=False)))
        except (DeployError, OSError) as error:
            warn(f"the log is not kept: {error}")

    def _stop(self, cluster: Cluster, handle: Handle, grace: float) -> None:
        """Delete every object of a server, and await its pods' end. Raises HostError.

        Its Deployment goes last: the name is free from then on. What has another's by now is left alone.
        """
        selected = ("--selector", f"{NAME}={handle.name},{_OURS}")
        told: set[str] = set()
        began = time.monotonic()

        def delete(*words: str) -> None:
            if not (done := cluster.ask("delete", *words, "--ignore-not-found", "--wait=false")).ok:
                raise cluster.refused(done)

        def end(*objects: str) -> None:
            """With what is to go in `grace` seconds: whoever else deletes a pod gives it the time that it asks for."""
            delete(*objects, f"--grace-period={max(int(grace), 1)}")
            told.update(objects)

        def seen() -> tuple[bool, list[Mapping[str, Any]]]:
            items = cluster.json("get", "deployments,pods", *selected)["items"]
            theirs = any(each["kind"] == "Deployment" and each["metadata"]["uid"] != handle.identity for each in items)
            pods = (each for each in items if each["kind"] == "Pod")
            return theirs, [pod for pod in pods if not theirs or _named(pod) in told]

        def running() -> list[Mapping[str, Any]]:
            pods = seen()[1]
            if new := {_named(pod) for pod in pods} - told:
                end(*sorted(new))
            late = time.monotonic() - began > grace + _UNSTARTED
            return [pod for pod in pods if not (is_over(pod) or (late and not has_started(pod)))]

        theirs, pods = seen()
        if not theirs:
            delete(_KINDS, *selected)
            end(f"deployment/{object_name(handle.name)}", *(_named(pod) for pod in pods))  # its end would be theirs
        left = look_until(lambda found: not found, running, within=grace + _LATE, pause=_PAUSE)
        self._forget(handle)
        if left:
            pod, node = left[0]["metadata"]["name"], left[0]["spec"].get("nodeName", "no node")
            force = cluster.shown("delete", "pod", pod, "--force", "--grace-period=0")
            raise HostError(
                f"pod `{pod}` is deleted, and {node} does not say that it has ended",
                hint=f"where that node is gone for good: {force}",
            )

    def _discard(self, cluster: Cluster, name: str, starter: str) -> None:
        """Delete what a start has made; where that fails, say so: the error to raise is the start's own."""
        try:
            found = cluster.json("get", "deployment", object_name(name), "--ignore-not-found")
            if found and found["metadata"].get("annotations", {}).get(STARTER) == starter:
                self._stop(cluster, self._handle(cluster, found), 1)
        except DeployError as error:
            hint = f"{cluster.shown('delete', f'deployments,{_KINDS}', '--selector', f'{NAME}={name}')} removes them"
            warn(f"objects of `{name}` may be left: {error}", hint=hint)

    def _handle(self, cluster: Cluster, deployment: Mapping[str, Any]) -> Handle:
        about = deployment["metadata"]
        said, identity = about["annotations"], str(about["uid"])
        self._places[identity] = cluster
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
            forward=quote(cluster.argv("port-forward", f"service/{object_name(name)}", port)),
        )

    def _reached(self, handle: Handle) -> Handle:
        """With a local port that leads to the server, where it runs."""
        if handle.identity not in self._forwards:
            port = int(handle.service.rpartition(":")[2])
            self._forwards[handle.identity] = Forward(self._places[handle.identity], port)
            self.state(handle)
        return replace(handle, url=self._forwards[handle.identity].url)

    def _forget(self, handle: Handle) -> None:
        self._seen.forget(handle)
        if forward := self._forwards.get(handle.identity):
            forward.close()


def holder(about: Mapping[str, Any]) -> str:
    """Who started the server that these metadata are of, as far as they tell."""
    host = about.get("annotations", {}).get(STARTER, "").partition("/")[0]
    since = about.get("creationTimestamp")
    return f": started from {printable(host)} at {since}" if host and since else ""


def known_places(home: Home, name: str | None = None) -> tuple[Cluster, ...]:
    """The namespaces in which servers were started from a home, by the newest plan of each name.

    Of a name that this home knows it is its own alone: another cluster may be gone. For a list of all, those of servers
    that were stopped from here are not asked.
    """
    found = set()
    own = home.runs / (name or "")
    folders = [own] if name and own.is_dir() else home.runs.glob("*") if home.runs.is_dir() else ()
    for folder in folders:
        newest_run = max((path for path in folder.glob("*-*") if path.is_dir()), default=None)
        if newest_run is None or newest_run.is_symlink() or (name is None and (newest_run / ENDING).is_file()):
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


def _named(pod: Mapping[str, Any]) -> str:
    """A pod as kubectl takes it among other objects."""
    return f"pod/{pod['metadata']['name']}"


def _run(view: PodView) -> str:
    """What tells one run of a server from another."""
    return f"{view.name}/{view.runs_since}"


def _require_taken(applied: ProgramResult) -> None:
    if not applied.ok:
        said = "\n".join(f"  {line}" for line in applied.stderr.strip().splitlines())
        raise StartError("the cluster does not take the server", details=said)
