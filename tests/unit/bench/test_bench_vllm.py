"""Test the metrics and facts that `bench` reads from vLLM and ATOM, and the variation of prompts."""

import pytest

from orchestrator.bench.counters import server_counts
from orchestrator.bench.prompts import prompts
from orchestrator.bench.run import ClaimedHardware
from orchestrator.bench.workload import Workload
from orchestrator.core.errors import UsageError
from orchestrator.engine.metrics import Metric, read_metrics
from orchestrator.engine.options import Meaning
from orchestrator.engine.other_engines import (
    UNKNOWN,
    choose_model,
    option_name,
    read_block_size,
    read_engine,
    read_ranks,
    speculates,
)

# Written by hand with the names and labels that vLLM 0.32.0 exports with `--data-parallel-size 2`; not recorded.
METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 7.0
vllm:cache_config_info{block_size="128",enable_prefix_caching="True",engine="0"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 41000.0
vllm:prompt_tokens_cached_total{engine="0",model_name="tiny"} 31488.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 60.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 22.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="tiny"} 4.1
vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 82.0
"""


def test_vllm_metrics_map_to_common_names() -> None:
    metrics = read_metrics(METRICS.encode())
    assert (metrics[Metric.RUNNING], metrics[Metric.QUEUED], metrics[Metric.REQUESTS]) == (5, 7, 82)
    assert (metrics[Metric.CACHED_TOKENS], metrics[Metric.PROMPT_TOKENS]) == (31488, 41000)
    assert (metrics[f"{Metric.TTFT}_sum"], metrics[f"{Metric.TTFT}_count"]) == (4.1, 82)


# Written by hand with the names in ROCm/ATOM, docs/metrics_guide.md at 1022e654; not recorded.
ATOM_METRICS = """\
atom:requests_running 3
atom:requests_waiting 4
atom:requests_finished_total 82
atom:prompt_tokens_total 41000
atom:generation_tokens_total 1968
atom:prefix_cache_cached_tokens_total 31488
atom:time_to_first_token_seconds_sum{streaming="true"} 4.1
atom:time_to_first_token_seconds_count{streaming="true"} 82
"""


def test_atom_metrics_map_to_common_names() -> None:
    metrics = read_metrics(ATOM_METRICS.encode())
    assert (metrics[Metric.RUNNING], metrics[Metric.QUEUED], metrics[Metric.REQUESTS]) == (3, 4, 82)
    assert (metrics[Metric.CACHED_TOKENS], metrics[Metric.PROMPT_TOKENS], metrics[Metric.OUTPUT_TOKENS]) == (
        31488,
        41000,
        1968,
    )
    assert (metrics[f"{Metric.TTFT}_sum"], metrics[f"{Metric.TTFT}_count"]) == (4.1, 82)


@pytest.mark.parametrize(
    "names",
    [
        ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_total"),
        ('atom:mtp_decode_steps_total{accepted_tokens="2"}', "atom:mtp_accepted_tokens_total"),
    ],
)
def test_accept_length_of_other_engines_uses_draft_counters(names: tuple[str, str]) -> None:
    before, after = (
        read_metrics("".join(f"{name} {value}\n" for name, value in zip(names, values, strict=True)).encode())
        for values in ((10, 15), (20, 37))
    )
    assert server_counts(before, after).accept_length == 3.2


def test_ranks_and_block_size_come_from_metrics() -> None:
    assert (read_ranks(METRICS), read_block_size(METRICS), speculates(METRICS)) == (2, 128, False)
    assert (read_ranks(""), read_block_size("")) == (1, None)
    success = 'vllm:request_success_total{engine="%d",finished_reason="stop",model_name="tiny"} 0.0\n'
    assert read_ranks(success % 0 + success % 1) == 2, "idle vLLM 0.32.0 with two API servers"
    assert speculates(METRICS + 'vllm:spec_decode_num_drafts_total{engine="0"} 0.0\n')


@pytest.mark.parametrize(
    ("owner", "engine"), [("vllm", "vllm"), ("sglang", "sglang"), ("atom", "atom"), ("someone", UNKNOWN)]
)
def test_engine_is_read_from_model_owner(owner: str, engine: str) -> None:
    assert read_engine({"data": [{"id": "tiny", "owned_by": owner}]}) == engine


def test_choice_among_several_models_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert choose_model({"tiny": 64, "adapter": None}) == ("tiny", 64)
    assert "the endpoint serves 2 models; using the first, `tiny`, not `adapter`" in capsys.readouterr().err
    assert (choose_model({"tiny": 64}), choose_model({})) == (("tiny", 64), None)
    assert not capsys.readouterr().err


def test_engine_option_accepts_only_known_engines() -> None:
    assert ClaimedHardware.parse(gpu=None, gpus=None, layout=None, engine="ATOM").engine == "atom"
    with pytest.raises(UsageError, match="unknown engine `trt`"):
        ClaimedHardware.parse(gpu=None, gpus=None, layout=None, engine="trt")


def test_option_name_depends_on_engine() -> None:
    assert option_name("sglang", Meaning.CONTEXT) == "context-length"
    assert option_name("vllm", Meaning.CONTEXT) == "max-model-len"
    assert option_name("vllm", Meaning.CACHED_TOKENS_REPORT) == "enable-prompt-tokens-details"
    assert option_name(UNKNOWN, Meaning.CONTEXT) is None


def test_different_label_gives_different_prompts() -> None:
    workload = Workload.model_validate({"input_tokens": 500, "output_tokens": 24, "request_rates": (1,)})
    text = tuple(range(1000))
    first, again, other = (list(prompts(workload, label, 5, text)) for label in ("a/1", "a/1", "b/1"))
    assert first == again
    assert first != other
