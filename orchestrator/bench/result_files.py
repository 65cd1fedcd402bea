"""Results on disk: measurements, the requests of their points, the provenance that a run directory holds."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.bench.requests import RequestTimes, read_requests
from orchestrator.bench.result import RESULT_FILE, BenchResult, ServerProvenance
from orchestrator.core.console import warn
from orchestrator.core.errors import BenchError
from orchestrator.core.files import read_file
from orchestrator.plan.plan import Plan
from orchestrator.runs.run_dir import MAX_BYTES, RunDir

_MAX_REQUESTS_BYTES: Final = 256 << 20  # of the requests of a point; ten thousand of a thousand tokens each have 200 MB


def read_result_text(file: Path, what: str, *, most: int = MAX_BYTES) -> str:
    """Read a file of a result; `what` names it in the message. Raises BenchError."""
    try:
        return read_file(file, most=most).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BenchError(f"cannot read the {what}: {reason}", where=str(file)) from error


def load_result(path: Path) -> BenchResult:
    """A measurement, from its file or the directory that holds it. Raises BenchError for one that cannot be read."""
    file = path / RESULT_FILE if path.is_dir() else path
    return BenchResult.from_json(read_result_text(file, "result"), where=str(file))


def load_requests(file: Path) -> tuple[RequestTimes, ...]:
    """The requests of one point, from their file. Raises BenchError for one that cannot be read."""
    return read_requests(read_result_text(file, "requests", most=_MAX_REQUESTS_BYTES).splitlines(), where=str(file))


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
        host=run.read("host.json") or None,
        gpu=plan.hardware.name if plan else None,
        gpus=len(plan.gpus) if plan else None,
    )


def results_under(directory: Path) -> Iterator[BenchResult]:
    """The measurements below a directory; one that cannot be read is said and left out."""
    for path in sorted(directory.rglob(RESULT_FILE)):
        try:
            result = load_result(path)
        except BenchError as error:
            warn(f"a result is left out: {error.message}: `{path}`")
            continue
        if result.points:
            yield result
