"""An evaluation's outcome as a file: every item with its answer, so that another one can be paired with it."""

from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from orchestrator.core.errors import BenchError
from orchestrator.core.validation import faults_in
from orchestrator.results.scores import SCHEMA, Outcome

_OUTCOME: Final = TypeAdapter(Outcome)


def file_name(suite: str) -> str:
    """What an outcome of that suite is called; `deploy report` looks for it."""
    return f"eval-{suite}.json"


def to_json(outcome: Outcome) -> str:
    """The outcome as JSON text."""
    return _OUTCOME.dump_json(outcome, indent=1).decode() + "\n"


def load(file: Path) -> Outcome:
    """Read an outcome. Raises BenchError for what is missing, damaged or of another schema."""
    try:
        outcome = _OUTCOME.validate_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"cannot read the outcome: {error.strerror}", where=str(file)) from error
    except ValidationError as error:
        raise BenchError("not an outcome of `deploy eval`", where=str(file), problems=faults_in(error)[:10]) from error
    if outcome.schema_version != SCHEMA or not outcome.items:
        raise BenchError("an outcome of another version, or an empty one", where=str(file), hint="evaluate again")
    return outcome
