"""The ranks of a multi-node server: job, records and logs."""

from pathlib import Path
from typing import cast

import pytest

from orchestrator.core.errors import ProfileError
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load
from orchestrator.runtimes.base import LOG, Runtime, Unit
from orchestrator.runtimes.replicas import rank_dir, rank_dirs, run_root
from orchestrator.runtimes.slurm.jobs import read_job
from orchestrator.runtimes.slurm.record import SERVER
from orchestrator.runtimes.slurm.script import job_script
from orchestrator.runtimes.slurm.state import server_state
from orchestrator.runtimes.supervisor.record import Record, write_record
from orchestrator.servers.group import Server

TWO = ("runtime=slurm", "server.allow_unauthenticated=true", "engine.python=python3", "layout.nodes=2", "layout.tp=16")
JOB = read_job((Path(__file__).with_name("slurm_recorded") / "failed.txt").read_text())


def plan(*settings: str) -> Plan:
    return load("mi355x-tp8", overrides=(*TWO, *settings)).plan


def record(run: Path, *, node: str, code: int | None, ended: str | None) -> Record:
    return Record(
        name=run_root(run).parent.name,
        profile="mi355x-tp8",
        plan_digest="6204c84e",
        url=f"http://{node}:30000",
        argv=("python3",),
        started_at="2026-11-27T11:00:00+00:00",
        token=str(run),
        supervisor="0-0/1/1",
        server=None,
        output=None,
        exit_code=code,
        ended_at=ended,
        stopped=False,
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the run directory of a server with three ranks."""
    directory = tmp_path / "glm" / "20261127T110000Z-6204c84e"
    for rank in range(3):
        rank_dir(directory, rank).mkdir(parents=True)
        (rank_dir(directory, rank) / LOG).write_text(f"of rank {rank}\n")
    return directory


def test_job_has_one_task_per_node() -> None:
    lines = job_script(plan(), "glm").splitlines()
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert options[1:4] == ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]
    assert {"--gres=gpu:8", "--signal=B:TERM@120"} <= {*options}
    assert lines[-1] == 'exec "$1" -P -m orchestrator.runtimes.slurm.job "$2"'


def test_pyxis_is_rejected_for_multi_node_server() -> None:
    with pytest.raises(ProfileError, match="cannot plan") as error:
        plan("slurm.container=pyxis", "slurm.image=docker://sglang")
    assert "cannot start a server on several nodes with pyxis" in error.value.problems_or_self()[0].message


def test_rank_directories_are_inside_run_directory(run: Path) -> None:
    assert [directory.name for directory in rank_dirs(run)] == ["rank-1", "rank-2"]
    assert {run_root(rank_dir(run, rank)) for rank in range(3)} == {run}
    assert run_root(rank_dir(run / "replica-2", 1)) == run


def test_logs_of_all_ranks_are_included(run: Path) -> None:
    unit = Unit(runtime="slurm", name="glm", profile="p", plan_digest="d", url="", run_dir=str(run), runtime_id="5")
    logged = Server.of(unit, cast("Runtime", None)).logged
    assert [Path(log.run_dir) for log in logged] == [run, run / "rank-1", run / "rank-2"]
    assert {log.runtime_id for log in logged} == {"5"}


LOST = "gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:36253. This is typically caused by"


@pytest.mark.parametrize(
    ("ends", "losers", "detail"),
    [
        ((("16", 137), ("10", 137), ("15", 137)), (0, 2), "rank 1 on n1 exited first: killed by SIGKILL"),
        ((("16", 137), ("15", 137), ("10", 3)), (0, 1), "rank 2 on n2 exited first: exit code 3"),
        ((("16", 137), ("10", 137), ("15", 137)), (), "rank 1 on n1 exited first: killed by SIGKILL"),
        ((("16", 137), ("10", 137), ("10", 3)), (1, 2), "rank 0 on n0 exited first: killed by SIGKILL"),
        ((("10", 137), ("10", 137), None), (1,), "rank 0 on n0 exited first: killed by SIGKILL"),
        ((("10", 1), None, None), (), "rank 0 on n0 exited first: exit code 1"),
        ((("10", 137), ("10", 137), ("10", 137)), (), "rank 0 on n0 exited first: killed by SIGKILL"),
        ((("16", 137), ("15", 3), ("16", 3)), (), "killed by SIGKILL"),  # as in every orderly stop
        (
            (("16", 137), ("10", 137), None),  # the node of rank 2 was lost
            (0, 1),
            "rank 1 on n1 exited first: killed by SIGKILL, after another rank had failed",
        ),
    ],
)
def test_failed_rank_is_named_and_ranks_that_lost_it_are_not(
    run: Path, ends: tuple[tuple[str, int] | None, ...], losers: tuple[int, ...], detail: str
) -> None:
    made = []
    for rank, end in enumerate(ends):
        code, ended = (end[1], f"2026-11-27T12:00:{end[0]}+00:00") if end else (None, None)
        made.append(record(rank_dir(run, rank), node=f"n{rank}", code=code, ended=ended))
        write_record(rank_dir(run, rank), made[rank], SERVER)
    for rank in losers:
        (rank_dir(run, rank) / LOG).write_text(f"RuntimeError: [/third_party/gloo/{LOST}\n")
    assert server_state(JOB, made[0], run).detail == detail
