"""Before a start: what the server runs in, the checkpoint, the machine."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from orchestrator.commands.images import build_image
from orchestrator.commands.readiness import far_host, inspect_host, wait_until_drained
from orchestrator.core.console import Progress, note, warn
from orchestrator.core.errors import BuildError, WeightsError
from orchestrator.core.paths import Home, data_root
from orchestrator.host.gpu_checks import VRAM_IN_USE
from orchestrator.host.report import Level, PreflightReport
from orchestrator.images.build import Built
from orchestrator.images.client import find_docker
from orchestrator.images.receipt import PRESENT, Receipt
from orchestrator.plan import Plan
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.docker.container import overlay_path
from orchestrator.runtimes.process import environment as environments
from orchestrator.weights.overlay import write_overlay
from orchestrator.weights.verify import checkpoint_directory, needs_mtp, verify

IMAGES = data_root() / "images"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The artifacts with the interpreter they will really use, and the image, for the docker runtime."""

    artifacts: Artifacts
    image: Built | None

    def records(self) -> dict[str, object]:
        """What a run directory keeps of it, by file name."""
        if self.image is None:
            return {}
        image = {"tag": self.image.tag, "id": self.image.image_id}
        return {"image.json": image, "patches.json": asdict(self.image.receipt)}


def prepare(artifacts: Artifacts, home: Home, *, host: str | None, inputs: Mapping[str, bytes]) -> Prepared:
    """Make everything a start needs, while whatever runs goes on running; the image on `host`, if that is a far one.

    Raises BuildError or WeightsError.
    """
    plan = artifacts.plan
    if plan.runtime == "process":
        argv = (interpreter(plan, home), *artifacts.command.argv[1:])
        artifacts = replace(artifacts, command=replace(artifacts.command, argv=argv))
    _checkpoint(plan, home, far_host(plan, host))
    built = None
    if plan.runtime == "docker":
        built = build_image(find_docker(host), plan, inputs=inputs)
        note(f"image {built.tag}, {'built' if built.built else 'found'} with {built.builder}")
    _overlay(plan, home, built.receipt if built else None)
    return Prepared(artifacts=artifacts, image=built)


def require_machine(plan: Plan, home: Home, *, host: str | None) -> PreflightReport:
    """The machine passes preflight, and the GPUs have drained of whoever used them last. Raises HostError."""
    report = inspect_host(plan, home, host=host)
    for finding in report.findings:
        if finding.level is Level.WARN:
            warn(f"{finding.check}: {finding.found}; needed: {finding.needed}", hint=finding.mend)
    report.require(but={VRAM_IN_USE})  # that one is waited for
    wait_until_drained(plan, host=host)
    return report


def interpreter(plan: Plan, home: Home) -> str:
    """A Python that has the engine: the one the plan names, else its environment's, built where it is not there yet."""
    if plan.engine.python is not None:
        return plan.engine.python
    if plan.engine.requirements is None:
        raise BuildError(
            f"engine `{plan.engine.name}` has no requirement file to build an environment from",
            hint="name an interpreter that has the engine: `--set engine.python=python3`",
        )
    made = environments.ensure(plan.engine.requirements, images_root=IMAGES, home=home, progress=Progress())
    return str(made.python)


def _checkpoint(plan: Plan, home: Home, far: str | None) -> None:
    """The checkpoint is there and whole, as far as it is on this machine."""
    if far is not None:
        warn(f"the checkpoint on {far} is not looked at", hint="`deploy stage` on that machine verifies it")
        return
    directory = checkpoint_directory(plan.model, home)
    if plan.model.source.kind == "generated":
        python = Path(interpreter(plan, home))
        environments.generate_model(plan.model, python=python, images_root=IMAGES, home=home, progress=Progress())
    else:
        note(f"checkpoint {directory}: {verify(directory, plan.model, speculative=needs_mtp(plan))}")


def _overlay(plan: Plan, home: Home, receipt: Receipt | None) -> None:
    """With a config patch the checkpoint's overlay is written anew; unpatched where the image turned out to hold it.

    The plan goes by the engine's version, and a dated image may hold newer sources under an older one.
    """
    if (overlay := overlay_path(plan)) is None:
        return
    ids = [patch.id for patch in plan.patches if patch.kind == "config"]
    present = receipt is not None and all(receipt.state(patch) == PRESENT for patch in ids)
    directory = checkpoint_directory(plan.model, home)
    if not (directory / "config.json").is_file():  # with a far host, nobody has looked for it yet
        raise WeightsError(
            f"the config of `{plan.model.name}` is patched from the checkpoint, which is not on this machine",
            where=str(directory),
            hint="stage it here as well, or run the same command on the node, without --host",
        )
    expansion = write_overlay(directory, (home.root / overlay).parent, needed=not present)
    note(f"config overlay: {expansion.reason}")
