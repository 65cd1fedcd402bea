"""Suggestions of valid names, for hints."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_FEW: Final = 20


def closest_match(name: str, names: Iterable[str]) -> str | None:
    """Return the known name with the most similar spelling, None if no name is similar."""
    candidates = sorted(names)
    close = get_close_matches(name, candidates, n=1, cutoff=0.5)
    return close[0] if close else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a hint with the most similar name, else with all names if they are few, else an empty hint."""
    candidates = sorted(set(names))
    if closest := closest_match(name, candidates):
        return f"did you mean `{closest}`?"
    return f"known: {', '.join(f'`{candidate}`' for candidate in candidates)}" if 0 < len(candidates) <= _FEW else ""
