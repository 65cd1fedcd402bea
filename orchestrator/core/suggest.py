"""Suggestions of valid names, for hints."""

from collections.abc import Iterable
from difflib import get_close_matches


def closest_match(name: str, known: Iterable[str]) -> str | None:
    """Return the known name with the most similar spelling, None if no name is similar."""
    candidates = sorted(known)
    close = get_close_matches(name, candidates, n=1, cutoff=0.5)
    return close[0] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the most similar name, or with all names if none is similar; empty without names."""
    candidates = sorted(known)
    if near := closest_match(name, candidates):
        return f"did you mean `{near}`?"
    return f"known: {', '.join(f'`{candidate}`' for candidate in candidates)}" if candidates else ""
