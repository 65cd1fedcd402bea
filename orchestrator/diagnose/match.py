"""Search of a log for all signatures, in one pass and bounded memory."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from heapq import heapify, heappop, heapreplace
from typing import Final, TypeAlias

from orchestrator.core.logs.lines import batches, last_lines, lines_containing
from orchestrator.core.secrets import excerpt
from orchestrator.core.text import line_shapes, present_in, repetitive
from orchestrator.diagnose.report import TAIL_LINES, Diagnosis, Evidence, Match
from orchestrator.diagnose.signatures import OTHER_ENGINE, LinePattern, Signature, load_catalog
from orchestrator.engine.log import echoes_user_input

MAX_EVIDENCE: Final = 3
SHOWN_CHARACTERS: Final = 400
_MAX_LINE_CHARACTERS: Final = 8192  # of a line: enough to detect a secret at the cut
_SHARED: Final = range(4, 10)  # characters
_SHORT: Final = 16  # characters: shorter lines are searched faster without deduplication
_SAMPLE: Final = 1 << 12  # characters that decide whether lines are deduplicated
_NO_LETTERS: Final = bytes({*range(256)} - {*b"_", *range(ord("A"), ord("Z") + 1), *range(ord("a"), ord("z") + 1)})


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

    def says(self, line: str) -> _Matched:
        """Match the line against each kind of pattern."""
        known = self.signature
        kinds = (known.near, known.lines, known.unless_near, known.until)
        return tuple(any(clause.matches(line) for clause in clauses) for clauses in kinds)

    def see(self, number: int, line: str, said: _Matched) -> None:
        near, proof, against, end = said
        if end:
            self._context = None
        if near:
            self._context = (number, line[:_MAX_LINE_CHARACTERS])
        if against:
            self._against = number
        if not proof or (self._against is not None and number - self._against <= self.signature.within):
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


class _Search:
    """Search for the literals of all signatures: a text without their shared substrings contains none of them.

    A search is faster for longer substrings, and many lines of a log differ in digits only: each shape of line is
    searched and matched once per batch. Half of most logs is no letters, and is not searched.
    """

    def __init__(self, watches: Sequence[_SignatureState]) -> None:
        self._watches: dict[bytes, list[_SignatureState]] = {}
        for watch in watches:
            for clause in _clauses(watch.signature):
                self._watches.setdefault(line_shapes(clause.text), []).append(watch)
        self._literals: dict[bytes, list[bytes]] = {}  # by their letters
        for literal in self._watches:
            self._literals.setdefault(_letters(literal), []).append(literal)

    def see(self, text: str, *, before: int) -> int:
        """Match each line against its candidate signatures; `before` and the result are numbers of lines so far."""
        found = line_shapes(text)
        after = before + found.count(b"\n") + 1
        if len(found) < _SHORT * (after - before) and not self._told(found):
            return after
        repeats = repetitive(found[:_SAMPLE].split(b"\n"))
        different = b"\n".join(dict.fromkeys(found.split(b"\n"))) if repeats else found
        if not (concerned := self._concerned(different)):
            return after
        of_lines = found.split(b"\n")
        lines, judged = text.split("\n"), dict[bytes, list[tuple[_SignatureState, _Matched]]]()
        for index, kind in enumerate(of_lines):
            if kind not in concerned:
                continue
            line = lines[index]
            if kind not in judged:
                told = [] if echoes_user_input(line) else [(each, each.says(line)) for each in concerned[kind]]
                judged[kind] = [(each, said) for each, said in told if each.numbered or any(said)]
            for watch, of_kind in judged[kind]:
                said = watch.says(line) if watch.numbered else of_kind
                if any(said):
                    watch.see(before + index + 1, line, said)
        return after

    def _concerned(self, of_lines: bytes) -> dict[bytes, list[_SignatureState]]:
        """Return the candidate signatures of each shape of line with a literal."""
        concerned: dict[bytes, dict[int, _SignatureState]] = {}
        for literal in self._told(of_lines):
            for kind in lines_containing(literal, of_lines):
                concerned.setdefault(kind, {}).update((id(watch), watch) for watch in self._watches[literal])
        return {kind: [*watches.values()] for kind, watches in concerned.items()}

    def _told(self, of_lines: bytes) -> list[bytes]:
        """Return the literals that may occur, because one of their substrings does."""
        letters, by_piece = _letters(of_lines), _by_piece(frozenset(self._literals) - {b""})
        found = [b"", *(each for piece in present_in(letters, by_piece) for each in by_piece[piece])]
        return [literal for each in found for literal in self._literals.get(each, ())]


def diagnose(lines: Iterable[str], *, catalog: Sequence[Signature] | None = None) -> Diagnosis:
    """Diagnose `lines` (without line ends) by the catalog.

    Keeps one batch of lines, a few lines of evidence for each signature and the last lines of the log.
    """
    watches = [_SignatureState(signature) for signature in (load_catalog() if catalog is None else catalog)]
    search = _Search(watches)
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    total = 0
    for batch in batches(lines):
        total = search.see(batch, before=total)
        tail.extend(line[:_MAX_LINE_CHARACTERS] for line in last_lines(batch, TAIL_LINES))
    matches = [Match(signature=w.signature, count=w.count, evidence=tuple(w.evidence)) for w in watches if w.count]
    if any(found.signature.id == OTHER_ENGINE for found in matches):
        matches = [each for found in matches if (each := found.of_another_engine()) is not None]
    return Diagnosis(
        matches=tuple(sorted(matches, key=Match.order)),
        lines=total,
        tail=tuple(excerpt(line, SHOWN_CHARACTERS) for line in tail),
    )


@cache
def _by_piece(literals: frozenset[bytes]) -> Mapping[bytes, list[bytes]]:
    """Group the literals by a shared substring, at a low total cost of search.

    Greedy: the substring with the largest saving is next. Savings only fall, so only the top of the heap is recomputed.
    """
    left, by_piece, holders = set(literals), dict[bytes, list[bytes]](), dict[bytes, list[bytes]]()
    for literal in sorted(literals):
        for piece in _pieces(literal):
            holders.setdefault(piece, []).append(literal)

    def cost(piece: bytes) -> tuple[float, bytes]:
        return 1 / len(piece) - sum(1 / len(literal) for literal in holders[piece] if literal in left), piece

    heap = [cost(piece) for piece in holders]
    heapify(heap)
    while left:
        now = cost(heap[0][1])
        if now > heap[0]:
            heapreplace(heap, now)
            continue
        _, piece = heappop(heap)
        by_piece[piece] = sorted(literal for literal in left if piece in literal)
        left.difference_update(by_piece[piece])
    return by_piece


def _pieces(literal: bytes) -> set[bytes]:
    """Return the literal and its substrings that others may share."""
    starts = range(len(literal) - _SHARED.start + 1)
    return {literal, *(literal[at : at + length] for length in _SHARED for at in starts)}


def _letters(text: bytes) -> bytes:
    return text.translate(None, _NO_LETTERS)


def _clauses(signature: Signature) -> tuple[LinePattern, ...]:
    return (*signature.lines, *signature.near, *signature.unless_near, *signature.until)


def _evidence(number: int, line: str) -> Evidence:
    return Evidence(line=number, text=excerpt(line.strip(), SHOWN_CHARACTERS))
