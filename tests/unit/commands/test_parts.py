"""What has ended of a server is named from the process table; one of which nothing is known has lost nothing."""

from pathlib import Path

import pytest

from orchestrator.commands.servers import lost_parts, note_parts
from orchestrator.engine import parts
from orchestrator.runtimes import Handle

READY = ("python -m sglang.launch_server --dp-size 2", "sglang::data_parallel_controller", "sglang::scheduler_DP0")
READY = (*READY, "sglang::scheduler_DP1", "sglang::detokenizer", "python -c from multiprocessing.spawn import main")


class Table:
    """A runtime of which only the process table is asked."""

    def __init__(self, titles: tuple[str, ...]) -> None:
        self.running = titles

    def titles(self, _: Handle) -> tuple[str, ...]:
        return self.running


@pytest.fixture
def handle(tmp_path: Path) -> Handle:
    return Handle(
        runtime="process",
        name="two",
        profile="h200-dp2",
        plan_digest="d",
        url="http://127.0.0.1:1",
        run_dir=str(tmp_path),
        identity="1",
    )


def lost_of(handle: Handle, *, ready: tuple[str, ...], running: tuple[str, ...]) -> str:
    note_parts(Table(ready), handle, 12.34)  # type: ignore[arg-type]
    return lost_parts(Table(running), handle)  # type: ignore[arg-type]


def test_sglangs_processes_in_a_persons_words() -> None:
    assert parts(READY) == ("data_parallel_controller", "detokenizer", "rank DP0", "rank DP1")
    assert parts(["sglang::scheduler", "sglang::scheduler_DP1_TP3_EP3   "]) == ("rank DP1 TP3 EP3", "scheduler")


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ((), ""),
        (("sglang::scheduler_DP1",), "rank DP1 has ended while the server runs"),
        (("sglang::scheduler_DP0", "sglang::detokenizer"), "detokenizer, rank DP0 have ended while the server runs"),
    ],
)
def test_what_has_ended_since_the_server_was_ready(handle: Handle, gone: tuple[str, ...], said: str) -> None:
    assert lost_of(handle, ready=READY, running=tuple(title for title in READY if title not in gone)) == said


def test_nothing_is_lost_where_nothing_can_be_told(handle: Handle) -> None:
    assert lost_parts(Table(READY[:1]), handle) == ""  # type: ignore[arg-type]  # never ready: nothing was noted
    assert lost_of(handle, ready=READY, running=()) == ""  # no process table
    assert lost_of(handle, ready=READY[:1], running=READY) == ""
