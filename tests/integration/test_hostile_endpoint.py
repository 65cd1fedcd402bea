"""Every command that queries a hostile endpoint ends within bounds of time and memory, with its own error."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from engine_api import EngineApi
from hostile_server import BEHAVIORS, hostile
from scripted_runs import order_of

from orchestrator.bench.benchmark import measure
from orchestrator.bench.result import BenchResult, IssueKind
from orchestrator.bench.workload import Workload
from orchestrator.core.errors import BenchError, NotReadyError, StartError
from orchestrator.engine.client import HEALTH_LIMITS, Timeouts
from orchestrator.planner.planning import load
from orchestrator.runtimes.base import ServerState, Status
from orchestrator.servers import ask as ask_module
from orchestrator.servers.ask import ask
from orchestrator.verify.readiness import StartingServer, wait_until_ready
from orchestrator.verify.report import Verdict
from orchestrator.verify.smoke import smoke_test
from orchestrator.verify.target import Target, target_of

pytestmark = pytest.mark.timeout(300)
CONTEXT = 4096  # tokens; a smoke test sends a prompt that is longer
SHORT_TIMEOUT, LONG_TIMEOUT = 0.25, 20.0  # for responses that never end, and for those that do
ENDLESS = ["silent", *(name for name in BEHAVIORS if name.startswith("drip") or name.endswith("for-ever"))]
FLOODS = ["flood", "flood-length", "flood-chunks", "gzip-bomb", "million-models", "wide", "deep", "million-metrics"]
INVALID = [
    *("redirect", "unavailable", "html", "empty", "latin-1", "utf-16", "bom", "ssh", "close", "cut-head", "cut-body"),
    *("chunk-negative", "chunk-garbage", "chunk-huge", "length-negative", "length-twice", "flood-error"),
]
BROKEN_STREAMS = sorted(name for name in BEHAVIORS if name.startswith("stream-") and name != "stream-for-ever")
UNEXPECTED_VALUES = ["null", "[]", "-5", "1e400", "NaN", r'"\ud800"', "1.5", "true", "[[1]]", "{}", "9" * 30, ""]
WORKLOAD = Workload(
    description="a test", source="a test", input_tokens=20, output_tokens=6, cache_hit_rate=0.0, num_prefixes=1,
    token_ids=(10, 500), temperature=0.0, load="open", arrivals="constant", request_rates=(50.0,), requests=4, seed=1,
    timeout_s=LONG_TIMEOUT, slo={"ttft_p95_s": 5.0, "success_share": 0.99},
)  # fmt: skip


def timeout_for(behaviors: Iterable[str]) -> float:
    return SHORT_TIMEOUT if {*behaviors} & {*ENDLESS} else LONG_TIMEOUT


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch, behavior: str) -> None:
    duration = timeout_for([behavior])
    monkeypatch.setattr(ask_module, "_LIMITS", Timeouts(connect=duration, idle=duration, total=duration))


def answer_text(url: str) -> str:
    return "".join(ask(url, "Count", tokens=8, key=None))


def target(url: str) -> Target:
    return Target(
        url=url, served_name="tiny", context_length=CONTEXT, dp=1, speculative=False, prefix_cache=True,
        cache_report=True, metrics=True, grammar=True, reasoning_parser=None, tool_parser=None, questions=(),
        prefill_chunk=None, wrong_answers=(),
        nondeterministic=(), greedy=(),
        api_key=None,
    )  # fmt: skip


def failures(rules: dict[str, str]) -> dict[str, str]:
    with hostile(rules, api=EngineApi(model="tiny", context=CONTEXT)) as url:
        report = smoke_test(target(url), faults=None, timeout=timeout_for(rules.values()))
    assert not [check.evidence for check in report.checks if "Error" in check.evidence]  # no Python exceptions
    return {check.name: check.evidence for check in report.checks if check.verdict is Verdict.FAILED}


def measured(rules: dict[str, str], folder: Path, **changes: object) -> BenchResult:
    changes = {"timeout_s": timeout_for(rules.values()), **changes}
    with hostile(rules) as url:
        request = order_of(url, folder, workload=WORKLOAD.model_copy(update=changes), text="one two three")
        return measure(request, lambda _text, _transient: None)


def test_endpoint_without_faults_passes(tmp_path: Path) -> None:
    with hostile({}) as url:
        assert answer_text(url)
    assert failures({}) == {}
    point = measured({}, tmp_path).points[0]
    assert (point.succeeded, point.output_tokens) == (4, 24)


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize("behavior", [*ENDLESS, *FLOODS, *INVALID, *BROKEN_STREAMS, "deep-event"])
def test_ask_reports_incomplete_response(behavior: str) -> None:
    with (
        hostile({"/v1/completions": behavior}) as url,
        pytest.raises(StartError, match="no complete response from http"),
    ):
        answer_text(url)


@pytest.mark.parametrize("value", UNEXPECTED_VALUES)
@pytest.mark.parametrize("key", ["choices", "choices.0", "choices.0.text", "choices.0.finish_reason"])
def test_ask_rejects_non_text_choices(key: str, value: str) -> None:
    rejected = pytest.raises(StartError, match="no complete response from http")
    with hostile({f"/v1/completions#{key}": value}) as url, rejected:
        answer_text(url)


@pytest.mark.parametrize("behavior", [*ENDLESS, *FLOODS, *INVALID])
@pytest.mark.parametrize(
    ("path", "check"), [("/v1/models", "served model"), ("/v1/chat/completions", "streaming matches")]
)
def test_smoke_test_fails_on_broken_response(path: str, check: str, behavior: str) -> None:
    assert check in failures({path: behavior})


@pytest.mark.parametrize("value", ["null", "-5", "0", "1e400", "NaN", "Infinity", "1.5", "true", '"1"', "99999999", ""])
def test_smoke_test_rejects_invalid_page_size(value: str) -> None:
    assert "prefix cache" in failures({"/server_info#page_size": value})


@pytest.mark.parametrize("value", ["null", "[]", "-5", "1.5", "true", r'"\ud800"'])
@pytest.mark.parametrize(
    ("key", "check"),
    [
        ("/generate#output_ids", "greedy deterministic"),
        ("/generate#meta_info", "token counts"),
        ("/generate#meta_info.completion_tokens", "token counts"),
        ("/generate#meta_info.cached_tokens", "prefix cache"),
        ("/v1/completions#usage", "token counts"),
        ("/v1/completions#usage.total_tokens", "token counts"),
        ("/v1/chat/completions#choices", "streaming matches"),
        ("/v1/chat/completions#choices.0", "streaming matches"),
        ("/v1/chat/completions#usage.completion_tokens", "streaming matches"),
        ("/v1/models#data", "served model"),
        ("/v1/models#data.0.id", "served model"),
        ("/v1/models#data.0.max_model_len", "served model"),
        ("/model_info#model_path", "served model"),
    ],
)
def test_smoke_test_rejects_values_of_wrong_type(key: str, check: str, value: str) -> None:
    assert check in failures({key: value})


def test_smoke_test_fails_on_wrong_answers() -> None:
    """The responses are valid but wrong, like those of a server with broken kernels."""
    plan = load("cpu-tiny").plan
    with hostile({}) as url:
        report = smoke_test(target_of(plan, url=url, api_key=None), faults=None, timeout=LONG_TIMEOUT)
    assert [check.name for check in report.failures] == ["correct answers"]


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e400", "-5", "x", "1" * 5000])
def test_smoke_test_rejects_invalid_metric_values(value: str) -> None:
    assert "metrics" in failures({"/metrics": f"sglang:generation_tokens_total {value}"})


@pytest.mark.parametrize("behavior", ["drip-head", "header-for-ever", "100-for-ever", "silent"])
@pytest.mark.parametrize("path", ["/health", "/v1/models"])
def test_readiness_wait_ends_at_its_timeout(path: str, behavior: str) -> None:
    state = ServerState(status=Status.RUNNING, exit_code=None, restarts=0, started_at=None, detail="")
    log = iter([["The server is fired up and ready to roll!"]])
    start = time.monotonic()
    with hostile({path: behavior}) as url:
        server = StartingServer(
            url=url, served_name="tiny", api_key=None, log=lambda: next(log, []), state=lambda: state
        )
        with pytest.raises(NotReadyError):
            wait_until_ready(server, progress_deadline=60, timeout=SHORT_TIMEOUT)
    assert time.monotonic() - start < HEALTH_LIMITS.total


@pytest.mark.parametrize(
    "behavior", ["redirect", "html", "empty", "ssh", "close", "chunk-negative", "flood", "deep", "wide"]
)
def test_bench_rejects_endpoint_without_model_list(behavior: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"cannot discover the endpoint|cannot reach the endpoint"):
        measured({"/v1/models": behavior}, tmp_path)


@pytest.mark.parametrize("value", ["300000", "1000000000", "-1", "1.5", '"2"'])
def test_bench_rejects_invalid_dp_size(value: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"`dp_size`.* is"):
        measured({"/server_info#dp_size": value}, tmp_path)


@pytest.mark.parametrize(
    "behavior", [*ENDLESS, "flood", "flood-error", "gzip-bomb", *INVALID, *BROKEN_STREAMS, "deep-event"]
)
def test_bench_rejects_broken_responses(behavior: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="warm-up failed: "):
        measured({"/v1/completions": behavior}, tmp_path)


@pytest.mark.parametrize("key", ["usage", "usage.completion_tokens", "usage.prompt_tokens", "choices"])
@pytest.mark.parametrize("value", ["null", "[]", "-5", "1e400", "NaN", "1.5", "true", "99"])
def test_bench_rejects_invalid_token_counts(key: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError):
        measured({f"/v1/completions#{key}": value}, tmp_path)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e400", "-5"])
def test_invalid_server_metric_does_not_fail_the_point(value: str, tmp_path: Path) -> None:
    names = ("prompt_tokens_total", "num_queue_reqs", "time_to_first_token_seconds_sum", "cached_tokens_total")
    text = "\n".join(f"sglang:{name} {value}" for name in names) + "\nsglang:time_to_first_token_seconds_count 3\n"
    result = measured({"/metrics": text}, tmp_path)
    assert result.points[0].succeeded == 4
    assert BenchResult.from_json((tmp_path / "result.json").read_text(), location="") == result


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"/tokenize": "{}"}, "`tokens` is missing, expected a list of token ids"),
        ({"/tokenize": '{"tokens": [1, -2]}'}, "`tokens` is a list of 2, expected a list of token ids"),
        ({"/tokenize": '{"tokens": [1, 2.5]}'}, "`tokens` is a list of 2, expected a list of token ids"),
        ({"/tokenize": '{"tokens": [[1, 2]]}'}, "`tokens` is a list of 1, expected a list of token ids"),
        ({"/tokenize": '{"tokens": [1, 2, 3]}'}, "the prompt text has 3 tokens; at least 1000 are required"),
        ({"/tokenize": "unavailable"}, "`/tokenize` returned HTTP 503"),
        ({"/tokenize": "flood"}, "cannot tokenize the prompt text"),
        ({"/tokenize": "html"}, "the response of `/tokenize` is not JSON"),
    ],
)
def test_bench_rejects_invalid_tokenizer_responses(rules: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=re.escape(message)):
        measured(rules, tmp_path, prompts="text", token_ids=None)


@pytest.mark.parametrize("value", ["null", '"EAGLE"'])
def test_random_prompts_with_speculation_are_a_comparability_issue(value: str, tmp_path: Path) -> None:
    issues = measured({"/server_info#speculative_algorithm": value}, tmp_path).comparability_issues
    assert (IssueKind.RANDOM_PROMPTS in {issue.kind for issue in issues}) == (value != "null")


@pytest.mark.parametrize("behavior", ["flood", "million-metrics", "metrics-unclosed", "gzip-bomb", "close"])
def test_broken_metrics_do_not_fail_the_point(behavior: str, tmp_path: Path) -> None:
    assert measured({"/metrics": behavior}, tmp_path).points[0].succeeded == 4


# Prints the growth of the peak resident memory for each line of a command and a URL, each in its own fork.
CHILD = """
import os, sys, tempfile
from contextlib import nullcontext
from pathlib import Path
tests = Path(sys.argv[1]).parents[1]
sys.path[:0] = [str(tests / "integration"), str(tests / "support")]
import test_hostile_endpoint as verbs
from orchestrator.core.errors import DeployError
import pydantic_core, httpx

