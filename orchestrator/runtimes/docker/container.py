"""What a container is given, and the `docker run` line that would do the same."""

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.checkpoints.overlay import overlay_path
from orchestrator.core.errors import StartError
from orchestrator.core.logs.rotation import MAX_SEGMENTS, SEGMENT_BYTES
from orchestrator.engine.gateway import IMAGE_DIR, IN_IMAGE_PACKAGES, LAUNCHER
from orchestrator.plan.plan import NO_DETECTED_PATCHES, ContainerRequirements, DetectedPatches, Plan
from orchestrator.plan.replicas import replica_plans
from orchestrator.render.artifacts import (
    Artifacts,
    BuildContext,
    RenderedFile,
    gateway_command,
    needs_options,
    server_command,
)
from orchestrator.render.scripts import SHELL_HOME, replica_folder, script_file, wrap_argv
from orchestrator.runtimes.labels import NAME, PART, RUN_DIR, record_of

LOG_DRIVER: Final = "json-file"  # Docker's own default, which keeps a log without bound; read whole over its files
LOG_OPTIONS: Final = {"max-size": f"{SEGMENT_BYTES >> 20}m", "max-file": str(MAX_SEGMENTS)}
MAX_RESTARTS: Final = 3  # a server that dies a fourth time has a cause that one more start does not mend
CONFIG_FILE: Final = "/run/secrets/deploy.yaml"  # sglang's `--config` file, which holds the API key

_HERE: Final = 'RUN_DIR="$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)"'

_NOTHING: Final = ContainerRequirements(
    devices=(), all_gpus=False, groups=(), ipc=None, shm_bytes=None, ulimits=(), security_opt=(), cap_add=()
)
# Compiled kernels, by what compiles them: tvm-ffi and hub metadata, and triton, where they write by default.
_CACHED: Final = {"jit": "/root/.cache", "triton": "/root/.triton"}


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A bind mount. `source` is absolute, or relative to the tool's home directory of the machine it runs on."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, kw_only=True)
class CacheVolume:
    """A named volume that outlives the container, filled at its first use from what the image holds at `target`."""

    name: str
    target: str


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """What `docker run` is given, apart from name, command and environment."""

    image: str
    needs: ContainerRequirements
    mounts: tuple[Mount, ...]
    caches: tuple[CacheVolume, ...]
    publish: tuple[str, int, int] | None  # host address, host port, container port; None: the host's own network
    restarts: int  # how often a server that died is started again
    stop_grace: int  # seconds


def render(
    plan: Plan, build: BuildContext | None, image: str, found: DetectedPatches = NO_DETECTED_PATCHES
) -> Artifacts:
    """A container listens on all its addresses: which of the host's it is reached by is decided when publishing.

    Several servers are published on loopback alone, where their gateway, in the host's network, finds them: it runs
    from their image, which has it. So whoever has Docker needs nothing else, on a far host too.
    """
    if plan.gateway is not None:
        return _several(plan, build, image, found)
    command = server_command(plan, model_path=container_model(plan), host="0.0.0.0", found=found)  # noqa: S104
    return Artifacts(plan=plan, command=command, build=build, spec=container_spec(plan, image, found))


def _several(plan: Plan, build: BuildContext | None, image: str, found: DetectedPatches) -> Artifacts:
    gateway = ContainerSpec(
        image=image,
        needs=_NOTHING,
        mounts=(),
        caches=(),
        publish=None,
        restarts=MAX_RESTARTS,
        stop_grace=plan.timeouts.termination_grace,
    )
    command = replace(
        gateway_command(plan, launcher=f"{IMAGE_DIR}/{LAUNCHER}"), env=(("PYTHONPATH", IN_IMAGE_PACKAGES),)
    )
    servers = tuple(render(each, None, image, found) for each in replica_plans(plan))
    return Artifacts(plan=plan, command=command, build=build, spec=gateway, replicas=servers)


