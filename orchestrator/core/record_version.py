"""The version of the record files in a run directory; a record of another version is reported and never read."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

T = TypeVar("T")

RECORD_VERSION: Final = 4  # increased by each change that makes an older `deploy` misread a record
KEY: Final = "version"


class OtherVersionError(ValueError):
    """A record was written by another version of `deploy`."""


def version_problem(record: Mapping[str, object]) -> str:
    """Return the reason why this version cannot read a record, as the end of a sentence; "" if it can."""
    version = record.get(KEY)
    if version == RECORD_VERSION and type(version) is int:
        return ""
    number = version if type(version) is int else "unknown"
    return f"record version {number}; this `deploy` reads version {RECORD_VERSION}"


def read_versioned(record: object, read: Callable[[dict[str, Any]], T]) -> T:
    """Return the result of `read` for a record of this version. Raises OtherVersionError, ValueError if damaged."""
    if not isinstance(record, dict) or KEY not in record:
        raise ValueError("damaged record")
    if problem := version_problem(record):
        raise OtherVersionError(problem)
    try:
        return read(record)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError("damaged record") from error
