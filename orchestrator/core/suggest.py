"""The nearest valid name, for hints."""

from collections.abc import Iterable
from difflib import get_close_matches


def closest_match(name: str, known: Iterable[str]) -> str | None:
    """The known name that is spelled most like `name`, None where none is near."""
    candidates = sorted(known)
    close = get_close_matches(name, candidates, n=1, cutoff=0.5)
    return close[0] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest name, or with all of them where none is near."""
    candidates = sorted(known)
    if near := closest_match(name, candidates):
        return f"did you mean `{near}`?"
    return f"known: {', '.join(f'`{candidate}`' for candidate in candidates)}" if candidates else ""
