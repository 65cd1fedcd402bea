"""An sglang server in a dictionary: honest by default, and able to lie in exactly one way at a time."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

import httpx

from orchestrator.prove import Target

NAME = "glm-5.2"
CONTEXT = 4096
PAGE = 64
Body = dict[str, Any]
TARGET = Target(
    url="http://127.0.0.1:30000",
    served_name=NAME,
    context_length=CONTEXT,
    dp=1,
    speculative=False,
    prefix_cache=True,
    cache_report=True,
    metrics=True,
    grammar=True,
    questions=(),
    prefill_chunk=None,
    wrong_answers=(),
    inexact=(),
    greedy=(),
    api_key=None,
)


@dataclass
class ScriptedServer:
    """Each field is a lie that is not told by default."""

    name: str = NAME
    context: int = CONTEXT
    dp: int = 1
    key: str = ""
    forgets_to_check_the_key: bool = False
    rolls_dice: bool = False  # in `/generate`
    stream_drops_a_piece: bool = False
    stream_in_one_piece: bool = False
    stream_never_ends: bool = False
    stream_counts_wrong: bool = False
    counts_one_prompt_token_more: bool = False
    counts_one_completion_token_less: bool = False
    usage_total_is_wrong: bool = False
    cache_off: bool = False
    cache_pretends: bool = False
    usage_hides_cache: bool = False
    rank_zero_answers_for_all: bool = False
    says_no_rank: bool = False
    accept_length: float | None = None  # 1.0: no draft is ever right; None: no speculation
    counts_drafts: bool = True  # sglang before 0.5.13 does not, under this name
    samples: bool = True
    samples_the_first_token_alone: bool = False
    ignores_schema: bool = False
    breaks_schema: bool = False
    talks_too_long: bool = False
    malformed_status: int = 400
    overlong_status: int = 400
    dies_of: str = ""  # "malformed" or "over-long"
    metrics_stand_still: bool = False
    metrics_absent: bool = False
    hangs_at: str = ""
    gives_fewer_tokens_each_time: bool = False  # in `/generate`
    streams_no_text: bool = False
    colour_is_a_list: bool = False
    page: object = PAGE
    knows: dict[str, str] = field(default_factory=dict)  # the end of what is asked -> the answer to it
    wrong: tuple[str, ...] = ()  # of these, what it does not know after all
    wrong_rank: int | None = None  # which alone knows nothing
    thinks: bool = False  # aloud, in the place that is for it

    alive: bool = True
    generated: int = 0
    greedy_answers: int = 0
    rolled: int = 0
    cached: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if not self.alive:
            raise httpx.ConnectError("connection refused")
        path = request.url.path
        if path == self.hangs_at:
            raise httpx.ReadTimeout("timed out")
        closed = self.key and not self.forgets_to_check_the_key and path not in {"/health", "/metrics"}
        if closed and request.headers.get("Authorization") != f"Bearer {self.key}":
            return httpx.Response(401, json={"error": "Unauthorized"})
        if request.method == "GET":
            return self.get(path)
        return self.post(path, request.content)

    def get(self, path: str) -> httpx.Response:
        if path == "/metrics":
            lines = [f'sglang:generation_tokens_total{{model_name="{self.name}"}} {float(self.generated)}']
            return httpx.Response(200, text="\n".join([] if self.metrics_absent else lines))
        answers: dict[str, Body] = {
            "/health": {},
            "/v1/models": {"data": [{"id": self.name, "max_model_len": self.context}]},
            "/model_info": {"model_path": "/models/glm"},
            "/server_info": {"version": "0.5.14", "page_size": self.page},
        }
        return httpx.Response(200, json=answers[path])

    def post(self, path: str, content: bytes) -> httpx.Response:
        try:
            body = json.loads(content)
        except ValueError:
            return self.refuse("malformed", self.malformed_status)
        if isinstance(body.get("messages"), str) or body.get("max_tokens", 1) < 0:
            return self.refuse("malformed", self.malformed_status)
        ids = (
            body.get("input_ids")
            or body.get("prompt")
            or [ord(char) for char in json.dumps(body.get("messages", body.get("text")))]
        )
        if len(ids) > CONTEXT:
            return self.refuse("over-long", self.overlong_status)
        return {"/generate": self.generate, "/v1/completions": self.complete, "/v1/chat/completions": self.chat}[path](
            body, ids
        )

    def refuse(self, what: str, status: int) -> httpx.Response:
        self.alive = self.dies_of != what
        return httpx.Response(status, json={"error": {"message": what}})

    def tokens(self, ids: list[int], count: int, *, dice: bool = False) -> list[int]:
        self.rolled += dice
        source = random.Random(f"{ids}, roll {self.rolled}" if dice else str(ids))  # the same dice in every run
        if not self.metrics_stand_still:
            self.generated += count
        return source.choices(range(100, 200), k=count)

    def hits(self, ids: list[int], rank: int) -> int:
        seen = (rank, tuple(ids)) in self.cached or self.cache_pretends
        self.cached.add((rank, tuple(ids)))
        return (len(ids) - 1) // PAGE * PAGE if seen and not self.cache_off else 0

    def generate(self, body: Body, ids: list[int]) -> httpx.Response:
        count, rank = body["sampling_params"]["max_new_tokens"], body["routed_dp_rank"]
        meta = {
            "prompt_tokens": len(ids) + self.counts_one_prompt_token_more,
            "completion_tokens": count - self.counts_one_completion_token_less,
            "cached_tokens": self.hits(ids, rank),
            "dp_rank": 0 if self.rank_zero_answers_for_all else rank,
        }
        if self.says_no_rank:
            del meta["dp_rank"]
        if self.accept_length and count > 1:  # the first token comes from prefill
            steps = meta["spec_verify_ct"] = round((count - 1) / self.accept_length)
            meta |= {"spec_num_correct_drafts": count - 1 - steps} if self.counts_drafts else {}
        hot = body["sampling_params"]["temperature"] > 0 and self.samples
        output = self.tokens(ids, count, dice=self.rolls_dice or hot)
        if hot and self.samples_the_first_token_alone:
            output = [output[0], *self.tokens([*ids, output[0]], count)][:count]
        if self.gives_fewer_tokens_each_time and count == 32 and not hot:
            self.greedy_answers += 1
            output = output[: count - self.greedy_answers]
        return httpx.Response(200, json={"output_ids": output, "meta_info": meta})

    def usage(self, ids: list[int], count: int, cached: int) -> Body:
        details = None if self.usage_hides_cache else {"cached_tokens": cached}
        total = len(ids) + count + self.usage_total_is_wrong
        return {
            "prompt_tokens": len(ids),
            "completion_tokens": count,
            "total_tokens": total,
            "prompt_tokens_details": details,
        }

    def complete(self, body: Body, ids: list[int]) -> httpx.Response:
        count = body["max_tokens"]
        self.tokens(ids, count)
        return httpx.Response(200, json={"usage": self.usage(ids, count, self.hits(ids, 0))})

    def chat(self, body: Body, ids: list[int]) -> httpx.Response:
        words = [f"w{token} " for token in self.tokens(ids, body["max_tokens"])]
        reason = "length"
        known = self.known(body)
        if known and "response_format" not in body:
            words, reason = [known], "stop"
        if "response_format" in body and not self.ignores_schema:
            colour = "blue" if self.breaks_schema else ["red"] if self.colour_is_a_list else "red"
            words = ['{"ready": true, ', f'"colour": {json.dumps(colour)}}}']
            reason = "length" if self.talks_too_long else "stop"
        elif "response_format" in body:
            reason = "stop"
        usage = self.usage(ids, len(words), 0)
        if body.get("stream"):
            return self.stream(words, reason, usage)
        message = {"content": "".join(words), "reasoning_content": "Let me see." if self.thinks else None}
        choice = {"message": message, "finish_reason": reason}
        return httpx.Response(200, json={"choices": [choice], "usage": usage})

    def known(self, body: Body) -> str:
        said = body["messages"][0]["content"]
        ignorant = self.wrong_rank == body["routed_dp_rank"]
        return next((a for q, a in self.knows.items() if said.endswith(q) and q not in self.wrong and not ignorant), "")

    def stream(self, words: list[str], reason: str, usage: Body) -> httpx.Response:
        pieces = words[1:] if self.stream_drops_a_piece else [] if self.streams_no_text else words
        pieces = ["".join(pieces)] if self.stream_in_one_piece else pieces
        chunks: list[Body] = [{"choices": [{"delta": {"content": piece}, "finish_reason": None}]} for piece in pieces]
        chunks.append({"choices": [{"delta": {}, "finish_reason": reason}]})
        counted = usage["completion_tokens"] + self.stream_counts_wrong
        chunks.append({"choices": [], "usage": {**usage, "completion_tokens": counted}})
        events = [json.dumps(chunk) for chunk in chunks] + ([] if self.stream_never_ends else ["[DONE]"])
        return httpx.Response(200, text="".join(f"data: {event}\n\n" for event in events))
