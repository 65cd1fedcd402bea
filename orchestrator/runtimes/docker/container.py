"""What a container is given, and the `docker run` line that would do the same."""

import hashlib
import shlex
from collections.abc import Iterator
from typing import Final

from orchestrator import __version__
from orchestrator.plan import Plan
from orchestrator.render.artifacts import Artifacts, CacheVolume, ContainerSpec, Mount
from orchestrator.render.files import wrapped

RESTARTS: Final = 3  # a server that dies a fourth time has a cause that one more start does not mend
CONFIG_FILE: Final = "/run/secrets/deploy.yaml"  # sglang's `--config` file, which holds the API key

# Compiled kernels, by what compiles them: tvm-ffi and hub metadata, and triton, where they write by default.
_CACHED: Final = {"jit": "/root/.cache", "triton": "/root/.triton"}


def container_spec(plan: Plan, image: str) -> ContainerSpec:
    """The container of a plan: what its hardware needs, the checkpoint read-only, the caches of this image and GPU."""
    return ContainerSpec(
        image=image,
        needs=plan.hardware.container,
        mounts=_mounts(plan),
        caches=_caches(plan, image),
        publish=(plan.server.host, plan.server.port, plan.server.port),
        restarts=RESTARTS,
        stop_grace=plan.waiting.grace,
    )


def container_name(name: str) -> str:
    """The container of the server `name`: prefixed, so that it does not meet a container of somebody else."""
    return f"deploy-{name}"


def container_labels(plan: Plan, name: str) -> dict[str, str]:
    """The record of a server, kept where it cannot come apart from the server: on the container."""
    return {
        "deploy.name": name,
        "deploy.plan": plan.digest,
        "deploy.profile": plan.profile,
        "deploy.url": plan.server.url,
        "deploy.version": __version__,
    }


def container_env(artifacts: Artifacts) -> tuple[tuple[str, str], ...]:
    """The server's variables, and the one that makes Python write its log line by line where there is no terminal."""
    return tuple(sorted({"PYTHONUNBUFFERED": "1", **dict(artifacts.command.env)}.items()))


def container_model(plan: Plan) -> str:
    """Where a container finds the checkpoint."""
    return f"/models/{plan.model.name}"


def overlay_path(plan: Plan) -> str | None:
    """Where the patched config.json lies, relative to the tool's home directory; None without a config patch."""
    ids = [patch.id for patch in plan.patches if patch.kind == "config"]
    return f"overlays/{plan.model.name}/{'+'.join(ids)}/config.json" if ids else None


def docker_run_line(artifacts: Artifacts, name: str) -> str:
    """The `docker run` command that starts the same server, one option a line; the same text for the same plan.

    What differs between machines is left to the shell: the tool's home directory, the ids of groups, and the file that
    holds `api-key: ...`.
    """
    spec = artifacts.container
    if spec is None:
        return ""
    lines = [f"docker run --detach --init --name {shlex.quote(container_name(name))}"]
    lines += [f"{option} {value}" for option, value in _options(artifacts, spec, name)]
    argv = artifacts.command.argv + (("--config", CONFIG_FILE) if artifacts.plan.server.api_key_env else ())
    return " \\\n  ".join([*lines, spec.image, wrapped(argv)]) + "\n"


def _mounts(plan: Plan) -> tuple[Mount, ...]:
    model, inside = plan.model, container_model(plan)
    source = model.source.location if model.source.kind == "directory" else f"models/{model.name}"
    mounts = [Mount(source=source, target=inside, read_only=True)]
    if overlay := overlay_path(plan):
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


def _options(artifacts: Artifacts, spec: ContainerSpec, name: str) -> Iterator[tuple[str, str]]:
    """Every option with its value, quoted for a POSIX shell."""
    for label, text in sorted(container_labels(artifacts.plan, name).items()):
        yield "--label", shlex.quote(f"{label}={text}")
    yield from _needs(spec)
    yield "--restart", f"on-failure:{spec.restarts}"
    yield "--stop-timeout", str(spec.stop_grace)
    host, outside, inside = spec.publish
    yield "--publish", f"{f'[{host}]' if ':' in host else host}:{outside}:{inside}"
    for mount in spec.mounts:
        source = shlex.quote(mount.source) if mount.source.startswith("/") else f'"$DEPLOY_HOME"/{mount.source}'
        yield "--mount", f"type=bind,source={source},target={mount.target}{',readonly' if mount.read_only else ''}"
    for cache in spec.caches:
        yield "--mount", f"type=volume,source={cache.name},target={cache.target}"
    if artifacts.plan.server.api_key_env:
        yield "--mount", f'type=bind,source="$API_KEY_FILE",target={CONFIG_FILE},readonly'
    for variable, text in container_env(artifacts):
        yield "--env", shlex.quote(f"{variable}={text}")


def _needs(spec: ContainerSpec) -> Iterator[tuple[str, str]]:
    needs = spec.needs
    for device in needs.devices:
        yield "--device", shlex.quote(device)
    if needs.all_gpus:
        yield "--gpus", "all"
    for group in needs.groups:
        yield "--group-add", group if group.isdigit() else f'"$(getent group {group} | cut -d: -f3)"'
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
