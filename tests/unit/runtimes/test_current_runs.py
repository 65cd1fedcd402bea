"""The current runs of a name, for every runtime with records in run directories."""

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
    return RecordedRun(folder=top, main_unit=unit(top) if own else None, replicas=replicas_, stopped=stopped)


@pytest.mark.parametrize(
    ("newest_first", "live", "expected"),
    [
        ([], "", ""),
        ([run("b"), run("a")], "", "b"),  # the last run, whatever ended it
        ([run("b", stopped=True), run("a")], "", ""),  # the last run was stopped: no earlier run counts
        ([run("b"), run("a")], "a", "a"),  # a failed start after that of a running server
        ([run("b"), run("a")], "ab", "ba"),
        ([run("b", own=False, replicas=1), run("a", replicas=2)], "b", "ba"),  # the gateway has exited
        ([run("b", own=False, replicas=1), run("a", replicas=2)], "a", "ba"),  # a replacement has exited
        ([run("b", own=False, replicas=1), run("a", replicas=2), run("0")], "", "ba"),  # all units have exited
        ([run("b", own=False, replicas=1), run("a", replicas=2, stopped=True), run("0")], "b", "b"),
        ([run("b", own=False, replicas=1, stopped=True), run("a", replicas=2)], "a", "a"),
    ],
)
def test_current_runs_include_last_server_or_gateway(newest_first: list[RecordedRun], live: str, expected: str) -> None:
    result = current_runs(newest_first, {Path(name) for name in live})
    assert "".join(str(item.folder) for item in result) == expected


def test_older_runs_are_not_read_unnecessarily() -> None:
    def runs() -> Iterator[RecordedRun]:
        yield run("b")
        pytest.fail("a run before that of the running server was read")

    assert [item.folder for item in current_runs(runs(), {Path("b")})] == [Path("b")]
