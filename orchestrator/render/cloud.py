"""Task files for SkyPilot and dstack: a task that runs once, a service that the launcher keeps running, and a fleet.

The validators of skypilot 0.14.1 and dstack 0.22.5 accept these files; they were not tested on a rented host.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.yaml_document import dump_yaml
from orchestrator.engine import endpoints
from orchestrator.plan.plan import Plan
from orchestrator.render.artifacts import RenderedFile, container_options
from orchestrator.render.scripts import text_file

_CPUS: Final = 4  # minimum of a host without GPUs: a server on a CPU has three busy processes
_IDLE: Final = "15m"  # until dstack releases an unused host
_SLACK: Final = 2  # factor on the estimated startup time, before a launcher gives up on a replica
_UV: Final = "curl -LsSf https://astral.sh/uv/install.sh | sh"  # docs.astral.sh/uv, "Installation"
_REMOTE_PATH: Final = 'export PATH="$HOME/.local/bin:$PATH"'  # uv installs itself and its tools there
_GIB: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class CloudTask:
    """A server on a rented host, in the container of the launcher; `plan` must use the process runtime.

    `tool` is the package that `uv tool install` installs there. `files` maps paths on the rented host to the local
    files that are uploaded.
    """

    plan: Plan
    up_argv: Sequence[str]
    tool: str
    files: Mapping[str, str]
    image: str | None  # of the container; None: the launcher's own
    secrets: Sequence[str]  # names of environment variables
    disk_bytes: int
    offers: Mapping[str, Sequence[str]]  # instance types by dstack backend; empty: any with the GPUs
    ready_seconds: float  # estimated, from start to ready

    @property
    def name(self) -> str:
        """The profile's name as launchers accept it: a letter, then letters, digits, dashes, at most 40 characters."""
        name = re.sub(r"[^a-z0-9]+", "-", self.plan.profile)
        return (name if name[0].isalpha() else f"p-{name}")[:40].rstrip("-")

    @property
    def gpus(self) -> int:
        """The number of GPUs that the host needs."""
        return 1 + max(self.plan.gpus, default=-1)

    @property
    def disk_gib(self) -> int:
        """The size of the disk in GiB, rounded up."""
        return -(-self.disk_bytes // _GIB)

    @property
    def setup_commands(self) -> tuple[str, ...]:
        """The shell lines that install `deploy`."""
        return (f"command -v uv || {_UV}", _REMOTE_PATH, shlex.join(["uv", "tool", "install", self.tool]))

    @property
    def run_commands(self) -> tuple[str, ...]:
        """The shell lines that start the server and watch it until it stops."""
        return (shlex.join(self.up_argv), shlex.join(["exec", "deploy", "watch", self.plan.profile]))


def skypilot(cloud_task: CloudTask) -> tuple[RenderedFile, ...]:
    """Return the files for `sky launch` and `sky serve up`."""
    plan, secret_options = cloud_task.plan, " ".join(f"--secret {name}" for name in cloud_task.secrets)
    hardware = plan.hardware
    resources: dict[str, object] = {"cpus": f"{_CPUS}+"}
    if hardware.gpu_product is not None:
        resources = {"accelerators": {hardware.gpu_product: cloud_task.gpus}}
    if cloud_task.image is not None:
        resources["image_id"] = f"docker:{cloud_task.image}"
    task = {
        "name": cloud_task.name,
        "resources": {**resources, "disk_size": cloud_task.disk_gib, "ports": [plan.server.port]},
        "secrets": dict.fromkeys(cloud_task.secrets),
        **({"file_mounts": dict(cloud_task.files)} if cloud_task.files else {}),
        "setup": _script(*cloud_task.setup_commands),
        "run": _script(_REMOTE_PATH, *cloud_task.run_commands),
    }
    # SkyPilot passes these options to `docker run` (docs.skypilot.co, "Advanced configuration", `docker`).
    if options := [word for option in container_options(hardware.container, lambda _: None) for word in option]:
        task["config"] = {"docker": {"run_options": options}}
    probe = {"path": endpoints.HEALTH, "initial_delay_seconds": round(_SLACK * cloud_task.ready_seconds)}
    service = {**task, "service": {"readiness_probe": probe, "replicas": 1}}
    return (
        _file(
            "skypilot-task.yaml", task, f"sky launch --cluster {cloud_task.name} {secret_options} skypilot-task.yaml"
        ),
        _file(
            "skypilot-service.yaml",
            service,
            f"sky serve up --service-name {cloud_task.name} {secret_options} skypilot-service.yaml",
        ),
    )


def dstack(cloud_task: CloudTask) -> tuple[RenderedFile, ...]:
    """Return the files for `dstack apply`, which reads secrets from the environment of its shell."""
    plan = cloud_task.plan
    hardware, shm = plan.hardware, plan.hardware.container.shm_bytes
    resources: dict[str, object] = {"cpu": f"{_CPUS}..", "disk": f"{cloud_task.disk_gib}GB.."}
    if hardware.gpu_product is not None:
        resources["gpu"] = {"vendor": hardware.vendor, "name": hardware.gpu_product, "count": cloud_task.gpus}
    if shm is not None:
        resources["shm_size"] = f"{shm >> 30}GB"
    common = {
        **({"image": cloud_task.image} if cloud_task.image is not None else {}),
        "env": list(cloud_task.secrets),
        "fleets": [cloud_task.name],
        **(
            {"files": [f"{local_path}:{remote_path}" for remote_path, local_path in cloud_task.files.items()]}
            if cloud_task.files
            else {}
        ),
        "commands": ["set -eu", *cloud_task.setup_commands, *cloud_task.run_commands],
        "resources": resources,
    }
    probe = {
        "type": "http",
        "url": endpoints.HEALTH,
        "timeout": "30s",  # during a long prefill, a response takes up to 20 s
        "interval": "30s",
    }
    # dstack runs nothing without a fleet. Its default for idle instances of a fleet is 3 days.
    fleet = {"type": "fleet", "name": cloud_task.name, "nodes": "0..1", "idle_duration": _IDLE, "resources": resources}
    if cloud_task.offers and cloud_task.gpus == hardware.gpus:  # the instance types are whole nodes
        types = [name for names in cloud_task.offers.values() for name in names]
        fleet |= {"backends": list(cloud_task.offers), "instance_types": types}
    service = {
        "port": plan.server.port,
        "auth": False,  # the server checks its own API key, which uses the same header
        "replicas": 1,
        "probes": [probe],
    }
    return (
        _file("fleet.dstack.yml", fleet, "dstack apply -f fleet.dstack.yml"),
        _file(
            "task.dstack.yml",
            {"type": "task", "name": cloud_task.name, "ports": [plan.server.port], **common},
            "dstack apply -f task.dstack.yml",
        ),
        _file(
            "service.dstack.yml",
            {"type": "service", "name": cloud_task.name, **service, **common},
            "dstack apply -f service.dstack.yml",
        ),
    )


def _script(*lines: str) -> str:
    return "\n".join(("set -eu", *lines)) + "\n"


def _file(path: str, data: Mapping[str, object], command: str) -> RenderedFile:
    """Return a file for a launcher: a comment with the command that uses it, then `data` in the order of its keys."""
    return text_file(path, dump_yaml(data, command))


LAUNCHERS: Final[Mapping[str, Callable[[CloudTask], tuple[RenderedFile, ...]]]] = {
    "skypilot": skypilot,
    "dstack": dstack,
}
