"""The steps of `deploy up` with estimated durations and downloads, for `up --dry-run`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.checkpoints.generate import is_generated
from orchestrator.checkpoints.receipt import bytes_present
from orchestrator.checkpoints.verify import checkpoint_directory
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.console import format_duration, table, terminal_width
from orchestrator.core.paths import Home
from orchestrator.core.text import gb
from orchestrator.hosts.venvs.venv import bytes_to_install
from orchestrator.images.base import IMAGE_BYTES
from orchestrator.images.build import image_tag
from orchestrator.images.config import local_config
from orchestrator.kernels.disk.store import Store
from orchestrator.kernels.plan_coverage import needs_table
from orchestrator.plan.plan import Plan
from orchestrator.render.artifacts import Artifacts
from orchestrator.render.dockerfile import base_reference
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import HostRef

# Estimated seconds per step on a node with eight GPUs, without downloads. `down` waits for the release of VRAM.
STEP_SECONDS: Final[Mapping[str, float]] = {
    "preflight": 5.0,
    "stage": 5.0,
    "kernels": 15.0,
    "build": 30.0,
    "copy": 5.0,
    "smoke": 60.0,
    "report": 5.0,
    "eval": 600.0,  # 200 questions of about 200 tokens at low concurrency, and the harness's environment
    "down": 120.0,
}
PULL: Final = 900.0  # seconds to pull an engine's image
DOWNLOAD_MB_S: Final = 400.0  # default download rate of a checkpoint
_GPUS, _CPU = 420.0, 20.0  # seconds to compile kernels and capture graphs; neither on a CPU
_LOAD: Final = 0.56e9  # bytes/s: 408 GiB in 13 min over NFS; NVMe took 3-4 min (AMD-AGI/Infera, GLM-5.2 recipe)

_INSTALL: Final = 40e6  # bytes/s: 1.68 GB of sglang-cpu-0.5.14 in 38.5 s, with two CPU cores and a near package index


def startup_seconds(plan: Plan) -> float:
    """Estimate the seconds of a start: load weights, compile kernels, capture graphs, smoke test."""
    return plan.model.weight_bytes / _LOAD + (_CPU if plan.hardware.vendor == "cpu" else _GPUS)


@dataclass(frozen=True, kw_only=True)
class UpStep:
    """One step; `seconds` is an estimate, 0 if the step is already done."""

    name: str
    detail: str
    seconds: float


def steps_of(artifacts: Artifacts, host_ref: HostRef) -> tuple[UpStep, ...]:
    """Return the steps of `deploy up`, in order."""
    plan = artifacts.plan
    if runtime_class(plan.runtime).cluster_managed:
        return (_start(plan),)
    checkpoint, image = _checkpoint(plan, host_ref), tuple(_image(artifacts, host_ref))
    table = () if plan.prebuilt_image else tuple(_table(plan, host_ref.home))
    # The engine checks the arguments before the download, and generates models.
    if plan.model.checkpoint.source != "local":
        return (*image, checkpoint, *table, _start(plan))
    return (checkpoint, *table, *image, _start(plan))


def steps_table(steps: Sequence[UpStep]) -> str:
    """Format the steps as a table with their total."""
    rows = [(step.name, step.detail, format_duration(step.seconds) if step.seconds else "done") for step in steps]
    total = sum(step.seconds for step in steps)
    return table(
        ("step", "action", "estimate"),
        [*rows, ("total", "", format_duration(total))],
        width=terminal_width(),
    )


def _checkpoint(plan: Plan, host_ref: HostRef) -> UpStep:
    model, directory, seconds = plan.model, checkpoint_directory(plan.model, host_ref.home), STEP_SECONDS["stage"]
    if host_ref.remote is not None:
        missing, detail = model.weight_bytes, f"verified{_on(host_ref)}"
    elif model.checkpoint.source == "generated":
        generator = Catalog.of(host_ref.home).path(EntryKind.IMAGE_FILE, model.checkpoint.path)
        done = is_generated(directory, generator)
        missing, detail = 0, str(directory) if done else f"{directory}: to be generated"
        seconds = 0.0 if done else seconds
    else:
        missing = max(model.weight_bytes - bytes_present(directory), 0)
        detail = f"{directory}: {'verified' if directory.is_dir() else 'not found'}"
    if missing and model.checkpoint.source == "hub":
        detail = f"{gb(missing)} of {model.checkpoint.path} to download{_on(host_ref)}, at {DOWNLOAD_MB_S:.0f} MB/s"
        seconds = missing / (DOWNLOAD_MB_S * 1e6)
    return UpStep(name="checkpoint", detail=detail, seconds=seconds)


def _table(plan: Plan, home: Home) -> Iterator[UpStep]:
    if not needs_table(plan):
        return
    store = Store.of(home, plan)
    if store.is_fresh(plan):
        yield UpStep(name="table", detail=str(store.table(plan)), seconds=0.0)
    else:
        yield UpStep(
            name="table",
            detail="built from the engine's aiter and newer upstream rows",
            seconds=STEP_SECONDS["kernels"],
        )


def _image(artifacts: Artifacts, host_ref: HostRef) -> Iterator[UpStep]:
    plan, build = artifacts.plan, artifacts.build
    if (image := plan.prebuilt_image) is not None:
        detail = f"{image} pulled if it is missing, its receipt and table checked against the plan; nothing is built"
        yield UpStep(name="image", detail=detail, seconds=PULL)
        return
    if build is None:
        if (size := bytes_to_install(plan.engine, host_ref.home)) is not None:
            detail = f"{plan.engine.requirements}: {f'{gb(size)} of ' if size else ''}packages to install"
            yield UpStep(name="environment", detail=detail, seconds=size / _INSTALL)
        if patches := ", ".join(patch.id for patch in plan.patches):
            detail = f"a copy of the interpreter's, for {patches}, unless it exists"
            yield UpStep(name="sglang", detail=detail, seconds=STEP_SECONDS["copy"])
        return
    base, tag, remote = base_reference(plan.engine), image_tag(plan, build), host_ref.remote
    if remote is None and local_config(tag) is not None:
        yield UpStep(name="image", detail=tag, seconds=0.0)
    elif remote is None and local_config(base) is not None:
        yield UpStep(name="image", detail=f"{base} patched", seconds=STEP_SECONDS["build"])
    else:
        on = f"{_on(host_ref)}, unless done before" if remote else ""
        detail = f"{base} pulled and patched{on}: up to {IMAGE_BYTES >> 30} GiB of disk"
        yield UpStep(name="image", detail=detail, seconds=PULL + STEP_SECONDS["build"])


def _on(host_ref: HostRef) -> str:
    """Return the remote hosts of all ranks as a suffix (` on HOST`); "" for this host."""
    return f" on {' and '.join(str(node.remote) for node in host_ref.nodes)}" if host_ref.remote else ""


def _start(plan: Plan) -> UpStep:
    done = "" if plan.hardware.vendor == "cpu" else "kernels compiled, graphs captured, "
    detail = f"{gb(plan.model.weight_bytes)} loaded, {done}smoke test"
    return UpStep(name="start", detail=detail, seconds=startup_seconds(plan))
