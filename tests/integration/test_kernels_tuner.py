"""Run the tuner with a fake that behaves like aiter's tuner, including its failures."""

import os
import sys
import threading
from _thread import interrupt_main
from functools import partial
from pathlib import Path

import pytest
from kernel_samples import FUSED_TP8, every_bucket
from waits import wait_for

from orchestrator.core.errors import HostError
from orchestrator.core.polling import poll_until
from orchestrator.kernels.disk.pins import read_pins
from orchestrator.kernels.disk.store import RowProvenance, Store
from orchestrator.kernels.disk.tuner import Tuned, TunerTimeouts, TuningJob, run_with_limits, tune
from orchestrator.kernels.rows import RowOrigin

FAKE_TUNER = Path(__file__).parents[1] / "support" / "fake_tuner.py"
KEYS = tuple(row.key for row in every_bucket(FUSED_TP8))[:6]
PROVENANCE = RowProvenance(host="h", image="sha256:1", aiter_commit="9127c94a", date="2026-11-20T00:00:00Z")


def run(folder: Path, fault: str = "", *, total: float = 600, shutdown: float = 0.5) -> Tuned:
    work = folder / "work"
    argv = (sys.executable, str(FAKE_TUNER), "-i", f"{work}/untuned.csv", "-o", f"{work}/tuned.csv", "--batch", "2")
    job = TuningJob(
        argv=(*argv, "--fault", fault),
        keys=KEYS,
        names=read_pins().names_of("9127c94a"),
        folder=work,
        limits=TunerTimeouts(total=total, shutdown=shutdown, poll=0.1, grace=1),
    )
    return tune(job, run=run_with_limits, store=Store(folder / "store"), provenance=PROVENANCE)


def measured(folder: Path) -> list[int]:
    rows = Store(folder / "store").measured_rows()
    assert {row.origin for row in rows} <= {RowOrigin.MEASURED}
    return [row.key.token for row in rows]


def has_rows(folder: Path) -> bool:
    """Return whether the tuner has written rows after the header; it writes them all at once."""
    table = folder / "work" / "tuned.csv"
    return table.exists() and len(table.read_text().splitlines()) > 1


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_successful_tuning_measures_all_rows(tmp_path: Path) -> None:
    tuned = run(tmp_path)
    assert (tuned.remaining, tuned.problems) == ((), ())
    assert measured(tmp_path) == [1, 2, 4, 8, 16, 32]


def test_tuner_hanging_at_shutdown_is_killed_keeping_rows(tmp_path: Path) -> None:
    tuned = run(tmp_path, "hangs")
    assert (tuned.remaining, tuned.problems) == ((), ())
    assert len(measured(tmp_path)) == 6
    pids = [int(pid) for pid in (tmp_path / "work" / "pids").read_text().split()]
    assert not any(is_alive(pid) for pid in pids)


def test_tuner_errors_are_reported_despite_exit_code_0(tmp_path: Path) -> None:
    tuned = run(tmp_path, "fails")
    assert [key.token for key in tuned.remaining] == [4, 8, 16, 32]
    assert [problem.message for problem in tuned.problems] == ["the tuner ended without a row for 4 keys"]
    assert measured(tmp_path) == [1, 2]


def test_finished_rows_are_kept_at_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is reached when the tuner has written its first rows."""
    clock = partial(poll_until, clock=lambda: 3600.0 * has_rows(tmp_path))
    monkeypatch.setattr("orchestrator.kernels.disk.tuner.poll_until", clock)
    tuned = run(tmp_path, "stops", total=3600)
    assert [problem.message for problem in tuned.problems] == ["the tuner reached its time limit"]
    assert measured(tmp_path) == [1, 2]


@pytest.mark.usefixtures("sigint_raises")
def test_ctrl_c_ends_tuner_and_keeps_finished_rows(tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_for(lambda: has_rows(tmp_path))
        interrupt_main()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "stops", total=3600)
    interrupter.join()
    assert measured(tmp_path) == [1, 2]
    assert not (tmp_path / "work" / "tuned.csv").exists()


def test_missing_tuner_program_is_an_error(tmp_path: Path) -> None:
    limits = TunerTimeouts(total=1, shutdown=1, poll=0.1, grace=1)
    with pytest.raises(HostError, match="no program `no-such-program` found"):
        run_with_limits(("no-such-program",), log=tmp_path / "log", limits=limits, finished=lambda: False)


def test_tuner_exit_code_is_reported(tmp_path: Path) -> None:
    limits = TunerTimeouts(total=60, shutdown=1, poll=0.1, grace=1)
    fault = run_with_limits(("sh", "-c", "exit 3"), log=tmp_path / "log", limits=limits, finished=lambda: False)
    assert fault == "the tuner failed with exit code 3"
