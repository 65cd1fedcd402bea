"""A container spec in the words of the docker SDK. Pure, apart from nothing: what differs between hosts comes in."""

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from docker.types import DeviceRequest, Mount, Ulimit

from orchestrator.artifacts import Artifacts, ContainerSpec
from orchestrator.plan import ContainerNeeds
from orchestrator.render.container import SECRETS_FILE
from orchestrator.secret import Secret

_CACHE_LABEL: Final = "deploy.cache"


def create_options(
    artifacts: Artifacts, spec: ContainerSpec, *, home: str, gid: Callable[[str], str | None]
) -> dict[str, Any]:  # Any: the SDK's own signature of a keyword mapping
    """Keywords of `containers.create`.

    `home` is the tool's home directory on the Docker host, `gid` the id there of a group by name, None where the host
    has no such group. `init` is needed: sglang as PID 1 exits with 0 when its scheduler is killed (0.5.14, 0.5.23), and
    a restart on failure then never happens.
    """
    host, outside, inside = spec.publish
    return {
        "image": spec.image,
        "command": list(artifacts.command.argv),
        "environment": dict(artifacts.command.env),
        "mounts": [*_binds(spec, home), *_caches(spec, artifacts)],
        "ports": {f"{inside}/tcp": (host, outside)},
        "restart_policy": {"Name": "on-failure", "MaximumRetryCount": spec.restarts},
        "stop_timeout": spec.stop_grace,
        "init": True,
        "detach": True,
        **_needs(spec.needs, gid),
    }


def secrets_archive(secrets: Mapping[str, Secret]) -> bytes:
    """A tar of the secrets as one JSON file that only its owner reads, to be unpacked at `/` of a created container.

    There it lives and dies with the container, on a far host too; it stands neither in `docker inspect` nor in `/proc`.
    """
    content = json.dumps({name: secret.reveal() for name, secret in sorted(secrets.items())}).encode()
    path = SECRETS_FILE.lstrip("/")
    folder, file = tarfile.TarInfo(str(Path(path).parent)), tarfile.TarInfo(path)
    folder.type, folder.mode = tarfile.DIRTYPE, 0o700
    file.size, file.mode = len(content), 0o600
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(folder)
        archive.addfile(file, io.BytesIO(content))
    return buffer.getvalue()


def _binds(spec: ContainerSpec, home: str) -> list[Mount]:
    return [
        Mount(mount.target, str(Path(home, mount.source)), type="bind", read_only=mount.read_only)
        for mount in spec.mounts
    ]


def _caches(spec: ContainerSpec, artifacts: Artifacts) -> list[Mount]:
    labels = {_CACHE_LABEL: spec.image, "deploy.arch": artifacts.plan.hardware.arch}
    return [Mount(cache.target, cache.name, type="volume", labels=labels) for cache in spec.caches]


def _needs(needs: ContainerNeeds, gid: Callable[[str], str | None]) -> dict[str, Any]:
    """What the hardware asks for; groups by id, since an image need not know the host's names.

    A group that the host does not have owns no device there, and is left out.
    """
    groups = (group if group.isdigit() else gid(group) for group in needs.groups)
    return {
        "devices": [f"{device}:{device}:rwm" for device in needs.devices],
        "device_requests": [DeviceRequest(count=-1, capabilities=[["gpu"]])] if needs.all_gpus else [],
        "group_add": [group for group in groups if group is not None],
        "ipc_mode": needs.ipc,
        "shm_size": needs.shm_bytes,
        "ulimits": [Ulimit(name=limit.name, soft=limit.soft, hard=limit.hard) for limit in needs.ulimits],
        "security_opt": list(needs.security_opt),
        "cap_add": list(needs.cap_add),
    }
