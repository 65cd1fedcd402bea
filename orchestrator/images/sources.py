"""What a plan's image is made from, read from images/ and patches/."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from orchestrator.core.errors import BuildError, UsageError
from orchestrator.core.paths import data_root
from orchestrator.patches.ledger import read_diff, read_ledger
from orchestrator.plan import Plan
from orchestrator.render.dockerfile import ImageSources

APPLIER = "apply_patches.py"


def image_sources(plan: Plan, *, inputs: Mapping[str, bytes] | None = None, root: Path | None = None) -> ImageSources:
    """The template, the patches the plan carries, and every file the template copies.

    `inputs` are the files given to patches, by input name. Raises BuildError for a template that does not exist.
    """
    root = root or data_root()
    carried = {use.id for use in plan.patches}
    patches = tuple(patch for patch in read_ledger(root) if patch.id in carried)
    diffs = {patch.id: read_diff(patch, root) for patch in patches}
    return ImageSources(
        template=_template(plan, root),
        applier=applier_path(root).read_bytes(),
        patches=patches,
        diffs={name: text for name, text in diffs.items() if text is not None},
        inputs=inputs or {},
        files=_copied(plan, root),
    )


def applier_path(root: Path | None = None) -> Path:
    """The program that runs inside an image, and that `deploy patches check` runs on other sources."""
    return (root or data_root()) / "images" / APPLIER


def read_inputs(paths: Mapping[str, Path]) -> dict[str, bytes]:
    """The files a user gives to patches. Raises UsageError for one that cannot be read."""
    try:
        return {name: path.read_bytes() for name, path in paths.items()}
    except OSError as error:
        raise UsageError(f"`{error.filename}` cannot be read: {error.strerror}") from error


def input_digests(inputs: Mapping[str, bytes]) -> dict[str, str]:
    """sha256 of every input, hex: what a plan is decided with."""
    return {name: sha256(content).hexdigest() for name, content in inputs.items()}


def _template(plan: Plan, root: Path) -> str:
    path = root / "images" / f"{plan.engine.template}.Dockerfile.j2"
    if not path.is_file():
        raise BuildError(
            f"there is no image template `{plan.engine.template}`", where=f"profiles/engines/{plan.engine.name}.yaml"
        )
    return path.read_text(encoding="utf-8")


def _copied(plan: Plan, root: Path) -> dict[str, bytes]:
    """The requirement file of an engine that is installed in the build, with the shim it starts through."""
    if plan.engine.requirements is None:
        return {}
    images = root / "images"
    paths = [images / plan.engine.requirements, *sorted(images.glob("cpu_shim/*.p*"))]
    return {path.relative_to(images).as_posix(): path.read_bytes() for path in paths}
