"""Catalog of failure signatures: `signatures.yaml`."""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

from pydantic import Field

from orchestrator.core.validation import StrictModel, read_model

OTHER_ENGINE: Final = "other-engine"  # the signature of a log that sglang did not write
CATALOG: Final = Path(__file__).with_name("signatures.yaml")


class Effect(StrEnum):
    """Effect of a matched failure on the server. `MEANING` has their definitions."""

    FATAL = "fatal"
    DEGRADED = "degraded"
    NOTICE = "notice"
    SYMPTOM = "symptom"


MEANING: Final[Mapping[Effect, str]] = {
    Effect.FATAL: "a known cause of the failure, recognized by its log lines (the first one is the most likely)",
    Effect.DEGRADED: "the server runs with this fault",
    Effect.NOTICE: "information, no fault",
    Effect.SYMPTOM: "a consequence of a failure, not its cause",
}


class LinePattern(StrictModel):
    """Pattern of a line that contains `text`, matches `regex`, and contains none of `unless`.

    `text` is required for speed: the log is searched for literals, and only lines with a literal are matched.
    """

    text: str = Field(min_length=4)
    regex: re.Pattern[str] | None = Field(default=None)
    unless: tuple[str, ...] = Field(default=())

    @property
    def numbered(self) -> bool:
        """Whether the pattern contains digits: lines that differ only in numbers can then match differently."""
        pattern = self.regex.pattern if self.regex else ""
        return any(character.isdigit() for character in "".join((self.text, pattern, *self.unless)))

    def matches(self, line: str) -> bool:
        """Return whether `line` matches."""
        return (
            self.text in line
            and (self.regex is None or self.regex.search(line) is not None)
            and not any(text in line for text in self.unless)
        )


class Signature(StrictModel):
    """A known failure: any of `lines`, with any of `near` (if set) and none of `unless_near` `within` lines before.

    A line of `until` cancels an earlier line of `near`.
    """

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    effect: Effect
    lines: tuple[LinePattern, ...] = Field(min_length=1)
    near: tuple[LinePattern, ...] = Field(default=())
    unless_near: tuple[LinePattern, ...] = Field(default=())
    until: tuple[LinePattern, ...] = Field(default=())
    within: int = Field(default=80, gt=0)
    cause: str
    hint: str
    # The hint for another engine; "": the same hint; None: only sglang has this failure.
    other_engine_hint: str | None = Field(default=None)
    source: str


class _Signatures(StrictModel):
    signatures: tuple[Signature, ...]


@cache
def load_catalog() -> tuple[Signature, ...]:
    """Read every signature, in the order of the file."""
    return read_model(CATALOG, _Signatures, CATALOG.name).signatures
