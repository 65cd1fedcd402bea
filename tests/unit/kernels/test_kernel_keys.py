"""Test the kernel keys: token buckets, and the shape on one rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_samples import GLM

from orchestrator.core.errors import ProfileError
from orchestrator.kernels.keys import TIERS, Shape, bucket, buckets, fallbacks, rank_shape
from orchestrator.plan.plan import Layout, Moe


@pytest.mark.parametrize(
    ("tokens", "looked_up"),
    [
        (0, 1),
        (1, 1),
        (2, 2),
        (3, 4),
        (16384, 16384),
        (16385, 32768),
        (32767, 32768),
        (32768, 32768),
        (32769, 32768),
        (131071, 32768),
        (131072, 131072),
        (10**6, 131072),
    ],
)
def test_token_count_maps_to_bucket(tokens: int, looked_up: int) -> None:
    assert bucket(tokens) == looked_up


@given(st.integers(0, 2**21))
def test_bucket_is_idempotent_and_in_bucket_list(tokens: int) -> None:
    size = bucket(tokens)
    assert bucket(size) == size
    assert size in buckets(tokens)
    assert max(buckets(tokens)) == size


@given(st.integers(1, TIERS[0] - 1))
def test_bucket_is_less_than_twice_the_token_count(tokens: int) -> None:
    assert tokens <= bucket(tokens) < 2 * tokens


def test_only_largest_bucket_has_a_fallback() -> None:
    assert fallbacks(131072) == (32768,)
    assert all(fallbacks(size) == () for size in buckets(131071))


@pytest.mark.parametrize(
    ("layout", "fused", "key"),
    [
        (Layout(tp=8, dp=1, ep=1, dp_attention=False), True, (256, 257, 9)),
        (Layout(tp=8, dp=1, ep=1, dp_attention=False), False, (256, 256, 8)),
        (Layout(tp=4, dp=2, ep=1, dp_attention=False), True, (512, 257, 9)),
        (Layout(tp=4, dp=2, ep=1, dp_attention=False), False, (512, 256, 8)),
        (Layout(tp=4, dp=1, ep=4, dp_attention=False), True, (2048, 65, 8)),
    ],
)
def test_kernel_keys_of_glm_layouts(layout: Layout, fused: bool, key: tuple[int, int, int]) -> None:
    shape = rank_shape(GLM, layout, fused=fused)
    assert (shape.inter_dim, shape.expert, shape.topk) == key
    assert shape.model_dim == 6144


@given(st.integers(1, 4096), st.sampled_from((1, 2, 4, 8)))
def test_inter_dim_is_padded_up_to_a_multiple_of_256(slice_width: int, tp: int) -> None:
    moe = Moe(
        hidden_size=64, intermediate_size=slice_width * tp, routed_experts=8, shared_experts=0, experts_per_token=2
    )
    shape = rank_shape(moe, Layout(tp=tp, dp=1, ep=1, dp_attention=False), fused=False)
    assert shape.inter_dim % 256 == 0
    assert 0 <= shape.inter_dim - slice_width < 256


@given(st.sampled_from((1, 2, 4, 8)), st.booleans())
def test_expert_parallelism_divides_experts_not_width(ep: int, fused: bool) -> None:
    shape = rank_shape(GLM, Layout(tp=8, dp=1, ep=ep, dp_attention=False), fused=fused)
    assert shape == Shape(
        model_dim=6144, inter_dim=256 * ep, expert=256 // ep + fused, topk=8 + fused - (1 if ep > 1 else 0)
    )


@pytest.mark.parametrize(("tp", "ep"), [(8, 3), (6, 4), (3, 1)])
def test_layout_not_dividing_the_model_is_rejected(tp: int, ep: int) -> None:
    with pytest.raises(ProfileError):
        rank_shape(GLM, Layout(tp=tp, dp=1, ep=ep, dp_attention=False), fused=True)
