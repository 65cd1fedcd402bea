"""`deploy reproduce`: the steps, what remains of them after a failure, and what is taken down."""

import datetime as dt
from pathlib import Path

import pytest

from orchestrator.bench.workload import load_workload
from orchestrator.deploy.reproduce import (
    STATE_FILE,
    State,
    Step,
    bench_seconds,
    command,
    plan_steps,
    reproduce,
    still_to_do,
)
from orchestrator.errors import DeployError, UsageError
from orchestrator.report.published import load_published

NOW = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)


def steps(directory: Path) -> tuple[Step, ...]:
    return plan_steps(load_published("wafer-glm52"), directory, download_mb_s=400)


class Machine:
    """Runs nothing, remembers everything; fails at one command."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.ran: list[str] = []

    def __call__(self, argv: tuple[str, ...]) -> int:
        self.ran.append(" ".join(argv))
        return 8 if self.failing and self.ran[-1].startswith(self.failing) else 0


def go(directory: Path, machine: Machine, *, keep: bool = False) -> None:
    planned = steps(directory)
    reproduce(planned, State(directory / STATE_FILE, planned), run=machine, now=lambda: NOW, keep=keep)


def test_everything_that_can_fail_early_comes_before_the_first_server(tmp_path: Path) -> None:
    stages = [step.stage for step in steps(tmp_path)]
    assert stages[:6] == ["preflight", "preflight", "stage", "stage", "build", "build"]
    assert stages[6:] == ["up", "smoke", "bench", "bench", "report", "down", "up", "smoke", "bench", "report", "down"]


def test_each_server_is_down_before_the_next_is_up(tmp_path: Path) -> None:
    machine = Machine()
    go(tmp_path, machine)
    order = [line for line in machine.ran if line.startswith(("up", "down"))]
    assert [line.split()[0] for line in order] == ["up", "down", "up", "down"]


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    go(tmp_path, Machine())
    again = Machine()
    go(tmp_path, again)
    assert again.ran == []


def test_after_a_failed_measurement_the_server_goes_down_and_comes_up_again(tmp_path: Path) -> None:
    machine = Machine(failing="bench mi355x-tp8 --workload wafer")
    with pytest.raises(DeployError) as caught:
        go(tmp_path, machine)
    assert caught.value.exit_code == 8
    assert machine.ran[-1] == "down mi355x-tp8"
    again = Machine()
    go(tmp_path, again)
    assert again.ran[0] == "up --profile mi355x-tp8 --name mi355x-tp8"
    assert again.ran[1].startswith("bench mi355x-tp8 --workload wafer-20k-1k")


def test_keep_leaves_it_up(tmp_path: Path) -> None:
    machine = Machine(failing="smoke")
    with pytest.raises(DeployError):
        go(tmp_path, machine, keep=True)
    assert not any(line.startswith("down") for line in machine.ran)


def test_an_interruption_takes_the_server_down_too(tmp_path: Path) -> None:
    machine = Machine()

    def interrupted(argv: tuple[str, ...]) -> int:
        if argv[0] == "smoke":
            raise KeyboardInterrupt
        return machine(argv)

    planned = steps(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        reproduce(planned, State(tmp_path / STATE_FILE, planned), run=interrupted, now=lambda: NOW, keep=False)
    assert machine.ran[-1] == "down mi355x-tp8"


def test_a_measurement_that_was_begun_is_resumed(tmp_path: Path) -> None:
    step = next(step for step in steps(tmp_path) if step.stage == "bench")
    assert command(step)[-1] != "--resume"
    assert step.output is not None
    step.output.mkdir(parents=True)
    (step.output / "result.json").touch()
    assert command(step)[-1] == "--resume"


def test_a_server_with_nothing_left_to_measure_is_not_brought_up(tmp_path: Path) -> None:
    planned = steps(tmp_path)
    done = {step.id: "" for step in planned if step.run == "mi355x-tp8" and step.stage not in {"report", "down"}}
    assert "up" not in {step.stage for step in still_to_do(planned, done) if step.run == "mi355x-tp8"}


@pytest.mark.parametrize("text", ["", "[]", '{"steps": "other", "done": {}}'])
def test_a_state_of_something_else_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text(text)
    with pytest.raises(UsageError):
        State(tmp_path / STATE_FILE, steps(tmp_path))


def test_how_long_a_measurement_takes() -> None:
    """200 requests a rate: 400 s at 0.5 rps down to 83 s at 2.4 rps are about 17 min, before climbing and drains."""
    published = bench_seconds(load_workload("wafer-20k-1k").model_copy(update={"climb": None}), tok_s=213)
    assert published == pytest.approx(1005 + 6 * 30, abs=1)
    assert bench_seconds(load_workload("single-stream-10k-1.5k"), tok_s=213) == pytest.approx(20 * 1500 / 213)
