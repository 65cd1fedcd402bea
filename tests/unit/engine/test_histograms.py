"""Test the parsing of Prometheus histograms and the quantile between two readings."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engine.liveness import read_work
from orchestrator.engine.metrics import Metric, quantile, read_buckets

TTFT = Metric.TTFT
EXPORTED = b"""# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_bucket{le="0.2",dp_rank="0",tp_rank="0"} 6.0
sglang:time_to_first_token_seconds_bucket{le="0.1",dp_rank="0",tp_rank="0"} 2.0
sglang:time_to_first_token_seconds_bucket{le="+Inf",dp_rank="0",tp_rank="0"} 8.0
sglang:time_to_first_token_seconds_bucket{le="0.1",dp_rank="1",tp_rank="0"} 1.0
sglang:time_to_first_token_seconds_bucket{le="0.2",dp_rank="1",tp_rank="0"} 1.0
sglang:time_to_first_token_seconds_bucket{le="+Inf",dp_rank="1",tp_rank="0"} 1.0
sglang:time_to_first_token_seconds_bucket{le="0.1",dp_rank="0",tp_rank="1"} 99.0
sglang:time_to_first_token_seconds_bucket{le="NaN",dp_rank="0",tp_rank="0"} 99.0
sglang:time_to_first_token_seconds_bucket{le="much",dp_rank="0",tp_rank="0"} 99.0
sglang:time_to_first_token_seconds_bucket{le="0.3",dp_rank="0",tp_rank="0"} NaN
sglang:time_to_first_token_seconds_sum{dp_rank="0",tp_rank="0"} 7.0
"""


def test_buckets_ascend_and_are_summed_over_replicas() -> None:
    assert list(read_buckets(EXPORTED, TTFT).items()) == [(0.1, 3.0), (0.2, 7.0), (math.inf, 9.0)]
    assert read_buckets(EXPORTED, Metric.ITL) == {}


@pytest.mark.parametrize(
    ("share", "seconds"),
    [(0.2, 0.05), (0.4, 0.1), (0.5, 0.12), (0.7, 0.16), (0.9, 0.2), (0.95, 0.2)],  # at most the last boundary
)
def test_a_quantile_is_interpolated_in_its_bucket(share: float, seconds: float) -> None:
    before = {0.1: 1.0, 0.2: 2.0, math.inf: 2.0}
    after = {0.1: 5.0, 0.2: 11.0, math.inf: 12.0}  # ten more: four within 0.1 s, nine within 0.2 s
    assert quantile(before, after, share) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({0.1: 3.0, math.inf: 3.0}, {0.1: 3.0, math.inf: 3.0}),
        ({0.1: 3.0, math.inf: 3.0}, {0.1: 1.0, math.inf: 1.0}),
    ],
    ids=["no histogram", "no new observation", "restarted"],
)
def test_quantile_without_observations_is_unknown(before: dict[float, float], after: dict[float, float]) -> None:
    assert quantile(before, after, 0.5) is None


@given(st.lists(st.floats(0, 2), min_size=1, max_size=60), st.sampled_from([0.0, 0.5, 0.9, 0.95, 1.0]))
def test_quantile_lies_in_bucket_of_exact_value(observed: list[float], share: float) -> None:
    ends = (0.1, 0.3, 0.7, 1.5, math.inf)
    after = {end: float(sum(value <= end for value in observed)) for end in ends}
    computed = quantile({}, after, share)
    exact = sorted(observed)[max(0, math.ceil(share * len(observed)) - 1)]
    bucket = next(index for index, end in enumerate(ends) if exact <= end)
    begin, end = (0.0, *ends)[bucket], ends[bucket]
    assert computed is not None
    assert share == 0.0 or begin <= computed <= (begin if math.isinf(end) else end)


def test_work_is_counted_per_dp_rank_once() -> None:
    """sglang 0.5.14 exports prefill and decode separately, and `dp_rank` only with several ranks."""
    two = b"""
sglang:realtime_tokens_total{dp_rank="0",mode="prefill_compute",tp_rank="0"} 100.0
sglang:realtime_tokens_total{dp_rank="0",mode="decode",tp_rank="0"} 20.0
sglang:realtime_tokens_total{dp_rank="0",mode="decode",tp_rank="1"} 20.0
sglang:realtime_tokens_total{dp_rank="1",mode="decode",tp_rank="0"} 7.0
sglang:generation_tokens_total{tp_rank="0"} 900.0
"""
    work = read_work(two)
    assert (work.done, work.decoded, work.emitted) == ({0: 120.0, 1: 7.0}, {0: 20.0, 1: 7.0}, None)
    assert read_work(b'sglang:realtime_tokens_total{mode="decode",tp_rank="0"} 5.0\n').done == {0: 5.0}
    assert read_work(b"sglang:generation_tokens_total 5.0\n").done == {}
    out = b"sglang:num_requests_total 2.0\nsglang:time_to_first_token_seconds_count 3.0\n"
    assert read_work(out + b"sglang:inter_token_latency_seconds_count 40.0\n").emitted == 45.0
