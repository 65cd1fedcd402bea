"""One request of a trace, and the tree of requests of one session. Pure."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request of a trace: its session, arrival and prompt.

    Equal block ids mean equal tokens throughout the trace; the last block may be shorter. Tokens after the blocks occur
    in no other request. If `continues`, the prompt consists of the session's previous prompt, the server's answer, and
    new tokens, without ids.
    """

    session: str
    position: int  # in its session, from 0
    parent: str | None = None  # for a subagent: the session that started it
    arrival_s: float | None = None  # after the start of the trace; None: only after the requests in `after`
    after: tuple[int, ...] = ()  # tree indices of requests that must end first
    delay_s: float = 0.0  # from the end of the last request in `after` to sending
    block_ids: Sequence[int]
    block_tokens: int
    input_tokens: int
    output_tokens: int
    continues: bool = False


Tree = tuple[TraceRequest, ...]  # one session with its subagents, in the order of the trace


def block_id_base(name: str) -> int:
    """Return the first of 2**62 consecutive block ids reserved for `name`."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1


def private_block_ids(name: str, tokens: int, block_tokens: int, *, begin: int = 0) -> "array[int]":
    """Return the ids of blocks from `begin` on, for a prompt of `tokens` tokens that only `name` sends."""
    base = block_id_base(name)
    return array("Q", range(base + begin, base + max(begin, -(-tokens // block_tokens))))
