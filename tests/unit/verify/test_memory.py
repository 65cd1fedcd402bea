"""Memory checks of a soak: continuous growth is a problem, bounded use is not."""

import math
import random
from collections.abc import Callable

import pytest

from orchestrator.engine.responses import read_server_info
from orchestrator.verify.memory import MemoryGauge, MemoryWatch

MIB = 1 << 20
SECONDS = 1800.0


def soak_watch(
    used: Callable[[float], float | None], *, seconds: float = SECONDS, token_bytes: int = 0, host_bytes: float = 0
) -> MemoryWatch:
    """Return the watch at the end of a soak with `used` MiB in use at each second."""
    now = [0.0]
    gauge = MemoryGauge(
        name="host memory",
        read=lambda: None if (value := used(now[0])) is None else int(value * MIB),
        token_bytes=token_bytes,
    )
    watch = MemoryWatch((gauge,), seconds, cached_tokens=1 << 20, host_bytes=host_bytes, clock=lambda: now[0])
    while now[0] < seconds:
        watch.sample_gauges()
        now[0] += 0.5
    return watch


LEAKS: dict[str, Callable[[float], float]] = {
    "slow: 180 MB/h": lambda second: 2000 + second / 20,
    "in steps": lambda second: 2000 + 50 * (second // 300),
    "in rare steps": lambda second: 2000 + 200 * (second >= 500) + 200 * (second >= 1000) + 200 * (second >= 1500),
    "hidden by load": lambda second: 2000 + second / 6 + random.Random(second).uniform(0, 400),
    "accelerating": lambda second: 2000 + (second / 100) ** 2,
}
NO_LEAKS: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 2000,
    "load": lambda second: 2000 + random.Random(second).uniform(0, 400),
    "filling up": lambda second: 2000 + 600 * (1 - math.exp(-second / 300)),
    "a step in the middle": lambda second: 2000 + 800 * (second > SECONDS / 2),
    "two buffers": lambda second: 2000 + 200 * (second >= 500) + 200 * (second >= 1500),
    "a cache that fills in steps": lambda second: (
        2000 + 400 * (second > 250) + 200 * (second > 500) + 50 * (second > 1000)
    ),
    "slower than the limit": lambda second: 2000 + second / 60,
    "released at the end": lambda second: 2000 + min(second, 1800 - second),
}


@pytest.mark.parametrize("used", LEAKS.values(), ids=LEAKS)
def test_continuous_memory_growth_is_a_problem(used: Callable[[float], float]) -> None:
    watch = soak_watch(used)
    (problem,) = watch.problems()
    assert problem.startswith("host memory keeps growing: 2,0"), problem


@pytest.mark.parametrize("used", NO_LEAKS.values(), ids=NO_LEAKS)
def test_bounded_memory_use_is_no_problem(used: Callable[[float], float]) -> None:
    watch = soak_watch(used)
    assert list(watch.problems()) == []
    assert next(watch.summaries()).startswith("host memory 2,0")


def test_growth_within_cache_size_is_no_problem() -> None:
    assert list(soak_watch(lambda second: 2000 + second / 20).problems())
    assert not list(soak_watch(lambda second: 2000 + second / 20, token_bytes=64).problems())
    assert not list(soak_watch(lambda second: 2000 + second / 20, token_bytes=1, host_bytes=20 * MIB).problems())


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([{"memory_usage": {"kvcache": 0.03}}, {"memory_usage": {"kvcache": 0.03}}], 0.08),
        ([{"memory_usage": {"kvcache": "many"}}, {"memory_usage": []}, 7], 0),
        (None, 0),
    ],
)
def test_host_cache_size_is_read_from_server_info(states: object, expected: float) -> None:
    info = read_server_info({"version": "0.5.14", "page_size": 1, "internal_states": states})
    assert info is not None
    assert info.cache_bytes == pytest.approx(expected * 1024 * MIB)


def test_unwatched_memory_is_reported_with_reason() -> None:
    assert list(soak_watch(lambda _: None).summaries()) == ["host memory not watched: it could not be read"]
    assert list(soak_watch(lambda second: 9 * second, seconds=10).summaries()) == [
        "host memory not watched: the soak is shorter than 20 s"
    ]
    unwatched = MemoryGauge(name="GPU memory", unwatched="the slurm runtime starts servers on other hosts")
    watch = MemoryWatch((unwatched,), SECONDS, cached_tokens=0)
    watch.sample_gauges()
    assert list(watch.summaries()) == ["GPU memory not watched: the slurm runtime starts servers on other hosts"]
    assert list(watch.problems()) == []
