"""The catalog of failure signatures: `signatures.yaml`, read and checked."""

import re
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

from pydantic import Field

from orchestrator.core.validation import StrictModel, read_model

CATALOG: Final = Path(__file__).with_name("signatures.yaml")


class Effect(StrEnum):
    """What a signature means for the server."""

    FATAL = "fatal"  # a cause: the server stopped, or never started, because of it
    DEGRADED = "degraded"  # the server serves, and not as it should: fails a smoke test
    NOTICE = "notice"  # worth knowing
    CONSEQUENCE = "consequence"  # says that something failed, and not why


class LinePattern(StrictModel):
    """A line: it holds `text`, the pattern `regex` is found in it, and none of `unless` is.

    `text` is required for speed: a gigabyte is searched for literals, and only the lines around them are matched.
    """

    text: str = Field(min_length=4)
    regex: re.Pattern[str] | None = Field(default=None)
    unless: tuple[str, ...] = Field(default=())

    @property
    def numbered(self) -> bool:
        """Whether a certain number is meant: of two lines that differ in numbers only, one may be such a line."""
        pattern = self.regex.pattern if self.regex else ""
        return any(character.isdigit() for character in "".join((self.text, pattern, *self.unless)))

    def matches(self, line: str) -> bool:
        """Whether `line` is such a line."""
        return (
            self.text in line
            and (self.regex is None or self.regex.search(line) is not None)
            and not any(text in line for text in self.unless)
        )


class Signature(StrictModel):
    """One failure that is known: any of `lines`, and where given any of `near` at most `within` lines before it.

    Not where any of `unless_near` stands there.
    """

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    effect: Effect
    lines: tuple[LinePattern, ...] = Field(min_length=1)
    near: tuple[LinePattern, ...] = Field(default=())
    unless_near: tuple[LinePattern, ...] = Field(default=())
    within: int = Field(default=80, gt=0)
    cause: str
    hint: str
    source: str


class _Signatures(StrictModel):
    signatures: tuple[Signature, ...]


@cache
def load_catalog() -> tuple[Signature, ...]:
    """Every signature, in the order of the file."""
    return read_model(CATALOG, _Signatures, CATALOG.name).signatures
