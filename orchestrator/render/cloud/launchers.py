"""The forms of SkyPilot and of dstack: a task that runs once, and a service whose replicas the broker keeps.

Accepted by the validators of skypilot 0.14.1 and dstack 0.22.5; no machine was rented with them.
"""

from collections.abc import Callable, Mapping
from typing import Final

from orchestrator.engine import endpoints
from orchestrator.render.artifacts import RenderedFile, needs_options
from orchestrator.render.cloud.task import PATH_THERE, CloudTask, broker_file

_CPUS: Final = 4  # of a machine without GPUs, at least: a server on a CPU has three busy processes
_SLACK: Final = 2  # times the estimate, until a broker takes a replica for one that never gets ready


def skypilot(rental: CloudTask) -> tuple[RenderedFile, ...]:
    """For `sky launch` and for `sky serve up`."""
    plan, given = rental.plan, " ".join(f"--secret {name}" for name in rental.secrets)
    hardware = plan.hardware
    resources: dict[str, object] = {"cpus": f"{_CPUS}+"}
    if hardware.gpu_product is not None:
        resources = {"accelerators": {hardware.gpu_product: rental.gpus}}
    if rental.image is not None:
        resources["image_id"] = f"docker:{rental.image}"
    task = {
        "name": rental.name,
        "resources": {**resources, "disk_size": rental.disk_gib, "ports": [plan.server.port]},
        "secrets": dict.fromkeys(rental.secrets),
        **({"file_mounts": dict(rental.brought)} if rental.brought else {}),
        "setup": _script(*rental.set_up),
        "run": _script(PATH_THERE, *rental.run),
    }
    # A container of SkyPilot's gets what it is told here (docs.skypilot.co, "Advanced configuration", `docker`).
    if options := [word for option in needs_options(hardware.container, lambda _: None) for word in option]:
        task["config"] = {"docker": {"run_options": options}}
    probe = {"path": endpoints.HEALTH, "initial_delay_seconds": round(_SLACK * rental.ready_seconds)}
    service = {**task, "service": {"readiness_probe": probe, "replicas": 1}}
    return (
        broker_file("skypilot-task.yaml", task, f"sky launch --cluster {rental.name} {given} skypilot-task.yaml"),
        broker_file(
            "skypilot-service.yaml", service, f"sky serve up --service-name {rental.name} {given} skypilot-service.yaml"
        ),
    )


def dstack(rental: CloudTask) -> tuple[RenderedFile, ...]:
    """For `dstack apply`: variables come from the shell that calls it."""
    plan = rental.plan
    hardware, shm = plan.hardware, plan.hardware.container.shm_bytes
    resources: dict[str, object] = {"cpu": f"{_CPUS}..", "disk": f"{rental.disk_gib}GB.."}
    if hardware.gpu_product is not None:
        resources["gpu"] = {"vendor": hardware.vendor, "name": hardware.gpu_product, "count": rental.gpus}
    if shm is not None:
        resources["shm_size"] = f"{shm >> 30}GB"
    common = {
        **({"image": rental.image} if rental.image is not None else {}),
        "env": list(rental.secrets),
        **({"files": [f"{here}:{there}" for there, here in rental.brought.items()]} if rental.brought else {}),
        "commands": ["set -eu", *rental.set_up, *rental.run],
        "resources": resources,
    }
    probe = {
        "type": "http",
        "url": endpoints.HEALTH,
        "timeout": "30s",  # behind a long prefill it waits up to 20 s
        "interval": "30s",
    }
    service = {
        "port": plan.server.port,
        "auth": False,  # the server's own key: both would stand in the same header
        "replicas": 1,
        "probes": [probe],
    }
    return (
        broker_file(
            "task.dstack.yml",
            {"type": "task", "name": rental.name, "ports": [plan.server.port], **common},
            "dstack apply -f task.dstack.yml",
        ),
        broker_file(
            "service.dstack.yml",
            {"type": "service", "name": rental.name, **service, **common},
            "dstack apply -f service.dstack.yml",
        ),
    )


LAUNCHERS: Final[Mapping[str, Callable[[CloudTask], tuple[RenderedFile, ...]]]] = {
    "skypilot": skypilot,
    "dstack": dstack,
}


def _script(*lines: str) -> str:
    return "\n".join(("set -eu", *lines)) + "\n"
