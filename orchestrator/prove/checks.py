"""The checks. Each says in its first line what would be wrong without it."""

import json
from collections.abc import Callable
from typing import Final

from orchestrator.prove.probe import Generated, Json, Probe, form_of, number
from orchestrator.prove.report import Finding, failed, not_applicable, passed, warning

PROMPT: Final = "Count from one to one hundred in words: one, two, three, four, five,"
QUESTION: Final = "Count from one to ten in words."
PREFIX_TOKENS: Final = 1024
SCHEMA: Final = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}, "colour": {"enum": ["red", "green"]}},
    "required": ["ready", "colour"],
    "additionalProperties": False,
}


def right_model(probe: Probe) -> Finding:
    """Another model, or another context length, stands behind the URL (any model name is accepted in a request)."""
    models = probe.get_json("/v1/models")
    with form_of("`/v1/models`"):
        served = {model["id"]: model["max_model_len"] for model in models["data"]}
    name, length = probe.target.served_name, probe.target.context_length
    if name not in served:
        return failed(f"serves `{', '.join(served)}`, not `{name}`")
    if served[name] != length:
        return failed(f"`{name}` takes {served[name]} tokens, the profile says {length}")
    path = probe.get_json("/model_info").get("model_path")
    return passed(f"`{name}` from `{path}`, context {length}")


def key_required(probe: Probe) -> Finding:
    """The server was to be closed and is open."""
    if not probe.target.api_key:
        return not_applicable("the profile has no API key")
    status = probe.status_without_key("/generate", probe.generate_body("Hi", tokens=1))
    return passed("401 without the key") if status == 401 else failed(f"a request without the key is answered {status}")


def greedy_repeats(probe: Probe) -> Finding:
    """Numbers come out wrong now and then: uninitialised memory, a race, a broken collective.

    The first answer fills the cache and is not compared: a prefix read from cache may round differently.
    """
    _, first, second = (probe.generate(PROMPT, tokens=32) for _ in range(3))
    if first.ids != second.ids:
        same = next(i for i, (a, b) in enumerate(zip(first.ids, second.ids, strict=False)) if a != b)
        return failed(f"two greedy answers differ from token {same} on")
    return passed(f"{len(first.ids)} tokens twice the same")


def stream_agrees(probe: Probe) -> Finding:
    """Streaming loses, doubles or holds back text."""
    body = probe.chat_body(QUESTION, tokens=32, ignore_eos=True)
    probe.chat(body)  # fills the cache, as above
    whole, stream = probe.chat(body), probe.chat_stream(body)
    if stream.text != whole.text:
        return failed(f"streaming gives {stream.text[:60]!r}, not streaming {whole.text[:60]!r}")
    if stream.pieces < 2:
        return failed(f"{whole.completion_tokens} tokens came in {stream.pieces} piece: the answer is not streamed")
    if stream.completion_tokens != whole.completion_tokens:
        return failed(f"`usage` counts {stream.completion_tokens} tokens streaming, {whole.completion_tokens} not")
    return passed(f"the same {len(whole.text)} characters, in {stream.pieces} pieces")


def tokens_add_up(probe: Probe) -> Finding:
    """Tokens are counted wrongly, and with them every rate that is measured later."""
    ids, tokens = probe.fresh_ids(37), 16
    answer, usage = probe.generate(ids, tokens=tokens), probe.usage(ids, tokens=tokens)
    counted = {
        "prompt tokens in `meta_info`": (answer.prompt_tokens, len(ids)),
        "prompt tokens in `usage`": (number(usage, "prompt_tokens"), len(ids)),
        "output ids": (len(answer.ids), tokens),
        "completion tokens in `meta_info`": (answer.completion_tokens, tokens),
        "completion tokens in `usage`": (number(usage, "completion_tokens"), tokens),
        "total tokens in `usage`": (number(usage, "total_tokens"), len(ids) + tokens),
    }
    wrong = [f"{what}: {seen}, not {sent}" for what, (seen, sent) in counted.items() if seen != sent]
    return failed("; ".join(wrong)) if wrong else passed(f"{len(ids)} in, {tokens} out, in both protocols")


