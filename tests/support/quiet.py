"""Whether this machine lets a program run when it is due, measured while something is timed on it.

A core that others hold shows as latency of whatever is measured. Where it was held, times tell nothing of the program
under test: the test is skipped as `not judged`, and the summary of the tests says so.
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

# One on each core, in a program of its own: neither Python's lock nor the work under test delays it.
_PROBE = """
import os, select, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
worst = 0.0
print("looking", flush=True)
while True:
    due = time.monotonic() + 0.005
    if select.select([sys.stdin], [], [], 0.005)[0]:
        break
    worst = max(worst, time.monotonic() - due)
print(worst)
"""


@dataclass
class Quietness:
    """The longest that a program which fell due was kept from a core, in seconds."""

    waited_s: float = 0.0

    @property
    def quiet(self) -> bool:
        return self.waited_s <= LIMIT_S

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Measure it for the length of a block, on every core at once."""
        with ExitStack() as stack:
            probes = [stack.enter_context(_probe(core)) for core in sorted(os.sched_getaffinity(0))]
            yield
            self.waited_s = max(float(probe.communicate(timeout=60)[0]) for probe in probes)

    def or_not_judged(self) -> None:
        """Skip what is left of a test where the machine was not quiet: from here on it compares times."""
        if not self.quiet:
            pytest.skip(f"not judged: this machine kept a program from its core for {self.waited_s * 1e3:.0f} ms")


@contextmanager
def preferred(pids: Iterable[int]) -> Iterator[None]:
    """Let these processes come before whatever else runs on this machine, where the system allows it: it allows root.

    What is measured is how exact a client is, not how long Linux lets it wait. On two cores with two other programs a
    bare sleep of 5 ms ends up to 19 ms late, in this class at most 2 ms. What they start meanwhile inherits it.
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
        assert probe.stdout.readline() == "looking\n"
        try:
            yield probe
        finally:
            probe.kill()
