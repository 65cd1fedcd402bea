"""The checks of the smoke test. The first line of each docstring names the condition that the check verifies."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Final

from orchestrator.core.secrets import excerpt
from orchestrator.core.text import parse_json
from orchestrator.engine import endpoints
from orchestrator.engine.client import EngineClient
from orchestrator.engine.metrics import Metric
from orchestrator.engine.options import Meaning
from orchestrator.engine.other_engines import option_name
from orchestrator.engine.requests import Body, chat_body, completion_body, generate_body
from orchestrator.engine.responses import ChatResponse, UnexpectedResponseError, number, read_cached
from orchestrator.plan.plan import SmokeQuestion
from orchestrator.verify.client import NotOfferedError, SmokeClient, is_correct
from orchestrator.verify.long_prompts import fact_found, long_prefill
from orchestrator.verify.parser_checks import reasoning_separated, tool_call_parsed
from orchestrator.verify.report import CheckOutcome, causes_of, compare_ids, differs, failed, passed, skipped, warning
from orchestrator.verify.soak import soak
from orchestrator.verify.target import Target
from orchestrator.verify.tier_checks import cache_tiers

Check = Callable[[SmokeClient], CheckOutcome]

PROMPT: Final = "Count from one to one hundred in words: one, two, three, four, five,"
QUESTION: Final = "Count from one to ten in words."
PREFIX_TOKENS: Final = 1024
_METRICS_SECONDS: Final = 1.5  # ATOM updates its counters once a second
_MIN_ACCEPTED: Final = 0.5  # minimum share of the accepted drafts that were published for other prompts (our limit)
_DRAWS: Final = 8  # one-token answers at each temperature
_TIED: Final = 4  # first tokens that may be equally likely in bfloat16, at any temperature
_COMPARED_TOKENS: Final = 12  # at temperature 2, this many sampled tokens do not match the greedy ones by chance
SCHEMA: Final = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}, "color": {"enum": ["red", "green"]}},
    "required": ["ready", "color"],
    "additionalProperties": False,
}


def served_model(client: SmokeClient) -> CheckOutcome:
    """Check the served model and its context length, because the server accepts requests under any model name."""
    served = client.described_by.models()
    name, length = client.target.served_name, client.target.context_length
    if name not in served:
        return failed(f"serves `{', '.join(served)}`, not `{name}`")
    if (served[name] or 0) != length:
        return failed(f"`{name}` accepts {served[name]} tokens, but the profile sets {length}")
    if not client.is_sglang:
        return passed(f"`{name}` of {client.target.engine}, context {length or 'not reported'}")
    path = client.described_by.get(endpoints.MODEL_INFO).get("model_path")
    if not isinstance(path, str):
        raise UnexpectedResponseError(f"`{endpoints.MODEL_INFO}` has no model path")
    return passed(f"`{name}` from `{path}`, context {length}")


def api_key_required(client: SmokeClient) -> CheckOutcome:
    """Check that a request without the API key is rejected."""
    return check_key_required(client.server, client.target)


def check_key_required(server: EngineClient, target: Target) -> CheckOutcome:
    """Check that a request without the API key of the target is rejected.

    The first request has no body: sglang rejects a request before it reads the body (0.5.14, utils/auth.py) and closes
    the connection, and a reset connection to a pod ends `kubectl port-forward` (kubernetes/kubernetes#74551).
    """
    if not target.api_key:
        return skipped("the profile has no API key")
    body = json.dumps(completion_body(target.served_name, PROMPT, tokens=1)).encode()
    status = server.post_status(endpoints.COMPLETIONS, b"", with_key=False)
    if status != 401:
        status = server.post_status(endpoints.COMPLETIONS, body, with_key=False)
    if status == 401:
        return passed("401 without the key")
    return failed(f"a request without the key returns status {status}")


def greedy_deterministic(client: SmokeClient) -> CheckOutcome:
    """Check that greedy answers repeat. Uninitialized memory, a race or a broken collective makes them differ.

    The first answer fills the cache and is not compared: a prefix read from cache may round differently.
    """
    tokens = 32
    _, first, second = (client.generate(PROMPT, tokens=tokens) for _ in range(3))
    if difference := compare_ids(first.ids, second.ids, "two greedy answers differ", client.target.nondeterministic):
        return difference
    if len(first.ids) != tokens:
        return failed(f"{len(first.ids)} tokens instead of {tokens}")
    return passed(f"the same {tokens} tokens in two requests")


def streaming_matches(client: SmokeClient) -> CheckOutcome:
    """Check that streaming does not lose, duplicate or hold back text."""
    body = chat_body(client.target.served_name, QUESTION, tokens=32, ignore_eos=True)
    client.chat(body)  # fills the cache, as in `greedy_deterministic`
    answer, stream = client.chat(body), client.chat_stream(body)
    text = f"streaming gives {excerpt(stream.text, 60)!r}, not streaming {excerpt(answer.text, 60)!r}"
    if not stream.text:
        return failed(text)
    if stream.chunks < 2:
        return failed(f"{answer.completion_tokens} tokens came in {stream.chunks} chunk: the response is not streamed")
    if stream.completion_tokens != answer.completion_tokens:
        return failed(f"`usage` counts {stream.completion_tokens} tokens streaming, {answer.completion_tokens} not")
    if stream.text != answer.text:
        return differs(text, client.target.nondeterministic)
    return passed(f"the same {len(answer.text)} characters, in {stream.chunks} chunks")


def correct_answers(client: SmokeClient) -> CheckOutcome:
    """Check known answers on every rank. One wrong answer is a warning, two are a failure.

    If the model has a single question, one wrong answer is a failure. Wrong answers may be the only sign of a faulty
    kernel, wrong weights or a wrong quantization. Every rank answers all questions, because each has its own weights.
    """
    questions, chunk = client.target.questions, client.target.prefill_chunk
    wrong: list[list[str]] = []
    longest = 0
    for rank in range(client.target.dp):
        answers = [(question, client.ask(question, rank=rank)) for question in questions]
        longest = max(longest, *(answer.prompt_tokens for _, answer in answers))
        wrong.append([_wrong(*pair) for pair in answers if not is_correct(pair[0], pair[1].content)])
    if answered := [f"rank {rank}: {'; '.join(of_rank)}" for rank, of_rank in enumerate(wrong) if of_rank]:
        max_wrong = max(map(len, wrong))
        conclude = failed if max_wrong >= min(2, len(questions)) else warning
        causes = causes_of(client.target.wrong_answers, hints=True)
        return conclude(f"{max_wrong} of {len(questions)} answers wrong; {'; '.join(answered)}", causes=causes)
    if chunk and longest <= chunk:
        text = f"all {len(questions)}, no prompt longer than a prefill chunk ({chunk} tokens): up to {longest} tokens"
        return warning(text)
    longest_text = f"one of them after {longest} tokens" + (f" (a prefill chunk has {chunk})" if chunk else "")
    return passed(f"all {len(questions)}, {longest_text}")


def sampling_varies(client: SmokeClient) -> CheckOutcome:
    """Check that temperature changes the output. At temperature 2, 32 sampled tokens do not match by chance.

    The prompt is random. With speculation, the tokens after the first must not be the greedy ones: prefill samples the
    first token even if the verification of drafts does not sample. The first request may compile a kernel (96 s on an
    H200), so that no user waits for it.
    """
    prompt = client.fresh_ids(37)
    for rank in range(client.target.dp):
        # Each filter has its own kernel, and one kernel has crashed at its first request (ROCm/aiter #5192).
        filters: tuple[dict[str, float], ...] = ({"top_p": 0.95}, {"top_k": 50})
        answers = [client.generate(prompt, tokens=32, rank=rank, temperature=2.0, **item).ids for item in filters]
        if answers[0] == answers[1]:
            return _not_sampled(client, f"rank {rank} returns the same 32 tokens twice at temperature 2")
        if client.target.speculative and _continues_greedily(client, prompt, answers[0], rank):
            return _not_sampled(client, f"rank {rank} samples only the first token at temperature 2")
        greedy, cold, hot = (_first_tokens(client, prompt, rank, temperature=item) for item in (0.0, 0.01, 2.0))
        if greedy == 1 and cold >= hot > _TIED:
            return failed(f"rank {rank} begins {cold} of {_DRAWS} answers differently at temperature 0.01, {hot} at 2")
    return passed("two answers at temperature 2 differ, and answers at 0.01 vary less")


def token_counts(client: SmokeClient) -> CheckOutcome:
    """Check the token counts, on which every measured rate depends."""
    ids, tokens = client.fresh_ids(37), 16
    answer, usage = client.generate(ids, tokens=tokens), client.usage(ids, tokens=tokens)
    counts = {
        "prompt tokens in `meta_info`": (answer.prompt_tokens, len(ids)),
        "prompt tokens in `usage`": (number(usage, "prompt_tokens"), len(ids)),
        "output ids": (len(answer.ids), tokens),
        "completion tokens in `meta_info`": (answer.completion_tokens, tokens),
        "completion tokens in `usage`": (number(usage, "completion_tokens"), tokens),
        "total tokens in `usage`": (number(usage, "total_tokens"), len(ids) + tokens),
    }
    wrong = [f"{name}: {reported}, not {sent}" for name, (reported, sent) in counts.items() if reported != sent]
    return failed("; ".join(wrong)) if wrong else passed(f"{len(ids)} in, {tokens} out")


def prefix_cache(client: SmokeClient) -> CheckOutcome:
    """Check that a repeated prefix comes from the cache.

    The first request must have almost no cache hits, because its prompt is new. The second has fewer hits than tokens:
    hits are rounded down to whole pages, the last token is always computed, and speculation leaves out one more.
    """
    if not client.target.prefix_cache:
        return skipped("the profile disables the prefix cache")
    if not (client.is_sglang or client.target.cache_report):
        option = option_name(client.target.engine, Meaning.CACHED_TOKENS_REPORT)
        started = f"; start it with `--{option}`" if option else ""
        raise NotOfferedError(f"{client.engine} reports no cached tokens{started}")
    prompt = client.fresh_ids(min(PREFIX_TOKENS, client.target.context_length // 4))
    page = client.page_size()
    first, second = (client.generate(prompt, tokens=1) for _ in range(2))
    cold, warm = first.cached_tokens, second.cached_tokens
    tiers = {tier: count for tier, count in second.cached_by_source.items() if count}
    source = "" if tiers.keys() <= {"device"} else "".join(f", {count} from {tier}" for tier, count in tiers.items())
    expected = (len(prompt) - 2) // page * page
    if warm < expected:
        return failed(
            f"a repeated prompt of {len(prompt)} tokens: {warm} from cache, {expected} expected (page {page})"
        )
    if cold >= expected:
        return failed(f"{cold} of {len(prompt)} tokens of a new prompt are reported as cached")
    takes_ids = client.target.cache_report and not client.target.engine_url
    if takes_ids and (reported := read_cached(client.usage(prompt, tokens=1)) or 0) < expected:
        return failed(f"`usage` reports {reported} cached tokens, `meta_info` {warm}")
    return passed(f"{warm} of {len(prompt)} tokens from cache the second time, {cold} the first (page {page}){source}")


def dp_ranks(client: SmokeClient) -> CheckOutcome:
    """Check that each data-parallel rank answers. If one of two ranks is dead or unused, throughput halves."""
    if client.target.dp == 1:
        return skipped("one data-parallel rank")
    answers = {rank: client.generate(PROMPT, tokens=4, rank=rank).dp_rank for rank in range(client.target.dp)}
    if None in answers.values():
        return warning("all ranks answered, but the server does not report which rank it was")
    if misrouted := {rank: by for rank, by in answers.items() if by != rank}:
        return failed("; ".join(f"rank {by} answered for rank {rank}" for rank, by in misrouted.items()))
    return passed(f"each of {len(answers)} ranks answered for itself")


def speculative_decoding(client: SmokeClient) -> CheckOutcome:
    """Check that speculation is on and that drafts are accepted. Rejected drafts only cost time."""
    if not client.target.speculative:
        return skipped("the profile has no speculative decoding")
    if not client.is_sglang:
        raise NotOfferedError(f"{client.engine} reports no verification steps of a request")
    lengths = [client.generate(PROMPT, tokens=64, rank=rank).accept_length for rank in range(client.target.dp)]
    if None in lengths:
        return failed("the server reports no verification steps: speculation is off")
    text = ", ".join(f"{length:.2f}" for length in lengths)
    if any(length is not None and length <= 1 for length in lengths):
        return failed(f"accept length {text}: no draft is accepted")
    if (published := client.target.accept_length) is not None:
        text += f", published {published:.2f}"
        if any(length is not None and length - 1 < _MIN_ACCEPTED * (published - 1) for length in lengths):
            return warning(f"accept length {text}: fewer drafts are accepted than published")
    return passed(f"accept length {text} on one prompt")


def structured_output(client: SmokeClient) -> CheckOutcome:
    """Check that structured output matches its schema and that its backend does not crash the scheduler."""
    if not client.target.grammar:
        return skipped("the profile has no grammar backend for this engine")
    response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    thinking = {"enable_thinking": False}
    name = client.target.served_name
    body = chat_body(name, "Is it ready?", tokens=256, response_format=response_format, chat_template_kwargs=thinking)
    answer = client.chat(body)
    if answer.finish_reason == "length":
        return warning(f"the answer did not end within {answer.completion_tokens} tokens")
    try:
        data = parse_json(answer.text)
    except ValueError:
        return failed(f"not JSON: {excerpt(answer.text, 80)!r}")
    if not (isinstance(data, dict) and data.keys() == {"ready", "color"} and data["color"] in ("red", "green")):
        return failed(f"JSON that does not match the schema: {excerpt(answer.text, 80)}")
    return passed(answer.text)


def bad_requests_rejected(client: SmokeClient) -> CheckOutcome:
    """Check that the server rejects invalid requests with a 4xx status and keeps serving."""
    sglang_only = {f"broken JSON to `{endpoints.GENERATE}`": (endpoints.GENERATE, b"{broken")}
    sent = {
        **(sglang_only if client.is_sglang else {}),
        f"broken JSON to `{endpoints.CHAT_COMPLETIONS}`": (endpoints.CHAT_COMPLETIONS, b"{broken"),
        "messages of the wrong type": (endpoints.CHAT_COMPLETIONS, b'{"model": "m", "messages": "hello"}'),
        "negative max_tokens": (endpoints.COMPLETIONS, b'{"model": "m", "prompt": "hello", "max_tokens": -5}'),
    }
    return _rejects(client, sent)


def overlong_prompt_rejected(client: SmokeClient) -> CheckOutcome:
    """Check that the server rejects, not truncates, a prompt beyond the context length (4xx), and keeps serving."""
    if not client.target.context_length:
        raise NotOfferedError(f"{client.engine} reports no context length")
    prompt = client.fresh_ids(client.target.context_length + 1)
    sglang_only = {endpoints.GENERATE: generate_body(prompt, tokens=1, model=client.target.served_name)}
    bodies: dict[str, Body] = {
        **(sglang_only if client.is_sglang else {}),
        endpoints.COMPLETIONS: completion_body(client.target.served_name, prompt, tokens=1),
    }
    return _rejects(
        client,
        {f"{len(prompt)} tokens to `{path}`": (path, json.dumps(body).encode()) for path, body in bodies.items()},
    )


def metrics(client: SmokeClient) -> CheckOutcome:
    """Check that the server exports metrics and that they count tokens, because monitoring depends on them."""
    if not client.target.metrics:
        return skipped("the profile does not export metrics")
    name = str(Metric.OUTPUT_TOKENS)
    before = client.described_by.metrics().get(name, 0.0)  # a counter may be absent until its first increment
    client.usage(PROMPT, tokens=16)
    client.usage(PROMPT, tokens=1)  # a counter may lag behind the last answer, but not the one before
    after = client.described_by.metrics().get(name)
    if not client.is_sglang and after is not None and after < (before or 0.0) + 16:
        time.sleep(_METRICS_SECONDS)
        after = client.described_by.metrics().get(name)
    name = name.replace("sglang", client.target.engine)
    if before is None or after is None:
        return failed(f"`{endpoints.METRICS}` has no number for `{name}`")
    if after < before + 16:
        return failed(f"`{name}` went from {before:g} to {after:g} over 17 tokens")
    return passed(f"`{name}` went from {before:g} to {after:g}")


def clean_log(client: SmokeClient) -> CheckOutcome:
    """Check that the log shows no non-fatal fault, such as a kernel that is compiled again at each step.

    This check runs last, because the server logs such faults while it serves requests.
    """
    if client.faults is None:
        return skipped("no log available")
    faults = client.faults()
    return failed("; ".join(faults)) if faults else passed("no known fault in the server's log")


CHECKS: Final[tuple[tuple[str, Check], ...]] = (
    ("served model", served_model),
    ("API key required", api_key_required),
    ("greedy deterministic", greedy_deterministic),
    ("streaming matches", streaming_matches),
    ("correct answers", correct_answers),
    ("sampling varies", sampling_varies),
    ("token counts", token_counts),
    ("prefix cache", prefix_cache),
    ("cache tiers", cache_tiers),
    ("DP ranks", dp_ranks),
    ("speculative decoding", speculative_decoding),
    ("structured output", structured_output),
    ("tool call parsed", tool_call_parsed),
    ("reasoning separated", reasoning_separated),
    ("fact in a long text found", fact_found),
    ("long prefill", long_prefill),
    ("bad requests rejected", bad_requests_rejected),
    ("overlong prompt rejected", overlong_prompt_rejected),
    ("metrics", metrics),
    ("soak", soak),
    ("clean log", clean_log),
)


def skip_reason(check: Check, target: Target) -> str:
    """Return why a check does not apply (the target has no questions, parser or soak), or "" if it applies."""
    reasons: dict[Check, str] = {
        correct_answers: "" if target.questions else "the model has no questions",
        tool_call_parsed: "" if target.tool_parser else f"the profile has no `{Meaning.TOOL_PARSER}`",
        reasoning_separated: "" if target.reasoning_parser else f"the profile has no `{Meaning.REASONING_PARSER}`",
        soak: "" if target.soak_seconds else "not requested: `--soak MINUTES`",
    }
    return reasons.get(check, "")


def _continues_greedily(client: SmokeClient, prompt: list[int], answer: Sequence[int], rank: int) -> bool:
    """Return whether an answer continues after its first token as greedy decoding does."""
    greedy = client.generate([*prompt, *answer[:1]], tokens=_COMPARED_TOKENS, rank=rank).ids
    return tuple(answer[1 : 1 + _COMPARED_TOKENS]) == greedy


def _first_tokens(client: SmokeClient, prompt: list[int], rank: int, *, temperature: float) -> int:
    """Return the number of different first tokens in `_DRAWS` answers."""
    answers = (client.generate(prompt, tokens=1, rank=rank, temperature=temperature) for _ in range(_DRAWS))
    return len({answer.ids for answer in answers})


def _not_sampled(client: SmokeClient, evidence: str) -> CheckOutcome:
    """Return a failure, or a warning if the plan has a known issue with greedy decoding."""
    if not client.target.greedy:
        return failed(evidence)
    return warning(f"{evidence}, a known issue of this engine", causes=causes_of(client.target.greedy, hints=True))


def _wrong(question: SmokeQuestion, answer: ChatResponse) -> str:
    answered, expected = excerpt(answer.content, 40), excerpt(question.expected, 40)
    return f"after {answer.prompt_tokens} tokens {answered!r} instead of {expected!r}"


def _rejects(client: SmokeClient, requests: dict[str, tuple[str, bytes]]) -> CheckOutcome:
    statuses = {name: client.server.post_status(path, content) for name, (path, content) in requests.items()}
    wrong = [f"{name} returns status {status}" for name, status in statuses.items() if not 400 <= status < 500]
    if wrong:
        return failed("; ".join(wrong))
    if (health := client.server.health(tries=2)) != 200:  # before the requests below: see `EngineClient.health`
        return failed(f"`{endpoints.HEALTH}` returned HTTP {health} afterwards")
    for rank in range(client.target.dp):
        client.usage(PROMPT, tokens=1, rank=rank)
    text = f"{len(statuses)} requests answered {', '.join(map(str, sorted(set(statuses.values()))))}; still serving"
    return passed(text)
