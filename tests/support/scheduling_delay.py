"""Measure scheduling delays on this machine while a test measures times.

On a busy core, a measured latency includes the scheduling delay. A test is then skipped as `not judged`, and the
summary of the test run shows it.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

LIMIT_S = 0.003  # a time slice of Linux's scheduler

# One process on each core: neither Python's lock nor the code under test delays it.
_PROBE = """
import os, select, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
worst = 0.0
print("ready", flush=True)
while True:
    due = time.monotonic() + 0.005
    if select.select([sys.stdin], [], [], 0.005)[0]:
        break
    worst = max(worst, time.monotonic() - due)
print(worst)
"""


@dataclass
class SchedulingDelay:
    """The longest scheduling delay, in seconds."""

    max_s: float = 0.0

    @property
    def is_small(self) -> bool:
        return self.max_s <= LIMIT_S

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the delay on all cores for the length of the block."""
        with ExitStack() as stack:
            probes = [stack.enter_context(_probe(core)) for core in sorted(os.sched_getaffinity(0))]
            yield
            self.max_s = max(float(probe.communicate(timeout=60)[0]) for probe in probes)

    def skip_if_busy(self) -> None:
        """Skip the rest of a test if the machine was busy; call this before comparing times."""
        if not self.is_small:
            pytest.skip(f"not judged: this machine kept a program from its core for {self.max_s * 1e3:.0f} ms")


@contextmanager
def preferred(pids: Iterable[int]) -> Iterator[None]:
    """Run these processes with real-time priority for the length of the block, if permitted (root).

    This measures the accuracy of a client without scheduling delays: on two cores with two other programs, a sleep of
    5 ms ends up to 19 ms late, and with this priority at most 2 ms. Child processes inherit the priority.
    """
    saved = tuple(pids)
    try:
        _schedule(saved, os.SCHED_RR, 1)
        yield
    finally:
        _schedule(saved, os.SCHED_OTHER, 0)


def _schedule(pids: Iterable[int], policy: int, priority: int) -> None:
    for thread in (thread for pid in pids for thread in Path(f"/proc/{pid}/task").glob("[0-9]*")):
        with suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))


@contextmanager
def _probe(core: int) -> Iterator["subprocess.Popen[str]"]:
    argv = [sys.executable, "-I", "-S", "-c", _PROBE, str(core)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
        assert probe.stdout is not None
        assert probe.stdout.readline() == "ready\n"
        try:
            yield probe
        finally:
            probe.kill()
