"""Synthetic sessions of several turns, reproducible from the seed. Pure."""

import random
from array import array
from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import Field, model_validator

from orchestrator.bench.traces.request import TraceRequest, Tree, block_id_base, private_block_ids
from orchestrator.core.validation import StrictModel

BLOCK_TOKENS: Final = 64
_SYSTEM: Final = "system"
_Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
_Seconds = Annotated[float, Field(ge=0, le=86_400)]


class Subagents(StrictModel):
    """Subagents of a session: each begins with the system prompt, and the session waits for all of them."""

    every_turns: Annotated[int, Field(ge=1, le=10_000)]  # a group of subagents follows every N turns
    count: Annotated[int, Field(ge=1, le=100)] = 1  # at a time
    turns: Annotated[int, Field(ge=1, le=10_000)] = 1
    first_prompt_tokens: _Tokens


class SessionShape(StrictModel):
    """The shape of the sessions of a workload; each prompt continues the previous one and its answer."""

    count: Annotated[int, Field(ge=1, le=1_000_000)]
    turns: tuple[Annotated[int, Field(ge=1, le=10_000)], Annotated[int, Field(ge=1, le=10_000)]]  # fewest, most
    system_prompt_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 0  # shared by all sessions and subagents
    first_prompt_tokens: _Tokens  # after the system prompt
    turn_tokens: _Tokens  # new tokens of each later prompt
    output_tokens: _Tokens
    think_time_s: _Seconds = 0.0  # mean; exponential
    subagents: Subagents | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> "SessionShape":
        if self.turns[0] > self.turns[1]:
            raise ValueError("`turns` must be a range: fewest, most")
        return self


def synthetic_trees(shape: SessionShape, seed: int) -> Iterator[Tree]:
    """Yield the sessions of a shape."""
    for number in range(shape.count):
        yield _Session(shape, f"session-{number}", random.Random(f"{seed}/{number}")).tree()  # noqa: S311


class _Session:
    """A session under construction."""

    def __init__(self, shape: SessionShape, name: str, draw: random.Random) -> None:
        self._shape = shape
        self._name = name
        self._draw = draw
        self._requests: list[TraceRequest] = []

    def tree(self) -> Tree:
        shape, after = self._shape, tuple[int, ...]()
        for position in range(self._draw.randint(*shape.turns)):
            last = self._add_request(self._name, position, after, shape.first_prompt_tokens)
            after = (last,)
            children = shape.subagents
            if children is not None and (position + 1) % children.every_turns == 0:
                after = (
                    last,
                    *(self._subagent(f"{self._name}/{position}.{index}", last) for index in range(children.count)),
                )
        return tuple(self._requests)

    def _subagent(self, name: str, parent_request: int) -> int:
        children = self._shape.subagents
        assert children is not None  # noqa: S101 - checked by the caller
        last = parent_request
        for position in range(children.turns):
            last = self._add_request(name, position, (last,), children.first_prompt_tokens, parent=self._name)
        return last

    def _add_request(
        self, session: str, position: int, after: tuple[int, ...], first: int, parent: str | None = None
    ) -> int:
        shape, think = self._shape, self._shape.think_time_s
        previous = self._requests[after[0]] if position else None
        if previous is None:
            tokens = shape.system_prompt_tokens + first
            shared, base = shape.system_prompt_tokens // BLOCK_TOKENS, block_id_base(_SYSTEM)
            ids = array("Q", range(base, base + shared)) + private_block_ids(
                session, tokens, BLOCK_TOKENS, begin=shared
            )
        else:
            tokens, ids = previous.input_tokens + previous.output_tokens + shape.turn_tokens, array("Q")
        self._requests.append(
            TraceRequest(
                session=session,
                position=position,
                parent=parent,
                after=after,
                delay_s=self._draw.expovariate(1 / think) if think and after and parent is None else 0.0,
                block_ids=ids,
                block_tokens=BLOCK_TOKENS,
                input_tokens=tokens,
                output_tokens=shape.output_tokens,
                continues=previous is not None,
            )
        )
        return len(self._requests) - 1
