"""The JSON documents of a trace: the lines of a `.jsonl` file, a `.json` file, or the `.json` files of a directory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.core.errors import Problem, ProfileError
from orchestrator.core.validation import validation_problems

_MAX_BYTES: Final = 1 << 28  # for one document: a session with all its block ids
Form = TypeVar("Form", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class TraceDocument:
    """One JSON document, with its location in the file."""

    content: bytes
    location: str  # file:line
    offset: int = 0  # position of its first byte


def documents(path: Path) -> Iterator[TraceDocument]:
    """Yield the documents of a trace. Raises ProfileError for an unreadable file or an overlong line."""
    try:
        if path.is_dir():
            for item in sorted(path.glob("*.json")):
                yield from documents(item)
            return
        with path.open("rb") as stream:
            if path.suffix == ".json":
                yield TraceDocument(_bounded(stream.read(_MAX_BYTES + 1), f"{path}:1"), f"{path}:1")
                return
            number = offset = 0
            while line := stream.readline(_MAX_BYTES + 1):
                number += 1
                if line.strip():
                    yield TraceDocument(_bounded(line, f"{path}:{number}"), f"{path}:{number}", offset)
                offset += len(line)
    except OSError as error:
        raise _unreadable(path, error) from error


def read_at(path: Path, offset: int, number: int) -> TraceDocument:
    """Read line `number` of a file, which begins at `offset`. Raises ProfileError for an unreadable file."""
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            return TraceDocument(stream.readline(_MAX_BYTES + 1), f"{path}:{number}", offset)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ProfileError:
    return ProfileError(f"cannot read the trace: {error.strerror}", location=str(path))


def parse(form: type[Form], document: TraceDocument, *, expected: str) -> Form:
    """Parse a document. Raises ProfileError with its location, each problem, and the `expected` form."""
    try:
        return form.model_validate_json(document.content, strict=True)
    except ValidationError as error:
        problems_found = validation_problems(error, lambda _: document.location)[:10]
    problems = tuple(Problem(item.message, item.location) for item in problems_found)
    raise ProfileError("invalid trace", problems=problems, hint=f"expected {expected}")


def reject_document(document: TraceDocument, message: str, *, expected: str) -> NoReturn:
    """Raise ProfileError for a document that breaks a rule of its format."""
    raise ProfileError(f"invalid trace: {message}", location=document.location, hint=f"expected {expected}")


def _bounded(content: bytes, location: str) -> bytes:
    if len(content) > _MAX_BYTES:
        raise ProfileError(f"invalid trace: more than {_MAX_BYTES >> 20} MiB in one line", location=location)
    return content
