"""Diagnosis of a log: the matched signatures and their evidence, as text and JSON."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from orchestrator.diagnose.signatures import MEANING, Effect

TAIL_LINES: Final = 40
_RANK: Final = {Effect.FATAL: 0, Effect.DEGRADED: 1, Effect.NOTICE: 2, Effect.SYMPTOM: 3}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A matched line; `line` counts from 1."""

    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Match:
    """A known failure found `count` times in a log, with the first matched lines."""

    id: str
    effect: Effect
    cause: str
    hint: str
    source: str
    count: int
    evidence: tuple[Evidence, ...]

    def order(self) -> tuple[int, int]:
        """Return the sort key: causes before symptoms, then by line."""
        return _RANK[self.effect], self.evidence[0].line

    def to_text(self, *, brief: bool = False) -> str:
        """Format the match with its evidence; `brief` omits cause, hint and source."""
        count = f" ({self.count} times)" if self.count > 1 else ""
        quotes = [f"line {evidence.line}: {evidence.text}" for evidence in self.evidence]
        explanation = [] if brief else [f"cause: {self.cause}", f"hint: {self.hint}", f"source: {self.source}"]
        return "\n  ".join([f"{self.effect}: {self.id}{count}", *quotes, *explanation])


def legend(matches: Iterable[Match]) -> str:
    """Define the effects of the matches, in one line."""
    effects = {match.effect for match in matches}
    return "; ".join(f"`{effect}`: {MEANING[effect]}" for effect in Effect if effect in effects)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Diagnosis of a log of `lines` lines; `tail` is its end. Secrets are redacted."""

    matches: tuple[Match, ...]
    lines: int
    tail: tuple[str, ...]

    @property
    def cause(self) -> Match | None:
        """The first fatal match; None if no signature explains a failure."""
        return next((match for match in self.matches if match.effect is Effect.FATAL), None)

    @property
    def degraded(self) -> tuple[str, ...]:
        """The faults of a running server, one line each; they fail a smoke test."""
        degraded = (match for match in self.matches if match.effect is Effect.DEGRADED)
        return tuple(f"{match.id}: {match.evidence[-1].text}" for match in degraded)

    def to_text(self) -> str:
        """Format the matches, causes first; without a cause also the end of the log."""
        explained = self.cause is not None
        parts = [match.to_text(brief=explained and match.effect is Effect.SYMPTOM) for match in self.matches]
        parts += [legend(self.matches)] if parts else []
        if self.cause is None:
            summary = "no known cause of a failure" if parts else "no known signature"
            parts.append("\n".join([f"{summary}; the last {len(self.tail)} of {self.lines} lines:", *self.tail]))
        return "\n\n".join(parts)

    def to_output(self, *, healthy: bool, ended: str) -> "DiagnosisOutput":
        """Return the diagnosis for JSON."""
        return DiagnosisOutput(
            cause=self.cause.id if self.cause else None,
            matches=self.matches,
            lines=self.lines,
            tail=self.tail,
            healthy=healthy,
            ended=ended,
        )


@dataclass(frozen=True, kw_only=True)
class DiagnosisOutput:
    """A diagnosis: `cause` is the id of the first cause, or null; `tail` is the end of a log of `lines` lines.

    `healthy` is whether the server is healthy; `ended` says how it exited, "" if it has not.
    """

    cause: str | None
    matches: tuple[Match, ...]
    lines: int
    tail: tuple[str, ...]
    healthy: bool
    ended: str
