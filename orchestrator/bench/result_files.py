"""Results on disk: measurements, request files, and the provenance stored in a run directory."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.bench.result import RESULT_FILE, BenchResult, Point, ServerProvenance
from orchestrator.core.console import warn
from orchestrator.core.errors import BenchError
from orchestrator.core.files import read_file
from orchestrator.core.safe_paths import FileName
from orchestrator.plan.plan import Plan
from orchestrator.runs.run_dir import MAX_BYTES, RESULTS_FILE, RunDir


def read_result_text(file: Path, description: str, *, max_bytes: int = MAX_BYTES) -> str:
    """Read a text file of a result. Raises BenchError if it is unreadable or not UTF-8."""
    try:
        return read_file(file, max_bytes=max_bytes).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BenchError(f"cannot read the {description}: {reason}", location=str(file)) from error


def load_result(path: Path) -> BenchResult:
    """Load a measurement from its file or directory. Raises BenchError if it is unreadable or invalid."""
    file = path / RESULT_FILE if path.is_dir() else path
    return BenchResult.from_json(read_result_text(file, "result"), location=str(file))


def requests_file(point: Point) -> FileName:
    """Return the name of a point's requests file, derived from its load because a label may contain any text."""
    name = f"closed-{point.concurrency}" if point.offered_rps is None else f"{point.offered_rps:g}"
    return FileName(f"requests-{name}.jsonl")


def provenance_of(run: RunDir, plan: Plan | None) -> ServerProvenance:
    """Return the provenance of a server, read from its run directory."""
    image = run.read("image.json").get("id")
    return ServerProvenance(
        name=run.path.parent.name,
        profile=plan.profile if plan else None,
        plan=json.loads(plan.to_json()) if plan else None,
        plan_digest=plan.digest if plan else None,
        image_digest=image if isinstance(image, str) else None,
        patch_receipt=run.read("patches.json") or None,
        host=run.read("preflight.json") or None,
        gpu=plan.hardware.name if plan else None,
        gpus=plan.gpu_count if plan else None,
    )


def results_under(directory: Path) -> Iterator[BenchResult]:
    """Yield the measurements below a directory; warn about unreadable ones and skip them."""
    for path in sorted(directory.rglob(RESULT_FILE)):
        try:
            result = load_result(path)
        except BenchError as error:
            warn(f"skipped the result `{path}`: {error.message}")
            continue
        if result.points:
            yield result


def recorded_results(run: RunDir) -> Iterator[BenchResult]:
    """Yield the results that `deploy bench` recorded in a run, oldest first, except removed and empty ones."""
    directories = run.read(RESULTS_FILE).get("directories")
    for directory in directories if isinstance(directories, list) else ():
        with suppress(BenchError, OSError):
            result = load_result(Path(str(directory)))
            if result.points:
                yield result
