"""Artifacts: text and bytes rendered from a plan. Equal plans give equal artifacts, on any machine."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchestrator.engine.gateway import LAUNCHER, GatewayLaunch, PodDiscovery, gateway_argv
from orchestrator.engine.launch import Launch, launch_argv
from orchestrator.plan.plan import NO_DETECTED_PATCHES, ContainerRequirements, DetectedPatches, Plan
from orchestrator.plan.replicas import LOOPBACK, replica_plans


@dataclass(frozen=True, kw_only=True)
class Command:
    """The server's argv and its own variables, sorted by name. Holds no secret."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    in_home: bool  # it runs in the tool's home directory
    script: tuple[str, ...] = ()  # lines of a shell script before it: variables that only the machine can fill


@dataclass(frozen=True, kw_only=True)
class RenderedFile:
    """One file of a build context; `path` is relative with forward slashes."""

    path: str
    content: bytes
    executable: bool


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """A Dockerfile with everything it copies, sorted by path."""

    files: tuple[RenderedFile, ...]

    @property
    def digest(self) -> str:
        """sha256 over names, modes and contents, hex; the image tag is its beginning."""
        total = hashlib.sha256()
        for file in self.files:
            total.update(f"{file.path}\0{int(file.executable)}\0{len(file.content)}\0".encode())
            total.update(file.content)
        return total.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Artifacts:
    """Everything rendered from one plan; `spec` is what its runtime starts the server from, in a type of its own.

    With `command.in_home` the command runs in the tool's home directory, so that its paths are relative and the same on
    every machine; in a container its paths are those inside.
    """

    plan: Plan
    command: Command
    build: BuildContext | None  # of the image, for a runtime that starts one
    spec: object = None
    replicas: tuple["Artifacts", ...] = ()  # of each of several servers, where `command` is that of their gateway


def server_command(
    plan: Plan,
    *,
    model_path: str,
    host: str,
    python: str = "python3",
    in_home: bool = False,
    found: DetectedPatches = NO_DETECTED_PATCHES,
) -> Command:
    """What is executed. Where the checkpoint lies, which address is bound and by what interpreter, its runtime says.

    The variables of `found` patches are added; one that the plan sets itself stays.
    """
    launch = Launch(
        model_path=model_path,
        served_name=plan.model.served_name,
        host=host,
        port=plan.server.port,
        tp=plan.layout.tp,
        dp=plan.layout.dp,
        ep=plan.layout.ep,
        dp_attention=plan.layout.dp_attention,
        flags=tuple((flag.name, flag.values) for flag in plan.flags),
    )
    env = {variable.name: variable.value for variable in (*found.env, *plan.env)}
    return Command(argv=launch_argv(launch, python=python), env=tuple(sorted(env.items())), in_home=in_home)


def gateway_command(
    plan: Plan,
    *,
    python: str = "python3",
    launcher: str = LAUNCHER,
    host: str | None = None,
    metrics_host: str | None = None,
    pods: PodDiscovery | None = None,
) -> Command:
    """What is executed before several servers, or before the `pods` it finds; for a plan that has a gateway.

    Its own counters are for its machine alone, where no `metrics_host` is given: it asks for no key to them.
    """
    if plan.gateway is None:
        raise ValueError(f"the plan of `{plan.profile}` has no gateway")
    launch = GatewayLaunch(
        host=host or plan.server.host,
        port=plan.server.port,
        metrics_host=metrics_host or LOOPBACK,
        metrics_port=plan.gateway.metrics_port,
        servers=[replica.server.url for replica in replica_plans(plan)],
        grace=plan.timeouts.termination_grace,
        options=[option.argv for option in plan.gateway.options],
        pods=pods,
    )
    return Command(argv=gateway_argv(launch, python=python, launcher=launcher), env=(), in_home=False)


def needs_options(needs: ContainerRequirements, group: Callable[[str], str | None]) -> Iterator[tuple[str, str]]:
    """What a container on this hardware is given, as options of `docker run` for servers and for the tuner, not quoted.

    `group` gives the id of a group by its name: docker looks a name up inside the image, which need not know it. A
    group without one owns no device there, and is left out.
    """
    for device in needs.devices:
        yield "--device", device
    if needs.all_gpus:
        yield "--gpus", "all"
    for name in needs.groups:
        if (number := name if name.isdigit() else group(name)) is not None:
            yield "--group-add", number
    if needs.ipc is not None:
        yield "--ipc", needs.ipc
    if needs.shm_bytes is not None:
        yield "--shm-size", str(needs.shm_bytes)
    for limit in needs.ulimits:
        yield "--ulimit", f"{limit.name}={limit.soft}:{limit.hard}"
    for option in needs.security_opt:
        yield "--security-opt", option
    for capability in needs.cap_add:
        yield "--cap-add", capability