def spec_of(artifacts: Artifacts) -> ContainerSpec:
    """The container of artifacts that were rendered for docker. Raises StartError for others."""
    if not isinstance(artifacts.spec, ContainerSpec):
        raise StartError(f"the plan of `{artifacts.plan.profile}` is not for docker")
    return artifacts.spec


def docker_run_files(artifacts: Artifacts, name: str) -> Iterator[RenderedFile]:
    """`docker-run.sh`: the `docker run` line as a script; of several servers, one for each and for their gateway."""
    for number, server in enumerate(artifacts.replicas, start=1):
        folder = replica_folder(number)
        yield _script(f"{folder}/docker-run.sh", docker_run_line(server, name, folder))
    yield _script("docker-run.sh", docker_run_line(artifacts, name))


def _script(path: str, line: str) -> RenderedFile:
    return script_file(path, f"#!/bin/sh\nset -eu\nDEPLOY_HOME={SHELL_HOME}\n{_HERE}\n{line}")


def container_spec(plan: Plan, image: str, found: DetectedPatches = NO_DETECTED_PATCHES) -> ContainerSpec:
    """The container of a plan: what its hardware needs, the checkpoint read-only, the caches of this image and GPU."""
    return ContainerSpec(
        image=image,
        needs=plan.hardware.container,
        mounts=_mounts(plan, found),
        caches=_caches(plan, image),
        publish=(plan.server.host, plan.server.port, plan.server.port),
        restarts=MAX_RESTARTS,
        stop_grace=plan.timeouts.termination_grace,
    )


def container_name(name: str, part: str = "") -> str:
    """The container of the server `name`: prefixed, so that it does not meet a container of somebody else.

    A `part` is one of several servers; no name of a server has two dashes in it.
    """
    return f"deploy-{name}--{part}" if part else f"deploy-{name}"


def container_labels(plan: Plan, name: str, part: str = "") -> dict[str, str]:
    """The record of a server, kept where it cannot come apart from the server: on the container."""
    return ({PART: part} if part else {}) | {NAME: name} | record_of(plan, plan.server.url)


def container_env(artifacts: Artifacts) -> tuple[tuple[str, str], ...]:
    """The server's variables, and the one that makes Python write its log line by line where there is no terminal."""
    return tuple(sorted({"PYTHONUNBUFFERED": "1", **dict(artifacts.command.env)}.items()))


def container_model(plan: Plan) -> str:
    """Where a container finds the checkpoint."""
    return f"/models/{plan.model.name}"


def container_argv(artifacts: Artifacts, *, config: bool) -> tuple[str, ...]:
    """What the container runs: the server, with `config` given its `--config` file, once the VRAM it needs is free."""
    plan = artifacts.plan
    argv = artifacts.command.argv + (("--config", CONFIG_FILE) if config else ())
    return (
        argv
        if plan.hardware.vendor == "cpu" or plan.gateway is not None
        else ("sh", "-c", vram_script(plan.gpus), "sh", *argv)
    )


def vram_script(gpus: range, *, drm: str = "/sys/class/drm", pause: int = 5) -> str:
    """A script that waits until each of the `gpus` has at most 10 % of its VRAM in use, then runs "$@".

    Docker starts a server that died again at once, while the driver takes minutes to give back what it held. The share
    and the limit of 900 s are those of a start (`hosts/vram.py`); then the server is started all the same.
    """
    lines = f"sed -n {gpus[0] + 1},{gpus[-1] + 1}p"  # with a step, those in between count as well
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
  sleep {pause}
