"""Traces of coding agents (Weka's kv-cache-tester, semianalysisai/cc-traces-weka): one session per document.

Fields as in aiperf 0.13.0 (dataset/loader/weka_trace_models.py): seconds from the start of the session, block hashes
that are valid within it, and subagents with their own requests. A subagent starts after the request before its entry;
the first request after its recorded end waits for it. aiperf also splits parallel requests of one list into separate
sessions; here they follow one another.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from orchestrator.bench.traces.documents import TraceDocument, documents, parse, reject_document
from orchestrator.bench.traces.request import TraceRequest, Tree, block_id_base
from orchestrator.core.validation import StrictModel

EXPECTED: Final = (
    '{"id": text, "block_size": tokens, "hash_id_scope": "local", "requests": [{"t": s, "type": "n", …}, …]}'
)
_Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class _Recorded(StrictModel):
    model_config = ConfigDict(extra="ignore")


class _Call(_Recorded):
    t: _Seconds
    type: Literal["n", "s"]
    input_length: Annotated[int, Field(alias="in", ge=1, le=1 << 26)]
    output_length: Annotated[int, Field(alias="out", ge=0, le=1 << 26)]
    hash_ids: tuple[Annotated[int, Field(ge=0, lt=1 << 62)], ...] = ()
    api_time: float | None = None


class _Subagent(_Recorded):
    t: _Seconds
    type: Literal["subagent"]
    agent_id: str
    requests: tuple[_Call, ...]
    duration_ms: float | None = None


class _WekaSession(_Recorded):
    id: str
    block_size: Annotated[int, Field(ge=1, le=1 << 16)]
    hash_id_scope: Literal["local"]
    requests: tuple[Annotated[_Call | _Subagent, Field(discriminator="type")], ...]


def trees(path: Path) -> Iterator[Tree]:
    """Yield the sessions in the order of the trace, with one in memory at a time."""
    for document in documents(path):
        if tree := _Builder(document, parse(_WekaSession, document, expected=EXPECTED)).tree():
            yield tree


class _Builder:
    """The tree of one session, with the recorded end of each request."""

    def __init__(self, document: TraceDocument, session: _WekaSession) -> None:
        self._document = document
        self._session = session
        self._base = block_id_base(session.id)
        self._requests: list[TraceRequest] = []
        self._ends: list[float] = []

    def tree(self) -> Tree:
        last: int | None = None
        position = 0
        running: list[tuple[float, int]] = []  # recorded end and last request of each subagent still running
        for entry in self._session.requests:
            if isinstance(entry, _Subagent):
                if (child := self._add_subagent(entry, last)) is not None:
                    end = self._ends[child]
                    if entry.duration_ms is not None:
                        end = entry.t + max(0.0, entry.duration_ms / 1e3)
                    running.append((end, child))
                continue
            finished_children = tuple(child for end, child in running if end <= entry.t)
            running = [item for item in running if item[0] > entry.t]
            after = (*(() if last is None else (last,)), *finished_children)
            last = self._add_request(entry, entry.t, self._session.id, position, after)
            position += 1
        return tuple(self._requests)

    def _add_subagent(self, entry: _Subagent, parent_request: int | None) -> int | None:
        """Add the requests of a subagent; return the index of the last, None without any."""
        last = parent_request
        for position, call in enumerate(entry.requests):
            # current captures count from the start of the session, older captures from the start of the subagent
            at = call.t if call.t >= entry.t else entry.t + call.t
            name = f"{self._session.id}/{entry.agent_id}"
            after = () if last is None else (last,)
            last = self._add_request(call, at, name, position, after, parent=self._session.id)
        return last if entry.requests else None

    def _add_request(
        self, call: _Call, at: float, session: str, position: int, after: tuple[int, ...], parent: str | None = None
    ) -> int:
        tokens, block = call.input_length, self._session.block_size
        if (len(call.hash_ids) - 1) * block >= tokens:
            message = f"{len(call.hash_ids)} `hash_ids` at t = {call.t:g}"
            reject_document(self._document, message, expected=f"at most {-(-tokens // block)} for {tokens} tokens")
        delay = at - max((self._ends[item] for item in after), default=at)
        self._requests.append(
            TraceRequest(
                session=session,
                position=position,
                parent=parent,
                after=after,
                delay_s=max(0.0, delay),
                block_ids=array("Q", [self._base + item for item in call.hash_ids]),
                block_tokens=block,
                input_tokens=tokens,
                output_tokens=max(1, call.output_length),
            )
        )
        self._ends.append(at + max(0.0, call.api_time or 0.0))
        return len(self._requests) - 1
