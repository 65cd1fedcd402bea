"""The spec of a container, and the equivalent `docker run` command."""

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from orchestrator.checkpoints.overlay import overlay_path
from orchestrator.core.errors import StartError
from orchestrator.core.logs.rotation import MAX_SEGMENTS, SEGMENT_BYTES
from orchestrator.engine.launch import HOST_ADDRESS, key_file_words, rank_argv
from orchestrator.hosts.head_address import RankNetwork
from orchestrator.plan.networks import ranks_use_rdma, transfer_uses_rdma
from orchestrator.plan.plan import NO_DETECTED_PATCHES, ContainerRequirements, DetectedPatches, Plan, Ulimit
from orchestrator.plan.units import Role
from orchestrator.render.artifacts import (
    Artifacts,
    BuildContext,
    RenderedFile,
    container_options,
    gateway_command,
    render_units,
    server_command,
)
from orchestrator.render.scripts import SHELL_HOME, per_node, script_file, wrap_argv
from orchestrator.runtimes.labels import NAME, RUN_DIR, UNIT, record_of

_GLOO_INTERFACE: Final = "GLOO_SOCKET_IFNAME"
LOG_DRIVER: Final = "json-file"  # Docker's default; it keeps an unlimited log, and rotated files are read as one
LOG_OPTIONS: Final = {"max-size": f"{SEGMENT_BYTES >> 20}m", "max-file": str(MAX_SEGMENTS)}
MAX_RESTARTS: Final = 3  # a server that dies a fourth time has a cause that a restart does not fix
CONFIG_FILE: Final = "/run/secrets/deploy.yaml"  # sglang's `--config` file, which holds the API key

_RUN_DIR_LINE: Final = 'RUN_DIR="$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)"'

_NOTHING: Final = ContainerRequirements(
    devices=(), all_gpus=False, groups=(), ipc=None, shm_bytes=None, ulimits=(), security_opt=(), cap_add=()
)
_LOCKED: Final = Ulimit(name="memlock", soft=-1, hard=-1)
# Caches of compiled kernels at their default paths, by compiler: tvm-ffi and hub metadata, and triton; see
# `engine/kernel_caches.py`. Beside aiter's own folder there are its templates, FlyDSL and MIOpen's database.
_CACHED: Final = {"jit": "/root/.cache", "triton": "/root/.triton"}
_CACHED_ROCM: Final = {"flydsl": "/root/.flydsl", "miopen": "/root/.config/miopen", "templates": "/root/.aiter"}


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A bind mount. `source` is absolute, or relative to the tool's home on the host of the container."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, kw_only=True)
class CacheVolume:
    """A named volume that outlives the container.

    At its first use Docker fills it from the image's `target` directory.
    """

    name: str
    target: str


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """The input of `docker run`, apart from name, command and environment."""

    image: str
    needs: ContainerRequirements
    stop_grace: int  # seconds
    mounts: tuple[Mount, ...] = ()
    caches: tuple[CacheVolume, ...] = ()
    publish: tuple[str, int] | None = None  # address on the host, and port; None: host network
    restarts: int = MAX_RESTARTS  # restarts after a failure
    rank_hosts: tuple[str, ...] = ()  # ssh URLs of the hosts of ranks 1, 2, …; the same container starts on each
    network: RankNetwork | None = None  # between these hosts


def render(
    plan: Plan, build: BuildContext | None, image: str, detected: DetectedPatches = NO_DETECTED_PATCHES
) -> Artifacts:
    """Return the artifacts of a plan. A container listens on all its addresses; publishing selects the host's address.

    Replicas are published on loopback only. The servers of roles and the ranks of several nodes use the host's network,
    because their transfers choose ports, and so does the gateway. The gateway runs from the same image, so a host needs
    only Docker.
    """

    def server(item: Plan) -> Artifacts:
        host = "0.0.0.0" if _publishes(item) else item.server.host  # noqa: S104
        command = server_command(item, model_path=container_model(item), host=host, detected=detected)
        return Artifacts(plan=item, command=command, build=None, spec=container_spec(item, image, detected))

    return replace(render_units(plan, server, lambda _: _gateway(plan, image)), build=build)


def _gateway(plan: Plan, image: str) -> Artifacts:
    spec = ContainerSpec(image=image, needs=_NOTHING, stop_grace=plan.timeouts.termination_grace)
    return Artifacts(plan=plan, command=gateway_command(plan, in_image=True), build=None, spec=spec)


def spec_of(artifacts: Artifacts) -> ContainerSpec:
    """Return the container spec of artifacts. Raises StartError if they were not rendered for docker."""
    if not isinstance(artifacts.spec, ContainerSpec):
        message = f"the plan of `{artifacts.plan.profile}` is not for the docker runtime"
        raise StartError(message, hint="use `--runtime docker`")
    return artifacts.spec