def peak():
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) >> 10

def query(verb, url):
    verbs.hostile = lambda rules: nullcontext(url)
    if verb == "ask":
        verbs.answer_text(url)
    elif verb == "smoke":
        verbs.smoke_test(verbs.target(url), faults=None, timeout=20)
    else:
        verbs.measured({}, Path(tempfile.mkdtemp()), timeout_s=20)

verbs.ask_module._LIMITS = verbs.Timeouts(connect=20, idle=20, total=20)
for line in sys.stdin:
    if not os.fork():
        before = peak()
        try:
            query(*line.split())
        except DeployError as error:
            pass
        print(peak() - before, flush=True)
        os._exit(0)
    if os.wait()[1]:
        print("failed", flush=True)
"""


@pytest.fixture(scope="module")
def child() -> Iterator["subprocess.Popen[str]"]:
    words = [sys.executable, "-c", CHILD, __file__]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "path", "behavior"),
    [
        ("ask", "/v1/completions", "stream-for-ever"),
        ("ask", "/v1/completions", "line-for-ever"),
        ("smoke", "/v1/models", "wide"),
        ("smoke", "/v1/models", "million-models"),
        ("smoke", "/v1/models", "gzip-bomb"),
        ("smoke", "/v1/chat/completions streamed", "stream-for-ever"),
        ("smoke", "/v1/chat/completions streamed", "wordy-chat"),
        ("smoke", "/metrics", "million-metrics"),
        ("bench", "/v1/models", "flood-length"),
        ("bench", "/server_info", "wide"),
        ("bench", "/metrics", "flood-chunks"),
        ("bench", "/v1/completions", "stream-for-ever"),
        ("bench", "/v1/completions", "event-for-ever"),
    ],
)
def test_hostile_response_needs_at_most_64_mib(
    child: "subprocess.Popen[str]", verb: str, path: str, behavior: str
) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    with hostile({path: behavior}) as url:
        child.stdin.write(f"{verb} {url}\n")
        child.stdin.flush()
        assert int(child.stdout.readline()) <= 64


STATUS = """
import sys
from pathlib import Path
from types import SimpleNamespace
from orchestrator.servers.servers import Servers
from orchestrator.servers.status import statuses
from orchestrator.core.paths import Home
from orchestrator.runtimes.base import ServerState, Status, Unit

state = ServerState(status=Status.RUNNING, exit_code=None, restarts=0, started_at=None, detail="")
units = [
    Unit(
        runtime="r", name=f"s{n}", profile="", plan_digest="", url=sys.argv[1], run_dir="", runtime_id="", state=state
    )
    for n in range(20)
]
runtime = SimpleNamespace(find=lambda _: units)
print("asking", flush=True)
statuses(Servers(Home(Path("/nowhere")), {"r": runtime}), None, ask=True)
"""


def test_ctrl_c_ends_status_of_many_servers_immediately() -> None:
    with hostile({"/health": "drip-head"}) as url:
        process = subprocess.Popen(
            [sys.executable, "-c", STATUS, url], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        with process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(1)  # until all requests are sent
            process.send_signal(signal.SIGINT)
            start = time.monotonic()
            process.wait(60)
    assert time.monotonic() - start < HEALTH_LIMITS.total
