"""Tests of `deploy sweep` with the scripted engine, whose speed depends on a variable."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest
from command_line import CommandLine, processes_with
from ports import free_port
from waits import wait_for

from orchestrator.core import subprocesses
from orchestrator.core.paths import Home

pytestmark = pytest.mark.slow

ENGINE = Path(__file__).parents[1] / "support" / "scripted_engine.py"
# A token takes 20 ms or 2 ms, or the server exits during load. A plan with tp 3 is infeasible.
SPACE = """
workload: ./load.yaml
layouts: [{tp: 1}, {tp: 3}]
env:
  SCRIPTED_STEP: ["0.02", "0.002", never]
"""
LOAD = "{input_tokens: 20, output_tokens: 10, token_ids: [10, 500], load: closed, concurrency: 2, requests: 8}\n"


def sweep(port: int, *more: str) -> tuple[str, ...]:
    settings = (f"server.port={port}", f"engine.python={ENGINE}", "model.questions=null", "env.SCRIPTED_STEP=0.02")
    chosen = (word for setting in settings for word in ("--set", setting))
    return ("sweep", "cpu-tiny", "--space", "space.yaml", "--output", "out", "--repeats", "1", *chosen, *more)


def test_interrupted_sweep_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial whose server does not start is a result too. The best trial is written as a profile."""
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "load.yaml").write_text(LOAD)
    monkeypatch.chdir(tmp_path)
    deploy = CommandLine(Home(tmp_path / "home"), {"DOCKER_HOST": "unix:///nonexistent"})
    port = free_port()

    with deploy.running(*sweep(port)) as running:
        wait_for((tmp_path / "out/trials/001/result.json").is_file)
        code, output = running.end(signal.SIGTERM)
    assert (code, "--resume" in output) == (130, True)
    assert not processes_with(f"--port {port}")

    done = deploy.run(*sweep(port, "--resume"))
    assert done.returncode == 0, done.stderr
    output = done.stderr.splitlines()
    assert len([line for line in output if re.match(r"trial \d", line)]) == 6 + 1  # all trials and one repeat
    assert not [line for line in output if line.startswith(("started", "waiting", "ready", "note: sglang"))]
    assert not processes_with(f"--port {port}")
    report = json.loads((tmp_path / "out/sweep.json").read_text())
    assert report["command"].startswith("deploy sweep ")
    assert report["command"].count("--resume") == report["command"].endswith(" --resume")
    trials = [row["trial"] for row in report["rows"]]
    assert (trials[0]["outcome"], trials[0]["is_baseline"]) == ("measured", True), "the interrupted trial has a number"
    assert sorted(trial["outcome"] for trial in trials[1:]) == ["failed"] + ["infeasible"] * 3 + ["measured"]
    assert "could not convert" in next(trial["diagnosis"] for trial in trials if trial["outcome"] == "failed")
    [best] = [row["trial"] for row in report["rows"] if row["best"]]
    assert best["values"][0] > 2 * trials[0]["values"][0]

    assert f"Trial {best['number']}: 2 runs: " in " ".join(report["notes"])
    assert (tmp_path / f"out/trials/{best['number']:03d}-2/result.json").is_file()

    written = (tmp_path / "out/cpu-tiny-swept.yaml").read_text()
    assert "(median of 2 runs, " in written
    assert "{value: '0.002', origin: measured, source: 'deploy sweep, " in written
    explained = deploy.run("show", "out/cpu-tiny-swept.yaml", "--explain", "--json")
    rows = {row["key"]: row for row in json.loads(explained.stdout)}
    assert rows["env.SCRIPTED_STEP"]["origin"] == "measured"
    assert "for `cpu-tiny` itself" in rows["env.SCRIPTED_STEP"]["source"]


def test_library_threads_block_signals() -> None:
    """numpy starts threads at import; a signal to such a thread would interrupt sections that block signals."""
    program = """
from pathlib import Path
from orchestrator.experiments.sweep.search import load_optuna
load_optuna()
tasks = [task for task in Path("/proc/self/task").iterdir() if task.name != str(__import__("os").getpid())]
masks = [next(line.split()[1] for line in (t / "status").read_text().splitlines() if "SigBlk" in line) for t in tasks]
signals = 1 << 0 | 1 << 1 | 1 << 14  # SIGHUP, SIGINT, SIGTERM
print(all(int(mask, 16) & signals == signals for mask in masks))
"""
    assert subprocesses.run([sys.executable, "-c", program]).stdout == "True\n"
