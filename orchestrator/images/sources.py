"""The files that a plan's image is built from, read from images/ and patches/."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import BuildError, UsageError
from orchestrator.core.files import read_file
from orchestrator.core.paths import data_root
from orchestrator.engine.gateway import LAUNCHER
from orchestrator.patches.ledger import read_diffs, read_ledger
from orchestrator.patches.schema import Patch
from orchestrator.plan.plan import Plan
from orchestrator.render.dockerfile import GATEWAY_FOLDER, ImageSources

_MAX_INPUT_BYTES: Final = 256 << 20  # of an input of a patch, which is read into memory
PROGRAMS: Final = ("apply_patches.py", "read_sources.py")  # run inside an image; the first imports the second


def image_sources(plan: Plan, *, inputs: Mapping[str, bytes] | None = None, coverage: str = "") -> ImageSources:
    """Read the Dockerfile template, the plan's patches, and every file that the template copies.

    `inputs` maps input names of patches to the content of files; `coverage` describes the kernel table. Raises
    BuildError if the template or a requirement file does not exist.
    """
    catalog = Catalog.from_environment()
    patches = ledger_patches(plan, catalog)
    return ImageSources(
        template=_template(plan, catalog),
        programs={path.name: path.read_bytes() for path in program_paths()},
        patches=patches,
        diffs=read_diffs(patches, catalog),
        inputs=inputs or {},
        files={**_engine_files(plan, catalog), **_gateway_files(plan, catalog)},
        coverage=coverage,
    )


def ledger_patches(plan: Plan, catalog: Catalog | None = None) -> tuple[Patch, ...]:
    """Return the ledger entries of the plan's patches."""
    ids = {use.id for use in plan.patches}
    return tuple(patch for patch in read_ledger(catalog) if patch.id in ids)


def program_paths() -> tuple[Path, ...]:
    """Return the paths of the patch applier and of the module that it imports.

    The applier runs inside images; `deploy patches check` runs it on other sources.
    """
    return tuple(data_root() / "images" / name for name in PROGRAMS)


def read_inputs(paths: Mapping[str, Path]) -> dict[str, bytes]:
    """Read the files that a user provides as inputs of patches. Raises UsageError if a file cannot be read."""
    try:
        return {name: read_file(path, max_bytes=_MAX_INPUT_BYTES) for name, path in paths.items()}
    except OSError as error:
        raise UsageError(f"cannot read `{error.filename}`: {error.strerror}") from error


def input_digests(inputs: Mapping[str, bytes]) -> dict[str, str]:
    """Return the SHA-256 of each input in hex; the digests are part of the plan."""
    return {name: sha256(content).hexdigest() for name, content in inputs.items()}


def _template(plan: Plan, catalog: Catalog) -> str:
    path = catalog.find(EntryKind.IMAGE_FILE, f"{plan.engine.dockerfile}.Dockerfile.j2")
    if path is None:
        message = f"no image template `{plan.engine.dockerfile}` found"
        raise BuildError(message, location=f"engine {plan.engine.name}", hint="correct `engine.dockerfile`")
    return path.read_text(encoding="utf-8")


def _gateway_files(plan: Plan, catalog: Catalog) -> dict[str, bytes]:
    """Read the gateway's requirement file and launcher; empty if the plan has no gateway."""
    names = (plan.gateway.requirements, LAUNCHER) if plan.gateway else ()
    return {f"{GATEWAY_FOLDER}/{name}": catalog.path(EntryKind.IMAGE_FILE, name).read_bytes() for name in names}


def _engine_files(plan: Plan, catalog: Catalog) -> dict[str, bytes]:
    """Read the requirement file of an engine that the build installs, and the CPU shim; empty if it has none."""
    if plan.engine.requirements is None:
        return {}
    requirements = catalog.find(EntryKind.IMAGE_FILE, plan.engine.requirements)
    if requirements is None:
        message = f"no requirement file `{plan.engine.requirements}` found"
        raise BuildError(message, location=f"engine {plan.engine.name}", hint="correct `engine.requirements`")
    images = data_root() / "images"
    shim = {path.relative_to(images).as_posix(): path.read_bytes() for path in sorted(images.glob("cpu_shim/*.p*"))}
    return {plan.engine.requirements: requirements.read_bytes(), **shim}
