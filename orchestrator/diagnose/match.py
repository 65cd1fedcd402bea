"""Search of a log for all signatures, in one pass and bounded memory."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from orchestrator.core.command_hints import expand_commands
from orchestrator.core.logs.lines import batches, last_lines, lines_containing
from orchestrator.core.secrets import excerpt
from orchestrator.core.text import line_shapes
from orchestrator.diagnose.report import TAIL_LINES, Diagnosis, Evidence, Match
from orchestrator.diagnose.signatures import OTHER_ENGINE, LinePattern, Signature, load_catalog
from orchestrator.engine.log import echoes_user_input

MAX_EVIDENCE: Final = 3
MAX_EVIDENCE_CHARACTERS: Final = 400
_MAX_LINE_CHARACTERS: Final = 8192  # enough to detect a secret at the cut


_Matched: TypeAlias = tuple[bool, ...]  # whether a line matches `near`, `lines`, `unless_near` and `until`


class _SignatureState:
    """The matches of one signature so far."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.numbered = any(clause.numbered for clause in _clauses(signature))
        self.count = 0
        self.evidence: list[Evidence] = []
        self._context: tuple[int, str] | None = None
        self._against: int | None = None  # the last line of `unless_near`

    def match_line(self, line: str) -> _Matched:
        """Match the line against each kind of pattern."""
        signature = self.signature
        kinds = (signature.near, signature.lines, signature.unless_near, signature.until)
        return tuple(any(clause.matches(line) for clause in clauses) for clauses in kinds)

    def see(self, number: int, line: str, matched: _Matched) -> None:
        near, evidence, against, end = matched
        if end:
            self._context = None
        if near:
            self._context = (number, line[:_MAX_LINE_CHARACTERS])
        if against:
            self._against = number
        if not evidence or (self._against is not None and number - self._against <= self.signature.within):
            return
        context = self._context
        if self.signature.near and (context is None or number - context[0] > self.signature.within):
            return
        self.count += 1
        if len(self.evidence) >= MAX_EVIDENCE:
            return
        if not self.evidence and context is not None and context[0] != number:
            self.evidence.append(_evidence(*context))
        self.evidence.append(_evidence(number, line))

    def match(self, *, other_engine: bool) -> Match | None:
        """Return the match; None if another engine wrote the log (`other_engine`) and only sglang has this failure."""
        signature = self.signature
        if other_engine and signature.other_engine_hint is None:
            return None
        described = signature.model_dump(include={"id", "effect", "cause", "source"})
        hint = expand_commands((signature.other_engine_hint if other_engine else "") or signature.hint)
        return Match(**described, hint=hint, count=self.count, evidence=tuple(self.evidence))


class _Search:
    """Search for the literals of all signatures; lines that differ in digits only are searched once per batch."""

    def __init__(self, watches: Sequence[_SignatureState]) -> None:
        self._watches: dict[bytes, list[_SignatureState]] = {}
        for watch in watches:
            for clause in _clauses(watch.signature):
                self._watches.setdefault(line_shapes(clause.text), []).append(watch)

    def see(self, text: str, *, before: int) -> int:
        """Match each line against its candidate signatures; `before` and the result count the lines so far."""
        of_lines = line_shapes(text).split(b"\n")
        after = before + len(of_lines)
        if not (concerned := self._concerned(b"\n".join(dict.fromkeys(of_lines)))):
            return after
        lines, by_kind = text.split("\n"), dict[bytes, list[tuple[_SignatureState, _Matched]]]()
        for index, kind in enumerate(of_lines):
            if kind not in concerned:
                continue
            line = lines[index]
            if kind not in by_kind:
                matched = [] if echoes_user_input(line) else [(item, item.match_line(line)) for item in concerned[kind]]
                by_kind[kind] = [(item, matches) for item, matches in matched if item.numbered or any(matches)]
            for watch, of_kind in by_kind[kind]:
                hits = watch.match_line(line) if watch.numbered else of_kind
                if any(hits):
                    watch.see(before + index + 1, line, hits)
        return after

    def _concerned(self, different: bytes) -> dict[bytes, list[_SignatureState]]:
        """Return the candidate signatures of each shape of line with a literal."""
        concerned: dict[bytes, dict[int, _SignatureState]] = {}
        for literal, watches in self._watches.items():
            for kind in lines_containing(literal, different):
                concerned.setdefault(kind, {}).update((id(watch), watch) for watch in watches)
        return {kind: [*watches.values()] for kind, watches in concerned.items()}


def diagnose(lines: Iterable[str]) -> Diagnosis:
    """Diagnose `lines` (without line ends) by the catalog.

    Keeps one batch of lines, a few lines of evidence for each signature and the last lines of the log.
    """
    watches = [_SignatureState(signature) for signature in load_catalog()]
    search = _Search(watches)
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    total = 0
    for batch in batches(lines):
        total = search.see(batch, before=total)
        tail.extend(line[:_MAX_LINE_CHARACTERS] for line in last_lines(batch, TAIL_LINES))
    matched = [watch for watch in watches if watch.count]
    other_engine = any(watch.signature.id == OTHER_ENGINE for watch in matched)
    matches = filter(None, (watch.match(other_engine=other_engine) for watch in matched))
    return Diagnosis(
        matches=tuple(sorted(matches, key=Match.order)),
        lines=total,
        tail=tuple(excerpt(line, MAX_EVIDENCE_CHARACTERS) for line in tail),
    )


def _clauses(signature: Signature) -> tuple[LinePattern, ...]:
    return (*signature.lines, *signature.near, *signature.unless_near, *signature.until)


def _evidence(number: int, line: str) -> Evidence:
    return Evidence(line=number, text=excerpt(line.strip(), MAX_EVIDENCE_CHARACTERS))
