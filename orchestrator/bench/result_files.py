"""Results on disk: measurements, request files, and the provenance stored in a run directory."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from orchestrator.bench.result import RESULT_FILE, BenchResult, Point, ServerProvenance, Slope, parse_strict
from orchestrator.core.console import warn
from orchestrator.core.errors import BenchError
from orchestrator.core.files import read_file
from orchestrator.core.safe_paths import FileName
from orchestrator.plan.plan import Plan
from orchestrator.runs.run_dir import MAX_BYTES, RunDir

_MAX_REQUESTS_BYTES: Final = 256 << 20  # requests of a point; 10,000 requests of 1,000 tokens need 200 MB


@dataclass(frozen=True, kw_only=True)
class RequestTimes:
    """One request, in seconds after the first planned arrival; `first_token_s` is None if no token arrived."""

    scheduled_s: float
    started_s: float
    first_token_s: float | None
    ended_s: float
    failed: bool


@dataclass(frozen=True, kw_only=True)
class _Line:
    """The used fields of a line; clock error may make a time slightly negative."""

    scheduled_s: Slope
    started_s: Slope
    ended_s: Slope
    chunk_s: tuple[Slope, ...]
    failure: str | None = None


_LINE: Final = TypeAdapter(_Line)


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


def requests_file(point: Point) -> FileName:
    """Return the name of the requests file of a point, derived from its load, as a label may hold any text."""
    name = f"closed-{point.concurrency}" if point.offered_rps is None else f"{point.offered_rps:g}"
    return FileName(f"requests-{name}.jsonl")


def load_requests(file: Path) -> tuple[RequestTimes, ...]:
    """Load the requests of one point. Raises BenchError for an unreadable file, or with the location of a bad line."""
    requests = []
    for number, text in enumerate(
        read_result_text(file, "requests", max_bytes=_MAX_REQUESTS_BYTES).splitlines(), start=1
    ):
        line = parse_strict(_LINE, text, description="request of `deploy bench`", location=f"{file}:{number}")
        times = RequestTimes(
            scheduled_s=line.scheduled_s,
            started_s=line.started_s,
            first_token_s=line.chunk_s[0] if line.chunk_s else None,
            ended_s=line.ended_s,
            failed=line.failure is not None,
        )
        requests.append(times)
    return tuple(requests)


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
