"""The plan of an earlier start, to be started as it was: not decided anew, whatever its profile says by now."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from orchestrator.core.errors import Problem, StartError
from orchestrator.core.files import read_file
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.images.sources import carried_patches
from orchestrator.kernels.disk.store import Store
from orchestrator.kernels.plan_coverage import NOTHING_GIVEN, RowSources
from orchestrator.patches.schema import MOE_TABLE, AddedFile
from orchestrator.plan.plan import Plan
from orchestrator.planner.prebuilt import ready_rows
from orchestrator.render.scripts import IMAGE_FOLDER
from orchestrator.runs.run_dir import RunDir, read_plan
from orchestrator.runtimes.base import Place

_MOST_BYTES = 64 << 20  # of a file that a patch was given; a table has some MB


def recorded(run: RunDir, home: Home) -> tuple[Plan, dict[str, bytes]]:
    """The plan of a run and the files that its patches were given, by input name.

    Raises StartError for a plan that cannot be read or was changed after its start, and with everything that is gone.
    """
    plan, place = read_plan(run), str(run.path / "plan.json")
    if plan is None:
        raise StartError(
            "the plan of this run cannot be read: it is damaged, or of another version of this tool",
            where=place,
            hint="`deploy up PROFILE` starts what its profile says now",
        )
    if not run.digest or not plan.digest.startswith(run.digest):
        raise StartError(
            f"this plan is not the one that was started: its digest begins with `{plan.digest[:8]}`",
            where=place,
            hint="a run directory is named by its time and its plan's digest; `deploy up PROFILE` starts a profile",
        )
    inputs: dict[str, bytes] = {}
    if gone := tuple(_gone(plan, run, home, inputs)):
        raise StartError(f"`{run.path.name}` cannot be repeated as it was", where=place, problems=gone)
    return plan, inputs


def recorded_rows(plan: Plan, place: Place, *, accept_untuned: bool) -> RowSources:
    """Where the rows of its tuned table are read from: of an image that was ready, that image."""
    if plan.ready_image is None:
        return NOTHING_GIVEN
    return ready_rows(plan, place, accept_untuned=accept_untuned)


def _gone(plan: Plan, run: RunDir, home: Home, inputs: dict[str, bytes]) -> Iterator[Problem]:
    """What the plan names and this machine no longer has; what it has is put into `inputs`."""
    if plan.ready_image is not None:
        return  # all of it is in the image
    carried = {patch.id: patch for patch in carried_patches(plan)}
    for use in plan.patches:
        patch = carried.get(use.id)
        if patch is None:
            yield Problem(f"there is no patch `{use.id}` any more", hint="`deploy patches list` shows those there are")
        elif use.input_sha256 is not None and isinstance(patch.apply, AddedFile):
            name = patch.apply.input
            found = _with_digest(use.input_sha256, _places(name, plan, run, home))
            if found is None:
                yield Problem(
                    f"the `{name}` that patch `{use.id}` was given is gone: sha256 {use.input_sha256}",
                    hint="`deploy up PROFILE` starts with the one that there is now",
                )
            else:
                inputs[name] = found


def _places(name: str, plan: Plan, run: RunDir, home: Home) -> Iterator[Path]:
    yield run.path / IMAGE_FOLDER / "tables" / FileName(name)
    if name == MOE_TABLE:
        yield Store.of(home, plan).table(plan)


def _with_digest(digest: str, places: Iterator[Path]) -> bytes | None:
    for path in places:
        try:
            content = read_file(path, most=_MOST_BYTES)
        except OSError:
            continue
        if hashlib.sha256(content).hexdigest() == digest:
            return content
    return None
