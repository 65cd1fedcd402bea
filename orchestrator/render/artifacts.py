"""The artifacts of a plan: commands, environment variables and build context. Equal plans give equal artifacts."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from orchestrator.engine.disaggregation import gateway_words
from orchestrator.engine.gateway import (
    IMAGE_DIR,
    IN_IMAGE_PACKAGES,
    LAUNCHER,
    GatewayLaunch,
    PodDiscovery,
    gateway_argv,
)
from orchestrator.engine.launch import Launch, launch_argv
from orchestrator.plan.plan import NO_DETECTED_PATCHES, ContainerRequirements, DetectedPatches, Gateway, Plan
from orchestrator.plan.replicas import LOOPBACK
from orchestrator.plan.units import Role


@dataclass(frozen=True, kw_only=True)
class Command:
    """The argv of a server and its environment variables, sorted by name. Contains no secret."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    runs_in_home: bool  # whether it runs in the home directory of `deploy`
    script: tuple[str, ...] = ()  # shell lines before the command, for variables that depend on the host


@dataclass(frozen=True, kw_only=True)
class RenderedFile:
    """A rendered file; `path` is relative, with forward slashes."""

    path: str
    content: bytes
    executable: bool


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """A Dockerfile and the files that it copies, sorted by path."""

    files: tuple[RenderedFile, ...]
    missing_inputs: tuple[str, ...] = ()  # missing files of patches: a plain `docker build` fails

    @property
    def digest(self) -> str:
        """SHA-256 of paths, modes and contents, in hex; the image tag starts with it."""
        total = hashlib.sha256()
        for file in self.files:
            total.update(f"{file.path}\0{int(file.executable)}\0{len(file.content)}\0".encode())
            total.update(file.content)
        return total.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Artifacts:
    """The artifacts of one plan; `spec` is the input of the runtime, in the runtime's own type.

    With `command.runs_in_home`, the command runs in the home directory of `deploy`, with relative paths that are equal
    on every host. In a container, its paths are those inside the container.
    """

    plan: Plan
    command: Command
    build: BuildContext | None  # None if the runtime uses no image
    spec: object = None
    replicas: tuple["Artifacts", ...] = ()  # if not empty, `command` starts their gateway

    @property
    def first_server(self) -> "Artifacts":
        """The only server, or the first replica."""
        return self.replicas[0] if self.replicas else self

    @property
    def named_replicas(self) -> tuple[tuple[str, "Artifacts"], ...]:
        """The replicas, each with its name, which its folder also has; empty for a single server."""
        return tuple(zip(self.plan.server_names, self.replicas, strict=True)) if self.replicas else ()


def render_units(plan: Plan, server: Callable[[Plan], Artifacts], gateway: Callable[[Gateway], Artifacts]) -> Artifacts:
    """Render each unit of a plan: return its only server, or the gateway, which contains the replicas."""
    servers = tuple(map(server, plan.servers.values()))
    return servers[0] if plan.gateway is None else replace(gateway(plan.gateway), replicas=servers)


def server_command(
    plan: Plan,
    *,
    model_path: str,
    host: str,
    python: str = "python3",
    in_home: bool = False,
    detected: DetectedPatches = NO_DETECTED_PATCHES,
) -> Command:
    """Return the command that starts a server.

    The runtime chooses `model_path`, the bind address `host` and the interpreter `python`. The environment variables of
    the patches `detected` are added; variables of the plan take precedence.
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
        dp_option=plan.layout.dp_option,
        flags=tuple((flag.name, flag.values) for flag in plan.flags),
        nodes=plan.layout.nodes,
        rank_port=plan.rank_port,
    )
    env = {variable.name: variable.value for variable in (*detected.env, *plan.env)}
    return Command(argv=launch_argv(launch, python=python), env=tuple(sorted(env.items())), runs_in_home=in_home)


def gateway_command(
    plan: Plan,
    *,
    python: str = "python3",
    launcher: str = LAUNCHER,
    host: str | None = None,
    metrics_host: str | None = None,
    pods: PodDiscovery | None = None,
    in_image: bool = False,
) -> Command:
    """Return the command that starts the gateway of a plan, which routes to the replicas or to discovered `pods`.

    With `in_image`, the launcher and the gateway's packages are those of the plan's image. By default, the gateway
    serves metrics on the loopback interface only, because its metrics port needs no API key. Raises ValueError if the
    plan has no gateway.
    """
    if plan.gateway is None:
        raise ValueError(f"the plan of `{plan.profile}` has no gateway")
    launch = GatewayLaunch(
        host=host or plan.server.host,
        port=plan.server.port,
        metrics_host=metrics_host or LOOPBACK,
        metrics_port=plan.gateway.metrics_port,
        workers=_workers(plan),
        grace=plan.timeouts.termination_grace,
        options=[option.argv for option in plan.gateway.options],
        pods=pods,
    )
    launcher = f"{IMAGE_DIR}/{LAUNCHER}" if in_image else launcher
    env = (("PYTHONPATH", IN_IMAGE_PACKAGES),) if in_image else ()
    return Command(argv=gateway_argv(launch, python=python, launcher=launcher), env=env, runs_in_home=False)


def _workers(plan: Plan) -> tuple[str, ...]:
    """Return the gateway's options for its workers: equal servers, or the servers of each role."""
    servers = plan.servers.values()
    if not plan.roles:
        return ("--worker-urls", *(server.server.url for server in servers))
    ports = [port for role in plan.roles for port in role.bootstrap_ports]
    urls = {
        role: [server.server.url for server in servers if server.role is role] for role in (Role.PREFILL, Role.DECODE)
    }
    return tuple(gateway_words(zip(urls[Role.PREFILL], ports, strict=True), urls[Role.DECODE]))


def container_options(needs: ContainerRequirements, group: Callable[[str], str | None]) -> Iterator[tuple[str, str]]:
    """Yield the `docker run` options that a container needs on this hardware, as unquoted pairs of option and value.

    `group` returns the id of a group on the host by name, because docker would look the name up inside the image. If it
    returns None, the group owns no device on the host and is left out.
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
