"""What a plan's image is made from, read from images/ and patches/."""

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

_MOST_GIVEN: Final = 256 << 20  # bytes of a file given to a patch: it is held whole, and copied into the image
_ARGUMENT_CHECKER: Final = "check_server_args.py"
PROGRAMS: Final = ("apply_patches.py", "read_sources.py")  # what runs inside an image; the first imports the other


def image_sources(
    plan: Plan, *, inputs: Mapping[str, bytes] | None = None, catalog: Catalog | None = None
) -> ImageSources:
    """The template, the patches the plan carries, and every file the template copies.

    `inputs` are the files given to patches, by input name. Raises BuildError for a template that does not exist.
    """
    catalog = catalog or Catalog.from_environment()
    patches = carried_patches(plan, catalog)
    return ImageSources(
        template=_template(plan, catalog),
        programs={path.name: path.read_bytes() for path in program_paths()},
        patches=patches,
        diffs=read_diffs(patches, catalog),
        inputs=inputs or {},
        files=_copied(plan, catalog),
    )


def carried_patches(plan: Plan, catalog: Catalog | None = None) -> tuple[Patch, ...]:
    """The patches that the plan carries, as the ledger has them."""
    carried = {use.id for use in plan.patches}
    return tuple(patch for patch in read_ledger(catalog) if patch.id in carried)


def program_paths() -> tuple[Path, ...]:
    """The program that runs inside an image, and that `deploy patches check` runs on other sources; what it imports."""
    return tuple(data_root() / "images" / name for name in PROGRAMS)


def read_inputs(paths: Mapping[str, Path]) -> dict[str, bytes]:
    """The files a user gives to patches. Raises UsageError for one that cannot be read."""
    try:
        return {name: read_file(path, most=_MOST_GIVEN) for name, path in paths.items()}
    except OSError as error:
        raise UsageError(f"`{error.filename}` cannot be read: {error.strerror}") from error


def input_digests(inputs: Mapping[str, bytes]) -> dict[str, str]:
    """sha256 of every input, hex: what a plan is decided with."""
    return {name: sha256(content).hexdigest() for name, content in inputs.items()}


def _template(plan: Plan, catalog: Catalog) -> str:
    path = catalog.find(EntryKind.IMAGE_FILE, f"{plan.engine.dockerfile}.Dockerfile.j2")
    if path is None:
        raise BuildError(f"there is no image template `{plan.engine.dockerfile}`", where=f"engine {plan.engine.name}")
    return path.read_text(encoding="utf-8")


def _copied(plan: Plan, catalog: Catalog) -> dict[str, bytes]:
    return {**_of_the_engine(plan, catalog), **_of_the_gateway(plan, catalog)}


def _of_the_gateway(plan: Plan, catalog: Catalog) -> dict[str, bytes]:
    """Its pinned list and its launcher, where the plan has one."""
    names = (plan.gateway.requirements, LAUNCHER) if plan.gateway else ()
    return {f"{GATEWAY_FOLDER}/{name}": catalog.path(EntryKind.IMAGE_FILE, name).read_bytes() for name in names}


def _of_the_engine(plan: Plan, catalog: Catalog) -> dict[str, bytes]:
    """The requirement file of an engine that is installed in the build, with the shim it starts through."""
    if plan.engine.requirements is None:
        return {}
    requirements = catalog.find(EntryKind.IMAGE_FILE, plan.engine.requirements)
    if requirements is None:
        message = f"there is no requirement file `{plan.engine.requirements}`"
        raise BuildError(message, where=f"engine {plan.engine.name}")
    images = data_root() / "images"
    shim = {path.relative_to(images).as_posix(): path.read_bytes() for path in sorted(images.glob("cpu_shim/*.p*"))}
    return {plan.engine.requirements: requirements.read_bytes(), **shim}


def argument_checker() -> str:
    """The program by which an engine's Python judges command lines."""
    return (data_root() / "images" / _ARGUMENT_CHECKER).read_text(encoding="utf-8")