def ranked(artifacts: Artifacts, rank: int) -> Artifacts:
    """Return the artifacts of one rank of a server; on a single node, they are unchanged.

    Without an interface, Gloo gives other ranks the address of the host's own name (torch 2.13, `createDefaultDevice`
    of ProcessGroupGloo.cpp), which is 127.0.1.1 on Debian.
    """
    if (network := spec_of(artifacts).network) is None:
        return artifacts
    argv = rank_argv(artifacts.command.argv, rank=rank, head=network.address)
    address, interface = network.interfaces[rank]
    variables = {HOST_ADDRESS: address, _GLOO_INTERFACE: interface}
    # The plan's values take precedence.
    env = {name: value for name, value in variables.items() if value} | dict(artifacts.command.env)
    return replace(artifacts, command=replace(artifacts.command, argv=argv, env=tuple(env.items())))


def docker_run_files(artifacts: Artifacts, name: str) -> tuple[RenderedFile, ...]:
    """Return `docker-run.sh`, the `docker run` command as a script; with replicas, one each and one for the gateway."""
    servers = (*artifacts.named_replicas, ("", artifacts))
    head = f"#!/bin/sh\nset -eu\nDEPLOY_HOME={SHELL_HOME}\n{_RUN_DIR_LINE}\n"
    return tuple(
        script_file(str(PurePosixPath(folder, "docker-run.sh")), per_node(head + docker_run_line(server, name, folder)))
        for folder, server in servers
    )


def container_spec(plan: Plan, image: str, detected: DetectedPatches = NO_DETECTED_PATCHES) -> ContainerSpec:
    """Return the spec of a plan's container: hardware needs, read-only checkpoint, caches of this image and GPU.

    Docker does not restart a rank: ranks on several nodes must start together, after all of them have exited.
    """
    return ContainerSpec(
        image=image,
        needs=_needs_of(plan),
        mounts=_mounts(plan, detected),
        caches=_caches(plan, image),
        publish=(plan.server.host, plan.server.port) if _publishes(plan) else None,
        restarts=MAX_RESTARTS if plan.layout.nodes == 1 else 0,
        stop_grace=plan.timeouts.termination_grace,
    )


def _publishes(plan: Plan) -> bool:
    return plan.role is Role.SERVER and plan.layout.nodes == 1


def _needs_of(plan: Plan) -> ContainerRequirements:
    """Return the hardware's container options; for transfers by RDMA, with devices and locked memory.

    A NIC locks its queues and buffers in memory, of which Docker allows 64 KiB to 8 MiB.
    """
    needs = plan.hardware.container
    ranks = plan.layout.nodes > 1 and ranks_use_rdma(plan)
    if not ranks and (plan.role is Role.SERVER or not transfer_uses_rdma(plan)):
        return needs
    sets_memlock = any(limit.name == _LOCKED.name for limit in needs.ulimits)
    limits = needs.ulimits if sets_memlock else (*needs.ulimits, _LOCKED)
    return replace(needs, devices=(*needs.devices, "/dev/infiniband"), ulimits=limits)


def container_name(name: str, unit_name: str) -> str:
    """Return the container name of the server `name`, with a prefix to avoid conflicts with other containers.

    `unit_name` names a replica. It follows two dashes, which no server name contains.
    """
    return f"deploy-{name}--{unit_name}" if unit_name else f"deploy-{name}"


def container_labels(plan: Plan, name: str, unit_name: str = "") -> dict[str, str]:
    """Return the record of a server as labels: on the container, it cannot be separated from the server."""
    return ({UNIT: unit_name} if unit_name else {}) | {NAME: name} | record_of(plan, plan.server.url)


def container_env(artifacts: Artifacts) -> tuple[tuple[str, str], ...]:
    """Return the server's variables, and PYTHONUNBUFFERED, so that Python writes each log line immediately."""
    return tuple(sorted({"PYTHONUNBUFFERED": "1", **dict(artifacts.command.env)}.items()))


def container_model(plan: Plan) -> str:
    """Return the path of the checkpoint in a container."""
    return f"/models/{plan.model.name}"


def container_argv(artifacts: Artifacts, *, config: bool) -> tuple[str, ...]:
    """Return the command of the container: wait for free VRAM, then run the server.

    `config` adds its `--config` file.
    """
    plan = artifacts.plan
    argv = artifacts.command.argv + (key_file_words(CONFIG_FILE) if config else ())
    if plan.hardware.vendor == "cpu" or plan.gateway is not None:
        return argv
    return ("sh", "-c", vram_script(plan.gpus), "sh", *argv)


