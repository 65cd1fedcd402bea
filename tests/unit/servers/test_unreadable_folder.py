"""A run directory that cannot be listed, as left by `sudo` or another user: all other servers are listed."""

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from run_samples import past_run
from unreadable import unreadable

from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home
from orchestrator.report.history import history
from orchestrator.runs.run_dir import RunDir, find_run, runs_of
from orchestrator.runtimes.base import Runtime, Unit
from orchestrator.runtimes.kubernetes.runtime import KubernetesRuntime
from orchestrator.runtimes.process.runtime import ProcessRuntime
from orchestrator.runtimes.slurm import jobs
from orchestrator.runtimes.slurm.jobs import Job
from orchestrator.runtimes.slurm.record import JobComment
from orchestrator.runtimes.slurm.runtime import SlurmRuntime
from orchestrator.runtimes.slurm.state import found_units
from orchestrator.servers.servers import Servers, resolve_server_name


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def owl(home: Home) -> Iterator[RunDir]:
    """Return a run of `owl` while the run directory of `hen` cannot be listed."""
    run = past_run(home, 1, running=True)
    past_run(home, 2, name="hen")
    with unreadable(home.runs / "hen"):
        yield run


@pytest.mark.usefixtures("owl")
def test_unreadable_run_directory_is_an_error(home: Home) -> None:
    with pytest.raises(HostError, match=r"cannot list .*hen`: Permission denied"):
        runs_of(home, "hen")


@pytest.mark.usefixtures("owl")
def test_unreadable_directory_does_not_hide_other_servers(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def queued() -> NoReturn:
        raise HostError("there is no Slurm here")

    monkeypatch.setattr(jobs, "queued", queued)
    runtimes: dict[str, Runtime] = {
        "process": ProcessRuntime(home),
        "slurm": SlurmRuntime(home),
        "kubernetes": KubernetesRuntime(home),
    }
    servers = Servers(home, runtimes)
    states = {server.name: server.current_state() for server in servers.find()}
    assert {name: state.status for name, state in states.items()} == {"hen": "unknown", "owl": "running"}
    assert f"`ls -ld {home.runs / 'hen'}` shows its owner" in states["hen"].detail
    assert servers.unreachable == {}
    assert [run.name for run in history(servers, None)] == ["owl"]
    assert "cannot list the runs of `hen`" in capsys.readouterr().err


def test_run_lookup_skips_unreadable_directory(home: Home, owl: RunDir) -> None:
    assert find_run(home, owl.path.name) == owl
    assert resolve_server_name("http://127.0.0.1:1", home) == "http://127.0.0.1:1"


def test_slurm_jobs_in_unreadable_directories_are_listed(
    home: Home, owl: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle_of(comment: JobComment, job: Job) -> Unit:
        return Unit(
            runtime="slurm",
            name=comment.name,
            profile=comment.profile,
            plan_digest=comment.plan,
            url="",
            run_dir=comment.run,
            runtime_id=job.id,
        )

    dirs = {"7": owl.path, "8": home.runs / "hen" / owl.path.name}
    queue = [
        (number, JobComment(name=run.parent.name, profile="cpu-tiny", plan="0", port=1, run=str(run)).to_text())
        for number, run in dirs.items()
    ]
    monkeypatch.setattr(jobs, "queued", lambda: iter(queue))
    monkeypatch.setattr(jobs, "find_job", lambda number: Job(id=number, state="RUNNING"))
    assert {unit.name: unit.runtime_id for unit in found_units(home, None, handle_of)} == {"owl": "7", "hen": "8"}
