"""A point that ran as many requests as its server admits says so, and says nothing of the hardware."""

from dataclasses import replace

import pytest
from measured_samples import point, tp8

from orchestrator.bench.counters import concurrency_capped
from orchestrator.bench.metrics import result_text
from orchestrator.bench.published import PriceBook, load_published
from orchestrator.bench.result import Point, ServerCounts, ServerProvenance
from orchestrator.planner.planning import load
from orchestrator.report.compare import compare
from orchestrator.report.render import remarks


def ran(at_once: float | None, *, waited: float | None = None) -> Point:
    return replace(point(2.0, 0.5, 0.6), server=ServerCounts(running_max=at_once, queue_depth_max=waited))


def behind(profile: str, *overrides: str) -> ServerProvenance:
    return ServerProvenance(plan=load(profile, overrides=overrides).plan.to_dict())


@pytest.mark.parametrize(
    ("profile", "overrides", "at_once", "said"),
    [
        ("mi355x-tp8", (), 15.0, None),
        ("mi355x-tp8", (), 16.0, "16 requests ran at once, the limit of `max-running-requests 16`"),
        ("mi355x-tp4dp2", (), 80.0, None),
        ("mi355x-tp4dp2", (), 160.0, "the limit of `max-running-requests 80` on each of 2 replicas"),
        (
            "b200-tp8",
            ("flags.max-running-requests=null",),
            48.0,
            "the limit of sglang's default of 48",
        ),
        ("cpu-tiny", (), 500.0, None),
        ("mi355x-tp8", (), None, None),
    ],
)
def test_concurrency_cap_comes_from_plan(
    profile: str, overrides: tuple[str, ...], at_once: float | None, said: str | None
) -> None:
    found = concurrency_capped(ran(at_once), behind(profile, *overrides))
    assert found is None if said is None else said in (found or "")


def test_endpoint_without_plan_has_no_known_cap() -> None:
    assert concurrency_capped(ran(1e6), ServerProvenance()) is None


def test_capped_point_is_reported_but_stays_comparable() -> None:
    """Past the knee every server reaches its cap: the row is marked, not the result."""
    said = concurrency_capped(ran(16.0, waited=9.0), behind("mi355x-tp8"))
    assert said is not None
    assert said.endswith(", up to 9 queued: this measures the limit, not the hardware")
    whole = tp8()
    result = replace(whole, points=(*whole.points[:-1], replace(whole.points[-1], capped=said)))
    assert f"2: {said}" in result_text(result)
    compared = compare(result, load_published("wafer-glm52"), PriceBook(user_prices={}, published=()))
    assert f"2 rps: {said}" in remarks(compared)
    assert compared.comparable