def vram_script(gpus: range, *, drm: str = "/sys/class/drm", interval: int = 5) -> str:
    """Return a script that waits until each of the `gpus` has at most 10 % of its VRAM in use, then runs "$@".

    Docker restarts a dead server immediately, but the driver takes minutes to release its VRAM. The share and the limit
    of 900 s are the same as before a start (`hosts/vram.py`). After the limit, the script starts the server anyway.
    """
    lines = f"sed -n {gpus[0] + 1},{gpus[-1] + 1}p"  # with a step, the GPUs in between are included
    return f"""\
used() {{
  for d in {drm}/card[0-9]*/device; do
    [ ! -r "$d/mem_info_vram_used" ] || echo $(cat "$d/mem_info_vram_used" "$d/mem_info_vram_total")
  done
  nvidia-smi --query-gpu=memory.used,memory.total --format=csv,noheader,nounits 2>/dev/null | tr , " "
}}
busy() {{ used | {lines} | while read -r used total; do [ $((used * 10)) -le "$total" ] || echo busy; done; }}
end=$(($(date +%s) + 900))
while [ -n "$(busy)" ] && [ "$(date +%s)" -lt $end ]; do
  echo "deploy: waiting for the VRAM of the run before to drain"
  sleep {interval}
done
exec "$@"
"""


def docker_run_line(artifacts: Artifacts, name: str, unit_name: str = "") -> str:
    """Return the `docker run` command for the same server, one option per line. Equal plans give equal text.

    The shell fills in the values that differ between hosts: the tool's home directory, the ids of groups, and the file
    that holds `api-key: ...`.
    """
    spec = spec_of(artifacts)
    lines = [f"docker run --detach --init --name {shlex.quote(container_name(name, unit_name))}"]
    lines += [
        f"{option} {value}"
        for option, value in _options(artifacts, spec, container_labels(artifacts.plan, name, unit_name))
    ]
    argv = container_argv(artifacts, config=artifacts.plan.server.api_key_env is not None)
    return " \\\n  ".join([*lines, shlex.quote(spec.image), wrap_argv(argv)]) + "\n"


def _mounts(plan: Plan, detected: DetectedPatches) -> tuple[Mount, ...]:
    model, target = plan.model, container_model(plan)
    source = model.checkpoint.path if model.checkpoint.source == "local" else f"models/{model.name}"
    mounts = [Mount(source=source, target=target, read_only=True)]
    if overlay := overlay_path(plan, detected):
        mounts.append(Mount(source=overlay, target=f"{target}/config.json", read_only=True))
    return tuple(mounts)


def _caches(plan: Plan, image: str) -> tuple[CacheVolume, ...]:
    """Return one volume set per image and gfx: kernels of another are stale or, if truncated, fatal (aiter#4799)."""
    if plan.hardware.gpus == 0:
        return ()
    key = f"{hashlib.sha256(image.encode()).hexdigest()[:12]}-{plan.hardware.arch}"
    targets = dict(_CACHED)
    if plan.engine.aiter_dir:
        targets |= {**_CACHED_ROCM, "aiter": f"{plan.engine.aiter_dir}/aiter/jit"}
    return tuple(CacheVolume(name=f"deploy-cache-{key}-{kind}", target=at) for kind, at in sorted(targets.items()))


def _options(artifacts: Artifacts, spec: ContainerSpec, labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield every option with its value, quoted for a POSIX shell."""
    for label, text in sorted(labels.items()):
        yield "--label", shlex.quote(f"{label}={text}")
    yield "--label", f'{RUN_DIR}="$RUN_DIR"'
    yield from _needs(spec)
    yield "--restart", f"on-failure:{spec.restarts}" if spec.restarts else "no"  # `on-failure:0` has no limit
    yield "--stop-timeout", str(spec.stop_grace)
    yield "--log-driver", LOG_DRIVER
    for limit, most in LOG_OPTIONS.items():
        yield "--log-opt", f"{limit}={most}"
    if spec.publish is None:
        yield "--network", "host"
    else:
        host, port = spec.publish
        yield "--publish", shlex.quote(f"{f'[{host}]' if ':' in host else host}:{port}:{port}")
    for mount in spec.mounts:
        yield "--mount", _bind(mount)
    for cache in spec.caches:
        yield "--mount", shlex.quote(f"type=volume,{_field('source', cache.name)},{_field('target', cache.target)}")
    if artifacts.plan.server.api_key_env:
        yield "--mount", f'type=bind,source="$API_KEY_FILE",target={CONFIG_FILE},readonly'
    for variable, text in container_env(artifacts):
        yield "--env", shlex.quote(f"{variable}={text}")


def _bind(mount: Mount) -> str:
    """Return a quoted bind mount. A relative source is below the tool's home on the host that runs the command."""
    target = f"{_field('target', mount.target)}{',readonly' if mount.read_only else ''}"
    if mount.source.startswith("/"):
        return shlex.quote(f"type=bind,{_field('source', mount.source)},{target}")
    return f'type=bind,source="$DEPLOY_HOME"/{shlex.quote(f"{mount.source},{target}")}'


def _field(name: str, value: str) -> str:
    """Return one field of `--mount`, which docker parses as CSV."""
    text = f"{name}={value}"
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') else text


def _needs(spec: ContainerSpec) -> Iterator[tuple[str, str]]:
    """Yield the options for the hardware. The shell that runs the command looks up the ids of groups."""
    for option, value in container_options(spec.needs, lambda name: name):
        by_name = option == "--group-add" and not value.isdigit()
        yield option, f'"$(getent group {shlex.quote(value)} | cut -d: -f3)"' if by_name else shlex.quote(value)
