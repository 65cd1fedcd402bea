"""The version of the files that a start keeps of itself: a record of another version is named, and never read."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

T = TypeVar("T")

RECORD_VERSION: Final = 2  # one more with each change after which an older `deploy` would misread a record
KEY: Final = "version"


class OtherVersionError(ValueError):
    """A record that another version of `deploy` has written."""


def version_problem(record: Mapping[str, object]) -> str:
    """Why this version cannot read a record, as the end of a sentence; "" where it can."""
    found = record.get(KEY, 0)
    if found == RECORD_VERSION and type(found) is int:
        return ""
    named = found if type(found) is int else "unknown"
    return f"it has version {named}, and this `deploy` reads version {RECORD_VERSION}"


def read_versioned(record: object, read: Callable[[dict[str, Any]], T]) -> T:
    """What `read` makes of a record of this version. Raises OtherVersionError, ValueError for a damaged one."""
    if not isinstance(record, dict):
        raise ValueError("it is damaged")  # noqa: TRY004 - one kind of error for whoever reads a record
    problem = version_problem(record)
    if problem and KEY in record:
        raise OtherVersionError(problem)
    try:
        known = read(record)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(problem or "it is damaged") from error
    if problem:  # whole, and from before records had a version
        raise OtherVersionError(problem)
    return known
