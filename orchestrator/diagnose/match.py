"""Reading a log once, in bounded memory, for everything that the catalogue knows."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from orchestrator.core.secret import redact
from orchestrator.diagnose.catalogue import Clause, Signature, load_catalogue
from orchestrator.diagnose.report import TAIL_LINES, Diagnosis, Evidence, Match
from orchestrator.engine.log import quotes_a_user

BATCH_LINES: Final = 4096
KEPT_EVIDENCE: Final = 3
SHOWN_CHARACTERS: Final = 400


class _Watch:
    """What has been seen of one signature."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.count = 0
        self.evidence: list[Evidence] = []
        self._context: Evidence | None = None

    def see(self, number: int, line: str) -> None:
        if any(clause.matches(line) for clause in self.signature.near):
            self._context = _evidence(number, line)
        if not any(clause.matches(line) for clause in self.signature.lines):
            return
        context = self._context
        if self.signature.near and (context is None or number - context.line > self.signature.within):
            return
        self.count += 1
        if not self.evidence and context is not None and context.line != number:
            self.evidence.append(context)
        if len(self.evidence) < KEPT_EVIDENCE:
            self.evidence.append(_evidence(number, line))


def diagnose(lines: Iterable[str], *, catalogue: Sequence[Signature] | None = None) -> Diagnosis:
    """What `lines` (without line ends) say, by the catalogue.

    Reads once and keeps a batch of lines, a few lines of evidence a signature and the last lines of the log.
    """
    watches = [_Watch(signature) for signature in (load_catalogue() if catalogue is None else catalogue)]
    literals = [(clause.text, watch) for watch in watches for clause in _clauses(watch.signature)]
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    total = 0
    iterator = iter(lines)
    while batch := list(islice(iterator, BATCH_LINES)):
        text = "\n".join(batch)
        if live := [(literal, watch) for literal, watch in literals if literal in text]:
            _see_batch(batch, first=total + 1, live=live)
        total += len(batch)
        tail.extend(batch)
    matches = [Match(signature=w.signature, count=w.count, evidence=tuple(w.evidence)) for w in watches if w.count]
    return Diagnosis(
        matches=tuple(sorted(matches, key=Match.order)),
        lines=total,
        tail=tuple(redact(line[:SHOWN_CHARACTERS]) for line in tail),
    )


def _see_batch(batch: Sequence[str], *, first: int, live: Sequence[tuple[str, _Watch]]) -> None:
    for number, line in enumerate(batch, start=first):
        watches = {id(watch): watch for literal, watch in live if literal in line}
        if watches and not quotes_a_user(line):
            for watch in watches.values():
                watch.see(number, line)


def _clauses(signature: Signature) -> tuple[Clause, ...]:
    return (*signature.lines, *signature.near)


def _evidence(number: int, line: str) -> Evidence:
    return Evidence(line=number, text=redact(line.strip()[:SHOWN_CHARACTERS]))
