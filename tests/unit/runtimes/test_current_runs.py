"""Which runs of a name count, for every runtime that keeps its record in the run directories."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.runtimes.base import Unit
from orchestrator.runtimes.replicas import RecordedRun, current_runs


def run(name: str, *, own: bool = True, replicas: int = 0, stopped: bool = False) -> RecordedRun:
    def unit(folder: Path) -> Unit:
        return Unit(
            runtime="x", name="n", profile="p", plan_digest="", url="", run_dir=str(folder), runtime_id=str(folder)
        )

    top = Path(name)
    replicas_ = tuple(unit(top / f"replica-{number}") for number in range(1, replicas + 1))
    return RecordedRun(folder=top, own=unit(top) if own else None, replicas=replicas_, stopped=stopped)


@pytest.mark.parametrize(
    ("newest_first", "live", "expected"),
    [
        ([], "", ""),
        ([run("b"), run("a")], "", "b"),  # the last run, whatever ended it
        ([run("b", stopped=True), run("a")], "", ""),  # the last run was stopped, and nothing before it counts
        ([run("b"), run("a")], "a", "a"),  # a failed start beside a server that runs
        ([run("b"), run("a")], "ab", "ba"),
        ([run("b", own=False, replicas=1), run("a", replicas=2)], "b", "ba"),  # the gateway has ended
        ([run("b", own=False, replicas=1), run("a", replicas=2)], "a", "ba"),  # a replacement has ended
        ([run("b", own=False, replicas=1), run("a", replicas=2), run("0")], "", "ba"),  # all have
        ([run("b", own=False, replicas=1), run("a", replicas=2, stopped=True), run("0")], "b", "b"),
        ([run("b", own=False, replicas=1, stopped=True), run("a", replicas=2)], "a", "a"),
    ],
)
def test_current_runs_include_last_server_or_gateway(newest_first: list[RecordedRun], live: str, expected: str) -> None:
    found = current_runs(newest_first, {Path(name) for name in live})
    assert "".join(str(item.folder) for item in found) == expected


def test_older_runs_are_not_read_unnecessarily() -> None:
    def runs() -> Iterator[RecordedRun]:
        yield run("b")
        pytest.fail("the run before a server that runs was read")

    assert [item.folder for item in current_runs(runs(), {Path("b")})] == [Path("b")]
