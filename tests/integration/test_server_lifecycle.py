"""Tests of commands about a server of the scripted engine: while it runs, after it was killed, and after a restart."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine
from ports import free_port
from waits import wait_for

from orchestrator.core.paths import Home

ENGINE = Path(__file__).parents[1] / "support" / "scripted_engine.py"
NAME = "owl"


@pytest.fixture(scope="module")
def deploy(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    return CommandLine(Home(tmp_path_factory.mktemp("home")), {"DOCKER_HOST": "unix:///nonexistent"})


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


def up(port: int, *more: str) -> tuple[str, ...]:
    settings = (
        f"server.port={port}",
        f"engine.python={ENGINE}",
        "timeouts.termination_grace=2",
        "model.questions=null",
    )
    return ("up", "cpu-tiny", "--name", NAME, *(word for setting in settings for word in ("--set", setting)), *more)


@pytest.fixture(scope="module")
def run_dir(deploy: CommandLine, port: int) -> Iterator[Path]:
    assert (done := deploy.run(*up(port))).returncode == 0, done.stderr
    yield Path(json.loads(deploy.run("status", NAME, "--json").stdout)[0]["run_dir"])
    assert deploy.run("down", "--all").returncode == 0


def test_status_diagnose_and_logs_of_running_server(deploy: CommandLine, run_dir: Path) -> None:
    status, diagnosis = deploy.run("status", NAME), deploy.run("diagnose", NAME)
    last = deploy.run("logs", NAME, "-n", "2")

    assert status.returncode == 0
    assert "running for " in status.stdout
    assert f"`{NAME}` took " in status.stderr
    assert "docker" not in status.stderr  # the missing daemon is reported only after a start of a container
    assert diagnosis.stdout.startswith(f"`{NAME}` is healthy, and its log of ")
    assert last.stdout.splitlines() == (run_dir / "server.log").read_text().splitlines()[-2:]


def test_saved_lockfile_matches_running_server(deploy: CommandLine, run_dir: Path, port: int) -> None:
    same = deploy.run("up", str(run_dir / "lock.yaml"), "--locked", "--name", NAME, "--json")
    assert same.returncode == 0, same.stderr
    assert json.loads(same.stdout)["already_up"] is True
    assert f"server.port: '{port}'" in (run_dir / "lock.yaml").read_text()


@pytest.mark.usefixtures("run_dir")
def test_top_shows_current_activity(deploy: CommandLine) -> None:
    with deploy.running("top", NAME, "--json", "--interval", "0.5") as watching:
        first = json.loads(watching.line())
        assert deploy.run("ask", NAME, "hello", "--tokens", "9").returncode == 0
        wait_for(lambda: json.loads(watching.line())["activity"]["output_tokens_per_s"] > 0)
        assert watching.end(signal.SIGINT)[0] == 130
    screen = deploy.run("top", NAME, "--once", "--interval", "0.5")

    assert (first["name"], first["problem"], first["activity"]["window_s"]) == (NAME, "", 0)
    assert screen.returncode == 0, screen.stderr
    assert screen.stdout.startswith(f"{NAME}  up for ")
    assert "requests" in screen.stdout
    assert "0 running, 0 queued" in screen.stdout


def test_killed_server_is_reported_and_restarted(deploy: CommandLine, run_dir: Path, port: int) -> None:
    record = json.loads((run_dir / "process.json").read_text())
    os.kill(int(record["server"].split("/")[1]), signal.SIGKILL)
    wait_for(lambda: deploy.run("status", NAME).returncode == 6)

    status, top = deploy.run("status", NAME), deploy.run("top", NAME)
    changed = deploy.run(*up(port, "--set", "flags.max-total-tokens=32768"))
    again = deploy.run("restart", NAME, "--json")

    assert status.returncode == 6
    assert f"`{NAME}` is not running: killed by SIGKILL, " in status.stderr
    assert f"`deploy restart {NAME}`" in status.stderr
    assert top.returncode == 6
    assert f"`{NAME}` is not running: killed by SIGKILL, " in top.stderr
    assert changed.returncode == 6
    assert f"`{NAME}` has another plan and is not running: killed by SIGKILL" in changed.stderr
    assert "+ flags.max-total-tokens: 32768" in changed.stderr
    assert again.returncode == 0, again.stderr
    server = json.loads(again.stdout)
    assert server["plan_digest"] == record["plan_digest"]
    assert server["url"].endswith(f":{port}")
    assert json.loads(deploy.run("status", NAME, "--json").stdout)[0]["health"] == "healthy"
    assert json.loads(deploy.run("down", NAME, "--json").stdout) == {"down": [NAME]}


def test_restart_of_unknown_server_suggests_name(deploy: CommandLine, run_dir: Path) -> None:
    missing = deploy.run("restart", "own")

    assert missing.returncode == 6
    assert "no previous run of `own`" in missing.stderr
    assert "did you mean `owl`?" in missing.stderr
    assert run_dir.exists()
