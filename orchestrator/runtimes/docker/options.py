"""A container spec as arguments of the Docker SDK. Pure: host-specific values are parameters."""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from orchestrator.core.safe_paths import path_named_in
from orchestrator.core.secrets import Secret
from orchestrator.engine.launch import SecretDelivery
from orchestrator.plan.plan import ContainerRequirements
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.docker.container import (
    CONFIG_FILE,
    LOG_DRIVER,
    LOG_OPTIONS,
    ContainerSpec,
    container_argv,
    container_env,
)
from orchestrator.runtimes.docker.sdk import docker

# The id of a group on the Docker host by its name, None if there is no such group.
GroupId = Callable[[str], str | None]

CACHE_LABEL: Final = "deploy.cache"  # holds the image that filled a volume
ARCH_LABEL: Final = "deploy.arch"
_ENV_FILE: Final = "/run/secrets/deploy.env"


def container_options(
    artifacts: Artifacts, spec: ContainerSpec, secrets: SecretDelivery
) -> dict[str, Any]:  # Any: the SDK's own keywords
    """Return keyword arguments of `create_container`, apart from name, labels and `host_config`."""
    argv = container_argv(artifacts, config=secrets.config is not None)
    exported = ("sh", "-c", f'. {_ENV_FILE} && exec "$@"', "sh") if secrets.env else ()
    return {
        "image": spec.image,
        "command": [*exported, *argv],
        "environment": dict(container_env(artifacts)),
        "ports": [spec.publish[1]] if spec.publish else [],
        "stop_timeout": spec.stop_grace,
    }


def host_options(artifacts: Artifacts, spec: ContainerSpec, *, home: str, gid: GroupId) -> dict[str, Any]:
    """Return keyword arguments of the SDK's `create_host_config`. `home` is the tool's home on the Docker host.

    `init` is required: sglang as PID 1 exits with 0 when its scheduler is killed (0.5.14, 0.5.23), and Docker would not
    restart it on failure.
    """
    if spec.publish is None:
        reached: dict[str, Any] = {"network_mode": "host"}
    else:
        host, port = spec.publish
        reached = {"port_bindings": {port: (host, port)}}
    binds = [
        docker.types.Mount(
            bind.target, str(path_named_in(Path(home), bind.source)), type="bind", read_only=bind.read_only
        )
        for bind in spec.mounts
    ]
    return {
        "mounts": [*binds, *cache_mounts(spec, artifacts)],
        **reached,
        "restart_policy": {"Name": "on-failure" if spec.restarts else "no", "MaximumRetryCount": spec.restarts},
        "init": True,
        "log_config": docker.types.LogConfig(type=LOG_DRIVER, config=dict(LOG_OPTIONS)),
        **_needs(spec.needs, gid),
    }


def secret_files(secrets: SecretDelivery) -> dict[str, Secret]:
    """Return the secret files of a container by path: sglang's config, and other variables in shell syntax."""
    files = {} if secrets.config is None else {CONFIG_FILE: secrets.config}
    if secrets.env:
        lines = [f"export {name}={shlex.quote(secret.reveal())}\n" for name, secret in sorted(secrets.env.items())]
        files[_ENV_FILE] = Secret.around("".join(lines))
    return files


def archive(files: Mapping[str, Secret]) -> bytes:
    """Return a tar archive of files with mode 0600, to be unpacked at `/` of a container before it starts.

    The files exist only in the container, also on a remote host, and are neither in `docker inspect` nor in an argv.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, secret in files.items():
            content = secret.reveal().encode()
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(content), 0o600
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def cache_mounts(spec: ContainerSpec, artifacts: Artifacts) -> list[docker.types.Mount]:
    """Return the mounts of the cache volumes, which are created at their first use."""
    labels = {CACHE_LABEL: spec.image, ARCH_LABEL: artifacts.plan.hardware.arch}
    return [docker.types.Mount(cache.target, cache.name, type="volume", labels=labels) for cache in spec.caches]


def _needs(needs: ContainerRequirements, gid: GroupId) -> dict[str, Any]:
    """Return the options for the hardware; groups by id, since an image may not know the host's group names.

    A group that the host does not have owns no device there and is omitted.
    """
    groups = (group if group.isdigit() else gid(group) for group in needs.groups)
    return {
        "devices": [f"{device}:{device}:rwm" for device in needs.devices],
        "device_requests": [docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])] if needs.all_gpus else [],
        "group_add": [group for group in groups if group is not None],
        "ipc_mode": needs.ipc,
        "shm_size": needs.shm_bytes,
        "ulimits": [docker.types.Ulimit(name=limit.name, soft=limit.soft, hard=limit.hard) for limit in needs.ulimits],
        "security_opt": list(needs.security_opt),
        "cap_add": list(needs.cap_add),
    }
