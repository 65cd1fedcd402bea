"""Reading a log once, in bounded memory, for everything that the catalogue knows."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from orchestrator.core.log_lines import batches, different_lines, without_digits
from orchestrator.core.redaction import excerpt
from orchestrator.diagnose.catalogue import Clause, Signature, load_catalogue
from orchestrator.diagnose.report import TAIL_LINES, Diagnosis, Evidence, Match
from orchestrator.engine import quotes_a_user

KEPT_EVIDENCE: Final = 3
SHOWN_CHARACTERS: Final = 400
_KEPT_CHARACTERS: Final = 8192  # of a line: enough to tell a secret that stands where it is cut
_SHARED: Final = range(4, 10)  # characters


class _Watch:
    """What has been seen of one signature."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.count = 0
        self.evidence: list[Evidence] = []
        self._context: tuple[int, str] | None = None

    def see(self, number: int, line: str) -> None:
        if any(clause.matches(line) for clause in self.signature.near):
            self._context = (number, line[:_KEPT_CHARACTERS])
        if not any(clause.matches(line) for clause in self.signature.lines):
            return
        context = self._context
        if self.signature.near and (context is None or number - context[0] > self.signature.within):
            return
        self.count += 1
        if not self.evidence and context is not None and context[0] != number:
            self.evidence.append(_evidence(*context))
        if len(self.evidence) < KEPT_EVIDENCE:
            self.evidence.append(_evidence(number, line))


class _Search:
    """The search for the literals of all signatures: a text without the pieces that they share holds none of them.

    What a search costs goes by the length of what is searched for, inversely, and a log repeats itself but for digits.
    """

    def __init__(self, watches: Sequence[_Watch]) -> None:
        self._watches: dict[str, list[_Watch]] = {}
        for watch in watches:
            for clause in _clauses(watch.signature):
                self._watches.setdefault(clause.text, []).append(watch)

    def hits(self, lines: Sequence[str]) -> Iterator[tuple[int, list[_Watch]]]:
        """The index of each line with a literal in it, in order, with the signatures it may be a line of."""
        text = "\n".join(lines)
        different = different_lines(text)
        found: dict[int, dict[int, _Watch]] = {}
        by_piece = _by_piece(frozenset(self._watches))
        for literal in [each for piece, all_of in by_piece.items() if piece in different for each in all_of]:
            for index in _lines_with(literal, text):
                found.setdefault(index, {}).update((id(watch), watch) for watch in self._watches[literal])
        for index in sorted(found):
            yield index, list(found[index].values())


def diagnose(lines: Iterable[str], *, catalogue: Sequence[Signature] | None = None) -> Diagnosis:
    """What `lines` (without line ends) say, by the catalogue.

    Reads once and keeps a batch of lines, a few lines of evidence a signature and the last lines of the log.
    """
    watches = [_Watch(signature) for signature in (load_catalogue() if catalogue is None else catalogue)]
    search = _Search(watches)
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    total = 0
    for batch in batches(lines):
        for index, concerned in search.hits(batch):
            if not quotes_a_user(batch[index]):
                for watch in concerned:
                    watch.see(total + index + 1, batch[index])
        total += len(batch)
        tail.extend(line[:_KEPT_CHARACTERS] for line in batch[-TAIL_LINES:])
    matches = [Match(signature=w.signature, count=w.count, evidence=tuple(w.evidence)) for w in watches if w.count]
    return Diagnosis(
        matches=tuple(sorted(matches, key=Match.order)),
        lines=total,
        tail=tuple(excerpt(line, SHOWN_CHARACTERS) for line in tail),
    )


def _lines_with(literal: str, text: str) -> Iterator[int]:
    """The indices of the lines of `text` that hold `literal`."""
    index, counted = 0, 0
    at = text.find(literal)
    while at >= 0:
        index += text.count("\n", counted, at)
        yield index
        counted = text.find("\n", at)
        at = text.find(literal, counted) if counted >= 0 else -1


@cache
def _by_piece(literals: frozenset[str]) -> Mapping[str, list[str]]:
    """The literals by a piece of each without its digits, so that all pieces together cost little."""
    left, by_piece = {literal: without_digits(literal) for literal in literals}, dict[str, list[str]]()
    while left:
        gain = Counter[str]()
        for _, text in sorted(left.items()):
            gain.update(dict.fromkeys(_pieces(text), 1 / len(text)))
        piece = max(gain, key=lambda each: gain[each] - 1 / len(each))
        by_piece[piece] = sorted(literal for literal, text in left.items() if piece in text)
        left = {literal: text for literal, text in left.items() if piece not in text}
    return by_piece


def _pieces(literal: str) -> set[str]:
    """What others may share of it, and itself."""
    starts = range(len(literal) - _SHARED.start + 1)
    return {literal, *(literal[at : at + length] for length in _SHARED for at in starts)}


def _clauses(signature: Signature) -> tuple[Clause, ...]:
    return (*signature.lines, *signature.near)


def _evidence(number: int, line: str) -> Evidence:
    return Evidence(line=number, text=excerpt(line.strip(), SHOWN_CHARACTERS))
