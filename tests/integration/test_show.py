"""Tests of `deploy show`: summary, JSON, and the descriptions of flags."""

import json
from pathlib import Path

import pytest
from command_line import CommandLine

from orchestrator.core.paths import Home
from orchestrator.planner.planning import load

PROFILE = "mi355x-tp8"


@pytest.fixture
def deploy(tmp_path: Path) -> CommandLine:
    return CommandLine(Home(tmp_path / "home"), {"DOCKER_HOST": "unix:///nonexistent"})


def test_show_prints_only_a_summary(deploy: CommandLine) -> None:
    done = deploy.run("show", PROFILE)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"profile     {PROFILE}: ")
    assert max(map(len, lines)) <= 80
    before = next(number for number, line in enumerate(lines) if line.startswith("warning "))
    assert before <= 38  # one screen; each known issue takes at most seven lines
    plan = load(PROFILE).plan
    assert len(lines) - before <= 7 * len((*plan.warnings, *plan.wrong_answers, *plan.nondeterministic)) + 1


def test_show_json_prints_the_complete_plan(deploy: CommandLine) -> None:
    done = deploy.run("show", PROFILE, "--json")
    assert done.returncode == 0, done.stderr
    plan = load(PROFILE).plan
    assert json.loads(done.stdout) == {**json.loads(plan.to_json()), "digest": plan.digest}


def test_show_explain_describes_every_flag(deploy: CommandLine) -> None:
    done = deploy.run("show", PROFILE, "--explain")
    assert done.returncode == 0, done.stderr
    assert "flags.watchdog-timeout = 1800\n" in done.stdout
    assert "    Set watchdog timeout in seconds. If a forward batch takes longer than this" in done.stdout


def test_dry_run_prints_steps_and_writes_to_output(deploy: CommandLine, tmp_path: Path) -> None:
    done = deploy.run("up", PROFILE, "--dry-run", "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) + len(done.stderr.splitlines()) <= 60
    assert done.stdout.startswith("step ")
    assert json.loads((tmp_path / "out/plan.json").read_text())["profile"] == PROFILE
