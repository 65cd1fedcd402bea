"""A server that gives log-probabilities, each a function of the tokens before it; wrong in the ways a test asks for."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

NAME = "glm-5.2"
Body = dict[str, Any]
Way = str  # alone, again, batch, cached: as a request looks from outside


@dataclass
class LikelihoodServer:
    """Right by default. `wrong` adds nats to the token at a position, by the rank and the way that is asked."""

    model: str = NAME
    dtype: str = "auto"
    key: str = ""
    shift: int = 0  # of the tokenizer's ids
    wrong: Callable[[int, int, Way], float | None] = lambda *_: 0.0  # None: NaN, as sglang writes it
    refuses: Callable[[int, Way], bool] = lambda *_: False
    cache: bool = True
    keys: list[str | None] = field(default_factory=list)
    prompts: set[tuple[int, ...]] = field(default_factory=set)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.keys.append(request.headers.get("Authorization"))
        if request.method == "GET":
            settings = {"version": "0.5.14", "page_size": 1, "dtype": self.dtype, "api_key": self.key}
            return httpx.Response(
                200,
                json={"/model_info": {"model_path": f"/models/{self.model}"}, "/server_info": settings}[
                    request.url.path
                ],
            )
        body = json.loads(request.content)
        if request.url.path == "/tokenize":
            return httpx.Response(200, json={"tokens": [ord(each) + self.shift for each in body["prompt"]]})
        return self.generate(body)

    def generate(self, body: Body) -> httpx.Response:
        prompts, rank, start = body["input_ids"], body["routed_dp_rank"], body["logprob_start_len"]
        way = "batch" if len(prompts) > 1 else "cached" if start else "again" if self.seen(prompts[0]) else "alone"
        if self.refuses(rank, way):
            return httpx.Response(400, json={"error": {"message": "speculation does not support return_logprob yet."}})
        self.prompts.update(map(tuple, prompts))
        return httpx.Response(200, json=[self.answer(ids, body, rank=rank, way=way) for ids in prompts])

    def seen(self, ids: list[int]) -> bool:
        return any(tuple(ids[: len(each)]) == each for each in self.prompts)

    def answer(self, ids: list[int], body: Body, *, rank: int, way: Way) -> Body:
        start, tokens, top = (
            body["logprob_start_len"],
            body["sampling_params"]["max_new_tokens"],
            body["top_logprobs_num"],
        )
        said = [100 + place % 7 for place in range(tokens)]
        whole = [*ids, *said]
        rows = [self.row(whole, place, rank, way, top) for place in range(start, len(whole))]
        own, ranked = [row[0] for row in rows], [row[1] for row in rows]
        own[0], ranked[0] = [None, ids[start], None], None
        asked = len(ids) - start
        meta = {
            "finish_reason": {"type": "length", "length": tokens},
            "cached_tokens": start if self.cache else 0,
            "input_token_logprobs": own[:asked],
            "input_top_logprobs": ranked[:asked],
            "output_token_logprobs": own[asked:],
            "output_top_logprobs": ranked[asked:],
        }
        return {"text": "", "output_ids": said, "meta_info": meta}

    def row(self, ids: list[int], place: int, rank: int, way: Way, top: int) -> tuple[Body | list[Any], list[Any]]:
        """What stands there, and the likeliest tokens: those first, so that the rest has some mass."""
        drawn = hashlib.sha256(repr(ids[max(place - 3, 0) : place + 1]).encode()).digest()[0]
        off = self.wrong(place, rank, way)
        score = None if off is None else round(-2.0 - drawn / 100 - off, 6)
        ranked = [[round(-1.0 - each - (off or 0.0) / 8, 6), (place * 7 + each) % 400, None] for each in range(top)]
        return [score, ids[place], None], ranked
