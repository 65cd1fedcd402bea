"""Mooncake traces (FAST'25): one request per line, its prompt as hashes of blocks of 512 tokens.

Fields and units as in aiperf 0.13.0 (dataset/loader/models.py, `MooncakeTrace`): `timestamp` and `delay` in ms. A line
with hashes describes the whole prompt. A later line of a session without hashes describes only the new tokens: its
prompt continues the previous prompt and the server's answer, as in aiperf (`DELTAS_WITHOUT_RESPONSES`).
"""

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field

from orchestrator.bench.traces.documents import TraceDocument, documents, parse, read_at, reject_document
from orchestrator.bench.traces.request import TraceRequest, Tree, private_block_ids
from orchestrator.core.validation import StrictModel

BLOCK_TOKENS: Final = 512
EXPECTED: Final = (
    '{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [block of 512 tokens, …]}'
)
_Milliseconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
_Tokens = Annotated[int, Field(ge=1, le=1 << 26)]
_Index: TypeAlias = "dict[str, tuple[array[int], array[int]]]"  # offsets and numbers of the lines of each session


class _MooncakeLine(StrictModel):
    timestamp: _Milliseconds | None = None
    delay: _Milliseconds | None = None
    input_length: _Tokens
    output_length: Annotated[int, Field(ge=0, le=1 << 26)]
    hash_ids: tuple[Annotated[int, Field(ge=0, lt=1 << 63)], ...] | None = None
    session_id: str | None = None
    type: Any = None
    extra: Any = None


def trees(path: Path) -> Iterator[Tree]:
    """Yield the sessions in the order of their first lines; a line without `session_id` is its own session.

    Only the offsets of sessions' lines stay in memory: about 400 bytes for a session of five lines.
    """
    index: _Index = {}
    for number, (document, line) in enumerate(_lines(path)):
        if line.session_id is not None:
            offsets, numbers = index.setdefault(line.session_id, (array("Q"), array("Q")))
            offsets.append(document.offset)
            numbers.append(int(document.location.rpartition(":")[2]))
        elif not index:
            yield _tree([(document, line)], f"line {number + 1}")
    if not index:
        return
    yield from _with_sessions(path, index)


def _with_sessions(path: Path, index: _Index) -> Iterator[Tree]:
    """Yield the trees from the first line with a session on."""
    begin = min(offsets[0] for offsets, _ in index.values())
    for document, line in _lines(path):
        if document.offset < begin:
            continue
        if line.session_id is None:
            yield _tree([(document, line)], f"line {document.location.rpartition(':')[2]}")
        elif (lines := index.pop(line.session_id, None)) is not None:
            read = (read_at(path, offset, number) for offset, number in zip(*lines, strict=True))
            yield _tree(((item, _parsed(item)) for item in read), line.session_id)


def _lines(path: Path) -> Iterator[tuple[TraceDocument, _MooncakeLine]]:
    for document in documents(path):
        yield document, _parsed(document)


def _parsed(document: TraceDocument) -> _MooncakeLine:
    return parse(_MooncakeLine, document, expected=EXPECTED)


def _tree(lines: Iterable[tuple[TraceDocument, _MooncakeLine]], session: str) -> Tree:
    requests: list[TraceRequest] = []
    hashed: bool | None = None
    for position, (document, line) in enumerate(lines):
        has_hashes = line.hash_ids is not None
        if hashed is not None and hashed != has_hashes:
            expected = "`hash_ids` in each line of a session, or in none"
            reject_document(document, "a session with and without `hash_ids`", expected=expected)
        hashed = has_hashes
        previous = requests[-1] if requests else None
        continues = previous is not None and line.hash_ids is None
        before = previous.input_tokens + previous.output_tokens if previous is not None and continues else 0
        tokens = before + line.input_length
        if line.hash_ids is None:
            ids = array("Q") if continues else private_block_ids(session, tokens, BLOCK_TOKENS)
        else:
            ids = array("Q", line.hash_ids)
            if (len(ids) - 1) * BLOCK_TOKENS >= tokens:
                expected = f"at most {-(-tokens // BLOCK_TOKENS)} `hash_ids` for {tokens} tokens"
                reject_document(document, f"{len(ids)} `hash_ids`", expected=expected)
        requests.append(
            TraceRequest(
                session=session,
                position=position,
                arrival_s=None if line.timestamp is None else line.timestamp / 1e3,
                after=(position - 1,) if position else (),
                delay_s=(line.delay or 0.0) / 1e3,
                block_ids=ids,
                block_tokens=BLOCK_TOKENS,
                input_tokens=tokens,
                output_tokens=max(1, line.output_length),
                continues=continues,
            )
        )
    return tuple(requests)
