"""The part of sglang's HTTP API that `deploy` uses, without a transport. Stdlib only.

`integration/test_scripted_engine.py` compares `EngineApi` with a real server. Each field that changes its behavior
is off by default. Three transports use it: `scripted_engine.py` (a process), `hostile_server.py` (raw bytes), and
`over_httpx` below (no socket); `scripted_server.py` uses its documents.
"""

import hashlib
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

Json = dict[str, Any]
Way = str  # kind of a request for log-probabilities: alone, again, batch or cached

VERSION = "0.5.14"
OPEN_TO_ALL = {"/health", "/health_generate", "/metrics"}
GENERATING = ("/generate", "/v1/completions", "/v1/chat/completions")
_COLD = 0.1  # up to this temperature, sampling is greedy
_MAX_SAVED = 20  # prompts in the prefix cache
_POOL = 65536  # tokens in the prefix cache


@dataclass(frozen=True)
class Answer:
    """A status, and one document, a text, or the events of a stream."""

    status: int
    documents: Sequence[object]
    stream: bool = False
    ends: bool = True  # the stream ends with `data: [DONE]`

    def texts(self) -> list[str]:
        return [document if isinstance(document, str) else json.dumps(document) for document in self.documents]

    def body(self) -> str:
        if not self.stream:
            return self.texts()[0]
        return "".join(f"data: {text}\n\n" for text in [*self.texts(), *(["[DONE]"] if self.ends else [])])


class OverLongError(ValueError):
    """A prompt that is longer than the context."""


