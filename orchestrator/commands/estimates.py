"""How long a step takes, in seconds: estimates for a node of eight GPUs, said before anything is begun."""

from collections.abc import Mapping
from typing import Final

from orchestrator.plan import Plan

# Without what is downloaded. `down` waits until VRAM is given back.
ABOUT: Final[Mapping[str, float]] = {
    "preflight": 5.0,
    "stage": 5.0,
    "kernels": 15.0,
    "build": 30.0,
    "copy": 5.0,
    "smoke": 60.0,
    "report": 5.0,
    "eval": 600.0,  # 200 questions of some 200 tokens in few streams, and the harness's environment
    "down": 120.0,
}
PULL: Final = 900.0  # of an engine's image
DOWNLOAD_MB_S: Final = 400.0  # of a checkpoint, where the user says nothing else
_GPUS, _CPU = 420.0, 20.0  # kernels compiled and graphs captured; on a CPU there are none
_LOAD: Final = 0.56e9  # bytes a second: 408 GiB in 13 min over NFS; NVMe took 3-4 min (AMD-AGI/Infera, GLM-5.2 recipe)


def starting(plan: Plan) -> float:
    """From the start of a plan's server until it serves: load, compile, capture."""
    return plan.model.weight_bytes / _LOAD + (_CPU if plan.hardware.vendor == "cpu" else _GPUS)


def minutes(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
