"""Tests of the programs that start and stop the ranks of a server on several nodes, with a fake srun and fake ranks."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.planner.planning import load
from orchestrator.runtimes.replicas import rank_dir
from orchestrator.runtimes.slurm import job
from orchestrator.runtimes.slurm.script import job_script

TWO = ("runtime=slurm", "server.allow_unauthenticated=true", "engine.python=python3", "layout.nodes=2", "layout.tp=16")
NODE = Path(__file__).parents[1] / "unit" / "runtimes" / "slurm_recorded" / "node.txt"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the run directory of a server with three ranks."""
    directory = tmp_path / "glm" / "run"
    for rank in range(3):
        rank_dir(directory, rank).mkdir(parents=True)
    return directory


def test_manually_run_script_assigns_rank_to_each_node(tmp_path: Path) -> None:
    """`scontrol` prints recorded output, and `srun` runs its command once for each rank."""
    (tmp_path / "job.sh").write_text(job_script(load("mi355x-tp8", overrides=TWO).plan, "glm"))
    (tmp_path / "server.sh").write_text('echo "$NODE_RANK $HEAD_ADDRESS"\n')
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\ncat {NODE}\n")
    loop = 'for rank in 0 1; do SLURM_PROCID=$rank "$@" || exit; done'
    (tmp_path / "srun").write_text(f'#!/bin/sh\nwhile [ "${{1#--}}" != "$1" ]; do shift; done\n{loop}\n')
    for name in ("scontrol", "srun"):
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURMD_NODENAME": "n0"}
    done = subprocess.run(["sh", "job.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "127.0.0.2", "1", "127.0.0.2"]


class Ranks:
    """Fake programs of the ranks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "srun").write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
        (folder / "srun").chmod(0o755)
        (folder / "orchestrator" / "runtimes" / "slurm").mkdir(parents=True)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.setenv("SLURMD_NODENAME", "n0")
        monkeypatch.setattr(job, "node_address", lambda _node: "10.0.0.1")
        monkeypatch.setattr(job, "_MAX_STOP_GAP", 1.0)
        monkeypatch.setattr(job, "_POLL", 0.02)

    def run(self, monkeypatch: pytest.MonkeyPatch, program: str, run: Path) -> int:
        """Run `_start_ranks` with this program for each rank; the program can use `rank`, `head` and `out`."""
        text = (
            "import signal, sys, time; from pathlib import Path\n"
            f"rank, head, out = int(sys.argv[2]), sys.argv[3], Path({str(self.folder)!r})\n"
            f"{program}"
        )
        (self.folder / "rank.py").write_text(text)
        monkeypatch.setattr(
            job, "python_module_argv", lambda _module, *words: [sys.executable, str(self.folder / "rank.py"), *words]
        )
        before = signal.getsignal(signal.SIGTERM)
        try:
            return job._start_ranks(run, 2)
        finally:
            signal.signal(signal.SIGTERM, before)


WRITE_OUTPUT = "(out / f'started-{rank}').write_text(head)\n"
TOUCH_AT_SIGTERM = (
    "signal.signal(signal.SIGTERM, lambda *_: ((out / f'sigterm-{rank}').touch(), sys.exit(7 if rank == 0 else 3)))\n"
)


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(tmp_path, monkeypatch)


def test_every_rank_gets_address_of_first_node(ranks: Ranks, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranks.run(monkeypatch, f"{WRITE_OUTPUT}sys.exit(5 if rank == 0 else 3)", run) == 5
    assert [(ranks.folder / f"started-{rank}").read_text() for rank in range(3)] == ["10.0.0.1"] * 3


def test_only_rank_0_receives_sigterm_and_others_finish(
    ranks: Ranks, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = "while not (rank and (out / 'sigterm-0').exists()): time.sleep(.02)\n"
    program = f"{TOUCH_AT_SIGTERM}{WRITE_OUTPUT}{waits}(out / f'done-{{rank}}').touch()"

    def send_sigterm() -> None:
        while len(list(ranks.folder.glob("started-*"))) < 3:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send_sigterm, daemon=True).start()
    assert ranks.run(monkeypatch, program, run) == 7
    assert sorted(path.name for path in ranks.folder.glob("sigterm-*")) == ["sigterm-0"]
    assert sorted(path.name for path in ranks.folder.glob("done-*")) == ["done-1", "done-2"]


def test_exited_rank_stops_the_server(ranks: Ranks, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 waits forever for the exited rank, as after a failure of the network."""
    ends = "while not (rank and (out / ('sigterm-0' if rank == 1 else 'started-0')).exists()): time.sleep(.02)"
    program = f"{TOUCH_AT_SIGTERM}{WRITE_OUTPUT}{ends}"
    assert ranks.run(monkeypatch, program, run) == 7
    assert sorted(path.name for path in ranks.folder.glob("sigterm-*")) == ["sigterm-0"]


def test_rank_on_other_node_waits_for_vram_release(ranks: Ranks, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other node may release its VRAM minutes after the first node."""
    monkeypatch.setattr(job, "read_record", lambda _folder, _kind: SimpleNamespace(exit_code=0))
    program = "time.sleep(0 if rank == 0 else 2.5)\n(out / f'done-{rank}').touch()"
    assert ranks.run(monkeypatch, program, run) == 0
    assert len(list(ranks.folder.glob("done-[12]"))) == 2