def prefix_cached(probe: Probe) -> Finding:
    """A repeated prefix is computed again.

    The prompt is new to the server, so the first answer must come from cache hardly at all. Hits round down to whole
    pages, the last token is always computed, and speculation holds back one more.
    """
    if not probe.target.prefix_cache:
        return not_applicable("the profile turns the prefix cache off")
    prompt = probe.fresh_ids(min(PREFIX_TOKENS, probe.target.context_length // 4))
    page = number(probe.get_json("/server_info"), "page_size")
    cold, warm = (probe.generate(prompt, tokens=1).cached_tokens for _ in range(2))
    least = (len(prompt) - 2) // page * page
    if warm < least:
        return failed(f"a repeated prompt of {len(prompt)} tokens: {warm} from cache, {least} expected (page {page})")
    if cold >= least:
        return failed(f"a prompt never sent before is said to come from cache: {cold} of {len(prompt)} tokens")
    if probe.target.cache_report and (reported := _reported(probe.usage(prompt, tokens=1))) < least:
        return failed(f"`usage` reports {reported} cached tokens where `meta_info` reports {warm}")
    return passed(f"{warm} of {len(prompt)} tokens from cache the second time, {cold} the first (page {page})")


def ranks_serve(probe: Probe) -> Finding:
    """A data-parallel replica is dead or never asked, and half of the throughput is missing."""
    if probe.target.dp == 1:
        return not_applicable("one data-parallel rank")
    answers = {rank: probe.generate(PROMPT, tokens=4, rank=rank).dp_rank for rank in range(probe.target.dp)}
    if None in answers.values():
        return warning("every rank was asked and something answered: the server does not say which rank it was")
    if strays := {rank: by for rank, by in answers.items() if by != rank}:
        return failed("; ".join(f"rank {by} answered for rank {rank}" for rank, by in strays.items()))
    return passed(f"each of {len(answers)} ranks answered for itself")


def drafts_accepted(probe: Probe) -> Finding:
    """Speculation is off, or its drafts are all refused: the cost without the gain.

    The accept length is completion tokens over verification steps, 1.0 when no draft is ever right (sglang 0.5.14,
    managers/tokenizer_manager.py:2329).
    """
    if not probe.target.speculative:
        return not_applicable("the profile does not speculate")
    lengths = [_accept_length(probe.generate(PROMPT, tokens=64, rank=rank)) for rank in range(probe.target.dp)]
    if None in lengths:
        return failed("the server reports no verification steps: speculation is off")
    shown = ", ".join(f"{length:.2f}" for length in lengths)
    if any(length is not None and length <= 1 for length in lengths):
        return failed(f"accept length {shown}: no draft is ever right")
    return passed(f"accept length {shown} on one prompt")


def schema_obeyed(probe: Probe) -> Finding:
    """Structured output is ignored, or its backend takes the scheduler down."""
    if not probe.target.grammar:
        return not_applicable("the profile names no grammar backend that this engine can use")
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    thinking = {"enable_thinking": False}
    body = probe.chat_body("Is it ready?", tokens=256, response_format=wanted, chat_template_kwargs=thinking)
    answer = probe.chat(body)
    if answer.finish_reason == "length":
        return warning(f"the answer was not finished within {answer.completion_tokens} tokens")
    try:
        data = json.loads(answer.text)
    except ValueError:
        return failed(f"not JSON: {answer.text[:80]!r}")
    if not (isinstance(data, dict) and data.keys() == {"ready", "colour"} and data["colour"] in {"red", "green"}):
        return failed(f"JSON that breaks the schema: {answer.text[:80]}")
    return passed(answer.text)


def malformed_refused(probe: Probe) -> Finding:
    """A client's mistake is answered 5xx, or takes the server down."""
    sent = {
        "broken JSON to `/generate`": ("/generate", b"{broken"),
        "broken JSON to `/v1/chat/completions`": ("/v1/chat/completions", b"{broken"),
        "messages of the wrong type": ("/v1/chat/completions", b'{"model": "m", "messages": "hello"}'),
        "negative max_tokens": ("/v1/completions", b'{"model": "m", "prompt": "hello", "max_tokens": -5}'),
    }
    return _refused(probe, {what: probe.status_of(path, content=content) for what, (path, content) in sent.items()})


def overlong_refused(probe: Probe) -> Finding:
    """A prompt beyond the context length is cut in silence, answered 5xx, or takes the server down."""
    prompt = probe.fresh_ids(probe.target.context_length + 1)
    native = json.dumps(probe.generate_body(prompt, tokens=1)).encode()
    openai = json.dumps({"model": probe.target.served_name, "prompt": prompt, "max_tokens": 1}).encode()
    what = f"{len(prompt)} tokens to "
    return _refused(
        probe,
        {
            f"{what}`/generate`": probe.status_of("/generate", content=native),
            f"{what}`/v1/completions`": probe.status_of("/v1/completions", content=openai),
        },
    )


def metrics_count(probe: Probe) -> Finding:
    """Metrics are off or stand still, and so is everything that watches them."""
    if not probe.target.metrics:
        return not_applicable("the profile does not export metrics")
    name = "sglang:generation_tokens_total"
    before = probe.metric(name) or 0.0
    probe.generate(PROMPT, tokens=16)
    probe.generate(PROMPT, tokens=1)  # the count of a request may follow its answer; that of the one before does not
    after = probe.metric(name)
    if after is None:
        return failed(f"`/metrics` has no `{name}`")
    if after < before + 16:
        return failed(f"`{name}` went from {before:g} to {after:g} over 17 tokens")
    return passed(f"`{name}` went from {before:g} to {after:g}")


def log_clean(probe: Probe) -> Finding:
    """The server is ready and its log shows a fault that does not stop it: a kernel that is compiled again each step.

    Comes last: such lines are written while requests are served.
    """
    if probe.faults is None:
        return not_applicable("no log at hand")
    faults = probe.faults()
    return failed("; ".join(faults)) if faults else passed("no known fault in the server's log")


CHECKS: Final[tuple[tuple[str, Callable[[Probe], Finding]], ...]] = (
    ("right model", right_model),
    ("key required", key_required),
    ("greedy repeats", greedy_repeats),
    ("stream agrees", stream_agrees),
    ("tokens add up", tokens_add_up),
    ("prefix cached", prefix_cached),
    ("each rank serves", ranks_serve),
    ("drafts accepted", drafts_accepted),
    ("schema obeyed", schema_obeyed),
    ("malformed refused", malformed_refused),
    ("over-long refused", overlong_refused),
    ("metrics count", metrics_count),
    ("log clean", log_clean),
)


def _refused(probe: Probe, statuses: dict[str, int]) -> Finding:
    wrong = [f"{what} is answered {status}" for what, status in statuses.items() if not 400 <= status < 500]
    if wrong:
        return failed("; ".join(wrong))
    if (health := probe.health()) != 200:  # before the requests below: see `Probe.health`
        return failed(f"`/health` answers {health} afterwards")
    for rank in range(probe.target.dp):
        probe.generate(PROMPT, tokens=1, rank=rank)
    return passed(
        f"{len(statuses)} requests answered {', '.join(map(str, sorted(set(statuses.values()))))}; still serving"
    )


def _reported(usage: Json) -> int:
    details = usage.get("prompt_tokens_details")
    return number(details, "cached_tokens") if isinstance(details, dict) else 0


def _accept_length(answer: Generated) -> float | None:
    return answer.completion_tokens / answer.verify_steps if answer.verify_steps else None
