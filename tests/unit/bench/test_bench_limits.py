"""Test that a request longer than the server accepts is rejected before the warm-up, with the limit."""

from pathlib import Path

import pytest

from orchestrator.bench.connection import Connections
from orchestrator.bench.endpoint import Endpoint, check_fits
from orchestrator.bench.published import load_published
from orchestrator.bench.result import EndpointFacts
from orchestrator.bench.workload import Workload
from orchestrator.core.errors import BenchError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.url import Address
from orchestrator.engine.client import EngineClient
from orchestrator.engine.responses import read_server_info
from orchestrator.experiments.reproduce import ReproduceRequest, plan_steps
from orchestrator.experiments.sweep.run import Budget, SweepRequest, plan_sweep

URL = "http://127.0.0.1:1"


def workload(input_tokens: int, output_tokens: int) -> Workload:
    data = {"input_tokens": input_tokens, "output_tokens": output_tokens, "request_rates": (1.0,)}
    return Workload.model_validate(data)


def endpoint(engine: str, **limits: int) -> Endpoint:
    facts = EndpointFacts(url=URL, api="completions", served_model="50%", context_length=32768, engine=engine)
    connections = Connections(Address.from_url(URL), key=None, clock=lambda: 0.0)
    return Endpoint(
        connections=connections,
        client=EngineClient(URL, key=None),
        facts=facts,
        is_sglang=True,
        reports_cache=True,
        has_metrics=True,
        **limits,
    )


@pytest.mark.parametrize(
    ("lengths", "engine", "message", "option"),
    [
        ((32762, 2), "sglang", "prompts are limited to 32761 tokens; the workload has 32762", "`--context-length`"),
        ((32000, 800), "sglang", "`50%` has a context of 32768 tokens; the workload needs 32800", "`--context-length`"),
        ((32000, 800), "vllm", "`50%` has a context of 32768 tokens; the workload needs 32800", "`--max-model-len`"),
        ((1000, 2000), "sglang", "the server has a KV cache of 2048 tokens; the workload needs 3000", "`--max-total-"),
    ],
)
def test_request_exceeding_server_limit_names_the_limit(
    lengths: tuple[int, int], engine: str, message: str, option: str
) -> None:
    cache = 2048 if lengths[0] == 1000 else 65536
    with pytest.raises(BenchError) as error:
        check_fits(workload(*lengths), endpoint(engine, cache_tokens=cache, prompt_tokens=32761))
    assert error.value.message == message
    assert option in error.value.hint


def test_longest_allowed_request_is_accepted() -> None:
    check_fits(workload(32761, 7), endpoint("sglang", cache_tokens=32768, prompt_tokens=32761))
    check_fits(workload(32761, 7), endpoint("unknown"))


def test_limits_come_from_server_info() -> None:
    server_info = {"version": "0.5.14", "page_size": 1, "max_req_input_len": 32762, "max_total_num_tokens": 65536}
    info = read_server_info(server_info)
    assert info is not None
    assert (info.prompt_tokens, info.cache_tokens) == (32761, 65536)


def test_sweep_and_reproduce_reject_oversized_requests_before_start(tmp_path: Path) -> None:
    request = SweepRequest(
        profile="cpu-tiny",
        space=None,
        output=tmp_path,
        budget=Budget(),
        overrides=("flags.context-length=8192",),
        workload="wafer-20k-1k",
    )
    with pytest.raises(UsageError, match=r"a request of `wafer-20k-1k` has 21,000 tokens; the context of `cpu-tiny`"):
        plan_sweep(request, Home(tmp_path))
    short = ReproduceRequest(
        published_name="wafer-glm52", overrides=("flags.context-length=8192",), profile="mi355x-tp8"
    )
    with pytest.raises(UsageError, match=r"a request of `single-stream-10k-1.5k` has 11,500 tokens; the context of"):
        plan_steps(load_published("wafer-glm52"), tmp_path, short)
