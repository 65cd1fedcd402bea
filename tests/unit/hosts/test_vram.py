"""Test the wait for VRAM, with a fake clock."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from host_samples import survey_of

from orchestrator.core.errors import HostError
from orchestrator.core.polling import poll_until
from orchestrator.hosts import vram
from orchestrator.hosts.gpus.amd import read_amd
from orchestrator.hosts.gpus.inventory import GpuInventory
from orchestrator.hosts.vram import wait_for_vram_release


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def inventories(*nodes: str) -> Sequence[GpuInventory | None]:
    return [read_amd(survey_of(node)) for node in nodes]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(vram, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(vram, "poll_until", partial(poll_until, clock=clock, sleep=clock.sleep))
    return clock


def test_wait_reports_gpus_until_vram_is_released(clock: Clock) -> None:
    messages = list[str]()
    reads = iter(inventories("mi355x-half-drained", "mi355x-half-drained", "mi355x-healthy"))
    wait_for_vram_release(lambda: next(reads), gpus=range(8), progress=lambda text, _: messages.append(text))
    assert clock.now == 10.0
    assert messages[0] == "waiting for VRAM to drain to 10%: gpu 4 41%, gpu 5 41%, gpu 6 41%, gpu 7 41%"
    assert len(messages) == 2


def test_only_gpus_of_the_plan_are_checked(clock: Clock) -> None:
    (drained,) = inventories("mi355x-half-drained")
    wait_for_vram_release(lambda: drained, gpus=range(4))
    assert clock.now == 0.0
    with pytest.raises(HostError, match="gpu 4 41%, gpu 6 41%"):
        wait_for_vram_release(lambda: drained, gpus=range(4, 8, 2))


def test_timeout_names_processes_using_vram(clock: Clock) -> None:
    (in_use,) = inventories("mi355x-held")
    with pytest.raises(HostError, match=r"after 900 s: gpu 2 85%; used by python3 \(pid 48213, gpu 2, 243.9 GiB\)"):
        wait_for_vram_release(lambda: in_use, gpus=range(8))
    assert clock.now == 900.0


def test_unreadable_vram_is_an_error(clock: Clock) -> None:
    (healthy, truncated) = inventories("mi355x-healthy", "mi355x-truncated")
    assert healthy is not None
    without_values = replace(healthy, gpus=tuple(replace(gpu, vram_used=None) for gpu in healthy.gpus))
    for unreadable in (without_values, truncated, None):
        with pytest.raises(HostError, match="cannot read"):
            wait_for_vram_release(lambda inventory=unreadable: inventory, gpus=range(8))
    assert clock.now == 0.0