done
exec "$@"
"""


def docker_run_line(artifacts: Artifacts, name: str, part: str = "") -> str:
    """The `docker run` command that starts the same server, one option a line; the same text for the same plan.

    What differs between machines is left to the shell: the tool's home directory, the ids of groups, and the file that
    holds `api-key: ...`.
    """
    spec = spec_of(artifacts)
    lines = [f"docker run --detach --init --name {shlex.quote(container_name(name, part))}"]
    lines += [
        f"{option} {value}" for option, value in _options(artifacts, spec, container_labels(artifacts.plan, name, part))
    ]
    argv = container_argv(artifacts, config=artifacts.plan.server.api_key_env is not None)
    return " \\\n  ".join([*lines, shlex.quote(spec.image), wrap_argv(argv)]) + "\n"


def _mounts(plan: Plan, found: DetectedPatches) -> tuple[Mount, ...]:
    model, inside = plan.model, container_model(plan)
    source = model.checkpoint.path if model.checkpoint.source == "local" else f"models/{model.name}"
    mounts = [Mount(source=source, target=inside, read_only=True)]
    if overlay := overlay_path(plan, found):
        mounts.append(Mount(source=overlay, target=f"{inside}/config.json", read_only=True))
    return tuple(mounts)


def _caches(plan: Plan, image: str) -> tuple[CacheVolume, ...]:
    """One set of volumes an image and gfx: a kernel compiled for another is stale or, truncated, fatal (aiter#4799)."""
    if plan.hardware.gpus == 0:
        return ()
    key = f"{hashlib.sha256(image.encode()).hexdigest()[:12]}-{plan.hardware.arch}"
    targets = dict(_CACHED)
    if plan.engine.aiter_dir:
        targets["aiter"] = f"{plan.engine.aiter_dir}/aiter/jit"
    return tuple(CacheVolume(name=f"deploy-cache-{key}-{kind}", target=at) for kind, at in sorted(targets.items()))


def _options(artifacts: Artifacts, spec: ContainerSpec, labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Every option with its value, quoted for a POSIX shell."""
    for label, text in sorted(labels.items()):
        yield "--label", shlex.quote(f"{label}={text}")
    yield "--label", f'{RUN_DIR}="$RUN_DIR"'
    yield from _needs(spec)
    yield "--restart", f"on-failure:{spec.restarts}"
    yield "--stop-timeout", str(spec.stop_grace)
    yield "--log-driver", LOG_DRIVER
    for limit, most in LOG_OPTIONS.items():
        yield "--log-opt", f"{limit}={most}"
    if spec.publish is None:
        yield "--network", "host"
    else:
        host, outside, inside = spec.publish
        yield "--publish", shlex.quote(f"{f'[{host}]' if ':' in host else host}:{outside}:{inside}")
    for mount in spec.mounts:
        yield "--mount", _bind(mount)
    for cache in spec.caches:
        yield "--mount", shlex.quote(f"type=volume,{_field('source', cache.name)},{_field('target', cache.target)}")
    if artifacts.plan.server.api_key_env:
        yield "--mount", f'type=bind,source="$API_KEY_FILE",target={CONFIG_FILE},readonly'
    for variable, text in container_env(artifacts):
        yield "--env", shlex.quote(f"{variable}={text}")


def _bind(mount: Mount) -> str:
    """A bind mount, quoted; a source that is relative lies in the home of where the line is run."""
    target = f"{_field('target', mount.target)}{',readonly' if mount.read_only else ''}"
    if mount.source.startswith("/"):
        return shlex.quote(f"type=bind,{_field('source', mount.source)},{target}")
    return f'type=bind,source="$DEPLOY_HOME"/{shlex.quote(f"{mount.source},{target}")}'


def _field(name: str, value: str) -> str:
    """One field of `--mount`, which docker reads as CSV."""
    text = f"{name}={value}"
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') else text


def _needs(spec: ContainerSpec) -> Iterator[tuple[str, str]]:
    """What the hardware asks for; the ids of groups are looked up where the line is run."""
    for option, value in needs_options(spec.needs, lambda name: name):
        by_name = option == "--group-add" and not value.isdigit()
        yield option, f'"$(getent group {shlex.quote(value)} | cut -d: -f3)"' if by_name else shlex.quote(value)
