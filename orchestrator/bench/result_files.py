"""Results on disk: measurements, request files, and the provenance stored in a run directory."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.bench.requests import RequestTimes, parse_requests
from orchestrator.bench.result import RESULT_FILE, BenchResult, ServerProvenance
from orchestrator.core.console import warn
from orchestrator.core.errors import BenchError
from orchestrator.core.files import read_file
from orchestrator.plan.plan import Plan
from orchestrator.runs.run_dir import MAX_BYTES, RunDir

_MAX_REQUESTS_BYTES: Final = 256 << 20  # requests of a point; 10,000 requests of 1,000 tokens need 200 MB


def read_result_text(file: Path, description: str, *, max_bytes: int = MAX_BYTES) -> str:
    """Read a text file of a result. Raises BenchError if it is unreadable or not UTF-8."""
    try:
        return read_file(file, most=max_bytes).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BenchError(f"cannot read the {description}: {reason}", location=str(file)) from error


def load_result(path: Path) -> BenchResult:
    """Load a measurement from its file or directory. Raises BenchError if it is unreadable or invalid."""
    file = path / RESULT_FILE if path.is_dir() else path
    return BenchResult.from_json(read_result_text(file, "result"), location=str(file))


def load_requests(file: Path) -> tuple[RequestTimes, ...]:
    """Load the requests of one point. Raises BenchError if the file is unreadable or invalid."""
    return parse_requests(
        read_result_text(file, "requests", max_bytes=_MAX_REQUESTS_BYTES).splitlines(), location=str(file)
    )


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