@dataclass
class EngineApi:
    """One server with a prefix cache and counters. Without sampling, tokens are a function of the prompt."""

    model: str = "tiny"
    model_path: str = ""
    context: int = 32768
    page: object = 1  # tokens of a page of the cache
    dp: int = 1
    key: str = ""
    role: str = ""  # "prefill" or "decode" in a disaggregated deployment
    dtype: str = "auto"
    speculative_algorithm: str | None = None
    accept_length: float | None = None  # 1.0: no draft is accepted; None: no speculation
    known_answers: Mapping[str, str] = field(default_factory=dict)  # end of a question -> its answer
    always_reasons: bool = False  # every chat response has reasoning_content
    reasoning: str = ""  # requested reasoning is "separate", "in the answer", or "everything" is reasoning
    calls: str = ""  # a tool call is "parsed", "as text", or "of another" tool
    wait_for_detokenizer: Callable[[], None] = lambda: None

    # behaviors
    alive: bool = True
    hanging_path: str = ""
    crashes_on: str = ""  # a kind of request: "malformed" or "over-long"
    malformed_status: int = 400
    overlong_status: int = 400
    rejects_generation: bool = False
    skips_key_check: bool = False
    echo: str = ""  # text in errors and in the first tokens of responses
    samples_at_temperature_0: bool = False  # in `/generate`
    samples: bool = True
    ignores_temperature: bool = False
    max_recall_words: int = 0  # max words before the code of the blue door for which it finds the code
    aborts_above: int | None = None  # a longer prompt crashes it
    accept_length_drops: bool = False  # the accept length drops after 8 requests
    leaks_cache_tokens: bool = False  # cache tokens stay in use after a request
    other_requests: int = 0  # running requests of other clients
    tiers: Mapping[str, int] | None = None  # cached tokens by tier
    saved_tiers: Sequence[str] = ()  # other cache tiers: "host", and "storage", which a flush does not clear
    corrupt_tier: str = ""  # cached tokens of this tier change the output
    rejects_flush: bool = False
    hanging_rank: int | None = None
    samples_only_first_token: bool = False
    returns_fewer_tokens_per_call: bool = False  # one token less in each call of `/generate`
    stream_drops_chunk: bool = False
    stream_in_one_chunk: bool = False
    stream_without_text: bool = False
    stream_without_done: bool = False
    stream_overcounts_tokens: bool = False
    overcounts_prompt_tokens: bool = False
    undercounts_completion_tokens: bool = False
    omits_draft_counts: bool = False  # as sglang before 0.5.13: no spec_num_correct_drafts
    usage_total_wrong: bool = False
    usage_hides_cache: bool = False
    cache_off: bool = False
    overreports_cache: bool = False
    rank_zero_answers_all: bool = False
    omits_rank: bool = False
    ignores_schema: bool = False
    breaks_schema: bool = False
    returns_list_for_color: bool = False
    schema_output_never_stops: bool = False
    metrics_frozen: bool = False
    metrics_absent: bool = False
    wrong: Sequence[str] = ()  # questions of `known_answers` that it does not answer
    wrong_rank: int | None = None  # a rank that answers no question
    logprob_error: Callable[[int, int, Way], float | None] = lambda *_: 0.0  # error in nats; None: NaN
    rejects_logprobs: Callable[[int, Way], bool] = lambda *_: False
    tokenizer_shift: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._prefixes: list[tuple[int, list[int]]] = []
        self._saved: dict[str, list[tuple[int, list[int]]]] = {tier: [] for tier in self.saved_tiers}
        self._sources: dict[str, int] = {}  # cached tokens of the last request, by tier
        self._greedy_answers = self._sampled = 0
        self.transfers = 0  # KV cache transfers to a decode server
        self.open = self.aborts = 0  # unfinished requests for tokens; calls that abort all requests
        self.counts = dict.fromkeys(("prompt_tokens", "generation_tokens", "cached_tokens", "num_requests"), 0)
        self.scored: set[tuple[int, ...]] = set()  # prompts with requested log-probabilities

    def answer(self, path: str, content: bytes = b"", authorization: str | None = None) -> Answer:
        """Answer a request. Raises ConnectionRefusedError after a crash, and TimeoutError if the server hangs."""
        if not self.alive:
            raise ConnectionRefusedError
        if path == self.hanging_path:
            raise TimeoutError
        closed = self.key and not self.skips_key_check and path not in OPEN_TO_ALL
        if closed and authorization != f"Bearer {self.key}":
            return Answer(401, [{"error": "Unauthorized"}])
        if path not in _ROUTES:
            return Answer(404, [{"detail": "Not Found"}])
        try:
            body = json.loads(content) if content else {}
            self._require_the_other_role(path, body)
            return _ROUTES[path](self, body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            overlong = isinstance(error, OverLongError)
            self.alive = self.crashes_on != ("over-long" if overlong else "malformed")
            message = f"{type(error).__name__}: {error}{self.echo}"
            status = self.overlong_status if overlong else self.malformed_status
            return Answer(status, [{"object": "error", "message": message, "code": status}])

    def _require_the_other_role(self, path: str, body: Json) -> None:
        """Reject a request without bootstrap fields, as a prefill or decode server does."""
        if not self.role or path not in GENERATING:
            return
        if "bootstrap_room" not in body:
            raise ValueError("Disaggregated request received without bootstrap room id")
        self.transfers += self.role == "prefill" and body["bootstrap_host"] != "2.2.2.2"

    def _health(self, _: Json) -> Answer:
        self._generated([1], 1, sampled=False)
        return Answer(200, [""])

    def _metrics(self, _: Json) -> Answer:
        if self.metrics_absent:
            return Answer(200, [""])
        labels = f'{{engine_type="unified",model_name="{self.model}",moe_ep_rank="0",pp_rank="0",tp_rank="0"}}'
        source = labels.replace("{", '{cache_source="device",')
        lines = [
            f"sglang:{name}_total{source if name == 'cached_tokens' else labels} {float(value)}"
            for name, value in self.counts.items()
        ]
        lines += [f"sglang:num_queue_reqs{labels} 0.0", f"sglang:num_running_reqs{labels} {self.other_requests}.0"]
        used = self.counts["num_requests"] * self.leaks_cache_tokens
        lines += [f"sglang:num_used_tokens{labels} {used}.0", f"sglang:max_total_num_tokens{labels} {_POOL}.0"]
        lines += [f"sglang:fwd_occupancy{labels} NaN"]
        if self.role == "prefill":
            lines += [f"sglang:kv_transfer_latency_ms_count{labels} {self.transfers}.0"]
        for mode, name in (("prefill_compute", "prompt_tokens"), ("decode", "generation_tokens")):
            of_mode = labels.replace("}", f',mode="{mode}"}}')
            lines += [f"sglang:realtime_tokens_total{of_mode} {float(self.counts[name])}"]
        lines += ['sglang:http_requests_active{endpoint="/metrics",method="GET"} 1.0']
        for latency in ("time_to_first_token_seconds", "e2e_request_latency_seconds"):
            lines += [f"sglang:{latency}_sum{labels} 0.1", f"sglang:{latency}_count{labels} 1.0"]
        return Answer(200, ["\n".join(lines) + "\n"])

    @contextmanager
    def while_open(self) -> Iterator[None]:
        """Count a request as open for the length of the block."""
        with self._lock:
            self.open += 1
        try:
            yield
        finally:
            with self._lock:
                self.open -= 1

    def _load(self, _: Json) -> Answer:
        rank = {"dp_rank": 0, "num_reqs": self.open, "num_waiting_reqs": 0, "num_tokens": 0, "num_pending_tokens": 0}
        return Answer(200, [[rank]])

    def _abort(self, body: Json) -> Answer:
        self.aborts += body["abort_all"]
        return Answer(200, [""])

    def _flush(self, _: Json) -> Answer:
        if self.rejects_flush:
            return Answer(400, ["Cache not flushed because there are pending requests."])
        self._prefixes.clear()
        self._saved |= {"host": []} if self._saved else {}
        return Answer(200, ["Cache flushed.\n"])

    def _models(self, _: Json) -> Answer:
        model = {"id": self.model, "object": "model", "max_model_len": self.context}
        return Answer(200, [{"object": "list", "data": [model]}])

    def _model_info(self, _: Json) -> Answer:
        return Answer(200, [{"model_path": self.model_path or f"models/{self.model}", "is_generation": True}])

    def _server_info(self, _: Json) -> Answer:
        info = {"version": VERSION, "page_size": self.page, "dp_size": self.dp, "api_key": self.key}
        info |= {"max_total_num_tokens": _POOL, "max_req_input_len": self.context - 6}
        info |= {"disaggregation_mode": self.role or "null"}
        info |= {"enable_cache_report": True, "dtype": self.dtype, "speculative_algorithm": self.speculative_algorithm}
        return Answer(200, [info])

    def _tokenize(self, body: Json) -> Answer:
        ids = [ord(item) + self.tokenizer_shift for item in body["prompt"]]
        return Answer(200, [{"tokens": ids, "count": len(ids), "max_model_len": self.context}])

    def _generate(self, body: Json) -> Answer:
        if body.get("return_logprob"):
            return self._score(body)
        prompt, sampling, rank = _ids_of(body.get("text") or body["input_ids"]), body["sampling_params"], _rank_of(body)
        tokens, heat = sampling["max_new_tokens"], sampling.get("temperature") or 0
        hot = self.samples and heat > (0 if self.ignores_temperature else _COLD)
        ids, cached = self._made(prompt, tokens, rank, sampled=self.samples_at_temperature_0 or hot)
        if hot and self.samples_only_first_token:
            ids = [ids[0], *self._ids([*prompt, ids[0]], tokens, sampled=False)][:tokens]
        if self.returns_fewer_tokens_per_call and tokens == 32 and not hot:
            self._greedy_answers += 1
            ids = ids[: tokens - self._greedy_answers]

        def document(so_far: int) -> Json:
            meta: Json = {
                "finish_reason": {"type": "length", "length": tokens} if so_far == len(ids) else None,
                "prompt_tokens": len(prompt) + self.overcounts_prompt_tokens,
                "completion_tokens": so_far - self.undercounts_completion_tokens,
                "cached_tokens": cached,
                "cached_tokens_details": self.tiers or self._sources or None,
                "dp_rank": None if self.dp == 1 else 0 if self.rank_zero_answers_all else rank,
            }
            if self.omits_rank:
                del meta["dp_rank"]
            if self.accept_length and tokens > 1:  # the first token comes from prefill
                worn = self.accept_length_drops and self.counts["num_requests"] > 8
                steps = meta["spec_verify_ct"] = round((tokens - 1) / (1.5 if worn else self.accept_length))
                meta |= {} if self.omits_draft_counts else {"spec_num_correct_drafts": tokens - 1 - steps}
            return {"text": "".join(_words(ids[:so_far])), "output_ids": ids[:so_far], "meta_info": meta}

        if body.get("stream"):
            return Answer(200, [document(count + 1) for count in range(len(ids))], stream=True)
        return Answer(200, [document(len(ids))])

    def _complete(self, body: Json) -> Answer:
        prompt = _ids_of(body["prompt"])
        pieces, cached = self._pieces(body, prompt)
        return self._openai(body, len(prompt), pieces, cached, lambda text, _: {"text": text})

    def _chat(self, body: Json) -> Answer:
        prompt = _ids_of("".join(message["content"] for message in body["messages"]))
        pieces, cached = self._pieces(body, prompt)
        output, rank = body["messages"][0]["content"], _rank_of(body)
        right = self.wrong_rank is None or self.wrong_rank != rank
        known = [a for q, a in self.known_answers.items() if output.endswith(q) and q not in self.wrong and right]
        if known and "response_format" not in body:
            pieces = known[:1]
        if self.calls == "as text" and "tools" in body:
            pieces = ["<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>"]
        code = re.search(r"(.*)The code of the blue door is (\d+)\.", output)
        if code and len(code[1].split()) < self.max_recall_words:
            pieces, known = [code[2]], ["found"]
        thinking = body.get("chat_template_kwargs", {}).get("enable_thinking")
        if thinking and self.reasoning:
            pieces = {"separate": ["14"], "in the answer": ["Two times seven.</think>14"], "everything": [""]}[
                self.reasoning
            ]

        def delta(text: str, whole: bool) -> Json:
            separate = self.always_reasons or (thinking and self.reasoning in {"separate", "everything"})
            thought = "Let me see." if separate and whole else None
            content = {"role": "assistant", "content": text, "reasoning_content": thought}
            if "tools" in body and self.calls in {"parsed", "of another"}:
                called = "get_weather" if self.calls == "parsed" else "get_time"
                content["tool_calls"] = [{"type": "function", "function": {"name": called, "arguments": "{}"}}]
            return {"message" if whole else "delta": content}

        return self._openai(body, len(prompt), pieces, cached, delta, stops=bool(known) or bool(thinking))

    def _pieces(self, body: Json, prompt: list[int]) -> tuple[list[str], int]:
        """Return the chunks of a response, and the number of cached prompt tokens."""
        ids, cached = self._made(
            prompt, body.get("max_tokens", 16), _rank_of(body), sampled=bool(body.get("temperature"))
        )
        if "response_format" in body and not self.ignores_schema:
            color = "blue" if self.breaks_schema else ["red"] if self.returns_list_for_color else "red"
            return ['{"ready": true, ', f'"color": {json.dumps(color)}}}'], cached
        step = -(-len(self.echo) // len(ids)) or 1
        text = [self.echo[at : at + step] for at in range(0, len(self.echo), step)]
        return [*text, *_words(ids)[len(text) :]], cached

    def _openai(
        self,
        body: Json,
        prompt: int,
        pieces: Sequence[str],
        cached: int,
        delta: Callable[[str, bool], Json],
        *,
        stops: bool = False,
    ) -> Answer:
        stops = stops or ("response_format" in body and not self.schema_output_never_stops)
        reason, tokens = "stop" if stops else "length", len(pieces)

        def usage(so_far: int) -> Json:
            details = {"cached_tokens": cached} if cached and not self.usage_hides_cache else None
            total = prompt + so_far + self.usage_total_wrong
            counts = {"prompt_tokens": prompt, "completion_tokens": so_far, "total_tokens": total}
            return {**counts, "prompt_tokens_details": details}

        def document(text: str, *, last: bool, whole: bool) -> Json:
            choice = {"index": 0, **delta(text, whole), "finish_reason": reason if last else None}
            return {"id": "1", "object": "completion", "choices": [choice]}

        if not body.get("stream"):
            return Answer(200, [{**document("".join(pieces), last=True, whole=True), "usage": usage(tokens)}])
        if self.stream_drops_chunk:
            pieces = pieces[1:]
        if self.stream_without_text:
            pieces = [""]
        if self.stream_in_one_chunk:
            pieces = ["".join(pieces)]
        options = body.get("stream_options") or {}
        events = []
        for count, piece in enumerate(pieces, start=1):
            event = document(piece, last=count == len(pieces), whole=False)
            events.append({**event, "usage": usage(count)} if options.get("continuous_usage_stats") else event)
        if options:
            events.append({"id": "1", "choices": [], "usage": usage(tokens + self.stream_overcounts_tokens)})
        return Answer(200, events, stream=True, ends=not self.stream_without_done)

    def _made(self, prompt: list[int], tokens: object, rank: int | None, *, sampled: bool) -> tuple[list[int], int]:
        """Return the generated ids, and the number of cached prompt tokens. Raises ValueError."""
        if not isinstance(tokens, int) or tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 0, got {tokens}.")
        if self.rejects_generation:
            raise ValueError("refused")
        if self.aborts_above is not None and len(prompt) > self.aborts_above:
            self.alive = False
            raise ConnectionRefusedError
        if len(prompt) >= self.context:
            raise OverLongError(f"The input ({len(prompt)} tokens) is longer than the model's context length.")
        made = self._generated(prompt, tokens, sampled=sampled, rank=rank or 0)
        self.wait_for_detokenizer()
        if rank is not None and rank == self.hanging_rank:
            time.sleep(2)
        self.counts["num_requests"] += 1
        return made

    def _generated(self, prompt: list[int], tokens: int, *, sampled: bool, rank: int = 0) -> tuple[list[int], int]:
        with self._lock:
            page = self.page if isinstance(self.page, int) and self.page > 0 else 1
            known = max((_common(prompt, ids) for at, ids in self._prefixes if at == rank), default=0)
            limit = (len(prompt) - 1) // page * page
            cached = 0 if self.cache_off else limit if self.overreports_cache else min(known // page * page, limit)
            self._sources = {"device": cached} if self._saved else {}
            for tier, prefixes in self._saved.items():
                known = max((_common(prompt, ids) for at, ids in prefixes if at == rank), default=0)
                self._sources[tier] = max(min(known // page * page, limit) - cached, 0)
                cached += self._sources[tier]
            garbled = self.corrupt_tier and self._sources.get(self.corrupt_tier)
            ids = self._ids([*prompt, 1] if garbled else prompt, tokens, sampled=sampled)
            self._prefixes = [*self._prefixes[-_MAX_SAVED:], (rank, prompt + ids)]
            for prefixes in self._saved.values():
                prefixes.append((rank, prompt + ids))
            while sum(len(prefix) for _, prefix in self._prefixes) > _POOL:
                self._prefixes.pop(0)
            if not self.metrics_frozen:
                for name, more in (("prompt", len(prompt)), ("generation", tokens), ("cached", cached)):
                    self.counts[f"{name}_tokens"] += more
            return ids, cached

    def _ids(self, prompt: list[int], count: int, *, sampled: bool) -> list[int]:
        """Return `count` ids, the same in every run. With a role, each id is a function of all ids before it."""
        self._sampled += sampled
        if self.role and not sampled:
            made: list[int] = []
            for _ in range(count):
                made.append(random.Random(str([*prompt, *made])).randrange(100, 200))
            return made
        source = random.Random(f"{prompt}, sample {self._sampled}" if sampled else str(prompt))
        return source.choices(range(100, 200), k=count)

    def _score(self, body: Json) -> Answer:
        """Return log-probabilities of prompts and generated tokens, each a function of the tokens before it."""
        prompts, rank, start = body["input_ids"], body["routed_dp_rank"] or 0, body["logprob_start_len"]
        again = any(tuple(prompts[0][: len(item)]) == item for item in self.scored)
        way = "batch" if len(prompts) > 1 else "cached" if start else "again" if again else "alone"
        if self.rejects_logprobs(rank, way):
            raise ValueError("speculation does not support return_logprob yet.")
        self.scored.update(map(tuple, prompts))
        return Answer(200, [[self.scores(ids, body, rank=rank, way=way) for ids in prompts]])

    def scores(self, ids: list[int], body: Json, *, rank: int = 0, way: Way = "alone") -> Json:
        """Return the response of `/generate` for one prompt."""
        start, tokens = body["logprob_start_len"], body["sampling_params"]["max_new_tokens"]
        text = [100 + location % 7 for location in range(tokens)]
        whole = [*ids, *text]
        rows = [
            self._scores_at(whole, location, rank, way, body["top_logprobs_num"])
            for location in range(start, len(whole))
        ]
        own, ranked = [row[0] for row in rows], [row[1] for row in rows]
        own[0], ranked[0] = [None, ids[start], None], None
        requested = len(ids) - start
        meta = {
            "finish_reason": {"type": "length", "length": tokens},
            "cached_tokens": 0 if self.cache_off else start,
            "input_token_logprobs": own[:requested],
            "input_top_logprobs": ranked[:requested],
            "output_token_logprobs": own[requested:],
            "output_top_logprobs": ranked[requested:],
        }
        return {"text": "", "output_ids": text, "meta_info": meta}

    def _scores_at(self, ids: list[int], location: int, rank: int, way: Way, top: int) -> tuple[list[Any], Any]:
        """Return the log-probability of a token, and the `top` likeliest tokens."""
        drawn = hashlib.sha256(repr(ids[max(location - 3, 0) : location + 1]).encode()).digest()[0]
        off = self.logprob_error(location, rank, way)
        score = None if off is None else round(-2.0 - drawn / 100 - off, 6)
        ranked = [
            [round(-1.0 - index - (off or 0.0) / 8, 6), (location * 7 + index) % 400, None] for index in range(top)
        ]
        return [score, ids[location], None], ranked


def over_httpx(api: EngineApi) -> "httpx.MockTransport":
    import httpx

    def respond(request: httpx.Request) -> httpx.Response:
        try:
            answer = api.answer(request.url.path, request.content, request.headers.get("Authorization"))
        except ConnectionRefusedError as error:
            raise httpx.ConnectError("connection refused") from error
        except TimeoutError as error:
            raise httpx.ReadTimeout("timed out") from error
        return httpx.Response(answer.status, text=answer.body())

    return httpx.MockTransport(respond)


def _common(one: list[int], other: list[int]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((location for location, (a, b) in pairs if a != b), min(len(one), len(other)))


def _ids_of(prompt: object) -> list[int]:
    return list(prompt) if isinstance(prompt, list) else [ord(letter) for letter in str(prompt)]


def _rank_of(body: Json) -> int | None:
    return body.get("routed_dp_rank")


def _words(ids: Sequence[int]) -> list[str]:
    return [f"w{item} " for item in ids]


_ROUTES: Mapping[str, Callable[[EngineApi, Json], Answer]] = {
    **dict.fromkeys(("/health", "/health_generate"), EngineApi._health),
    "/metrics": EngineApi._metrics,
    "/get_load": EngineApi._load,
    "/abort_request": EngineApi._abort,
    "/flush_cache": EngineApi._flush,
    "/v1/models": EngineApi._models,
    "/model_info": EngineApi._model_info,
    "/server_info": EngineApi._server_info,
    "/tokenize": EngineApi._tokenize,
    "/generate": EngineApi._generate,
    "/v1/completions": EngineApi._complete,
    "/v1/chat/completions": EngineApi._chat,
}
