"""Tests of `deploy up` with real sglang: the lifecycle of a server, and failures, which must leave nothing behind.

Tests of faults in `up` itself use the scripted engine.
"""

import hashlib
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import CommandLine, Running, processes_with
from cpu_server import CpuEngine, processes_in
from ports import free_port
from waits import wait_for

from orchestrator.core.paths import Home

pytestmark = pytest.mark.engine
SCRIPTED = Path(__file__).parents[1] / "support" / "scripted_engine.py"


@pytest.fixture
def deploy(engine_home: Home, cpu_engine: CpuEngine) -> Iterator[CommandLine]:
    """Return `deploy`; stop its servers after the test."""
    assert cpu_engine.python.exists()
    command = CommandLine(engine_home)
    yield command
    for server in json.loads(command.run("status", "--json").stdout):  # includes containers of other test workers
        if server["name"] != "shared" and engine_home.holds(Path(server["run_dir"]), server["name"]):
            command.run("down", server["name"])


def up(name: str, port: int, *more: str) -> list[str]:
    return ["up", "--profile", "cpu-tiny", "--name", name, "--set", f"server.port={port}", *more]


def up_scripted(name: str, port: int, variable: str, *more: str) -> list[str]:
    """Return the command with the scripted engine, which a variable controls."""
    settings = (f"engine.python={SCRIPTED}", "model.questions=null", f"env.{variable}")
    return up(name, port, *(word for setting in settings for word in ("--set", setting)), *more)


def assert_clean(deploy: CommandLine, name: str, port: int) -> None:
    """Assert that no record, process or open port of the server is left."""
    assert name not in [server["name"] for server in json.loads(deploy.run("status", "--json").stdout)]
    assert not processes_with(f"--port {port}")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def status(deploy: CommandLine, name: str) -> dict[str, Any]:
    [server] = json.loads(deploy.run("status", name, "--json").stdout)
    assert isinstance(server, dict)
    return server


def verdicts(smoke: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in smoke["checks"]}


def test_process_server_full_lifecycle(deploy: CommandLine) -> None:
    """The first server is the scripted engine, its replacement real sglang. No command is forked from the tests."""
    deploy = replace(deploy, fresh=True)
    port, key = free_port(), "wJ4-an-API-key-of-the-test"
    first = up_scripted("line", port, "SCRIPTED_PAUSE=0,0")
    assert deploy.run(*first).returncode == 0

    again = deploy.run(*first)
    assert (again.returncode, "is already up" in again.stderr) == (0, True)

    other = deploy.run(*first, "--set", "flags.max-total-tokens=32768")
    assert other.returncode == 6
    assert "- flags.max-total-tokens: 65536\n+ flags.max-total-tokens: 32768" in other.stderr
    assert "--replace" in other.stderr

    line = up("line", port, "--set", "timeouts.termination_grace=2")  # sglang needs at least 15 s to exit by itself
    locked = ("--set", "flags.max-total-tokens=32768", "--set", "server.api_key_env=THE_KEY", "--replace")
    unset = deploy.run(*line, *locked)
    assert unset.returncode == 2
    assert "export THE_KEY" in unset.stderr
    assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=30).status_code == 200

    replaced = deploy.run(*line, *locked, "--json", THE_KEY=key)
    assert replaced.returncode == 0, replaced.stderr
    result = json.loads(replaced.stdout)
    assert result["url"] == f"http://127.0.0.1:{port}"
    checks = verdicts(result["smoke"])
    assert checks["prefix cache"] == checks["streaming matches"] == checks["bad requests rejected"] == "passed"
    assert (checks["API key required"], checks["speculative decoding"]) == ("passed", "skipped")
    assert httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 401
    authorized = {"Authorization": f"Bearer {key}"}
    served = httpx.get(f"http://127.0.0.1:{port}/server_info", headers=authorized).json()
    assert served["max_total_tokens"] == 32768

    answer = deploy.run("ask", "line", "Once upon a time", "--tokens", "12", THE_KEY=key)
    assert answer.returncode == 0
    assert answer.stdout.strip()

    smoke = deploy.run("smoke", "line", "--json", THE_KEY=key)
    verified = json.loads(smoke.stdout)
    assert (smoke.returncode, verified["ok"], verdicts(verified)["API key required"]) == (0, True, "passed")

    run = Path(status(deploy, "line")["run_dir"])
    assert not any(key.encode() in Path(f"/proc/{process.pid}/environ").read_bytes() for process in processes_in(run))
    assert {"plan.json", "server.sh", "server.log", "smoke.json", "request.json"} <= {
        path.name for path in run.iterdir()
    }
    outputs = (replaced.stdout, replaced.stderr, smoke.stdout, smoke.stderr, deploy.run("logs", "line").stdout)
    shown = (*outputs, *processes_with("sglang"))
    written = [path.read_text(errors="replace") for path in run.rglob("*") if path.is_file()]
    assert not any(key in text for text in (*shown, *written))
    assert any("api_key='[REDACTED]'" in text for text in written), "the log does not mention a key"

    assert_death_is_reported(deploy, "line", run)
    assert deploy.run("down", "line").returncode == 0
    assert_clean(deploy, "line", port)
    assert_history(deploy, "line")


def assert_history(deploy: CommandLine, name: str) -> None:
    """Assert that the history has both runs, and that `diff` shows the changes between them."""
    last, first = json.loads(deploy.run("history", name, "--json").stdout)
    assert (first["ended"], last["ended"]) == ("replaced", "killed by SIGKILL")
    assert first["ready_seconds"] < last["ready_seconds"]  # the scripted engine starts faster than real sglang
    assert first["smoke"].keys() == last["smoke"].keys() == {"passed", "skipped"}
    diff = json.loads(deploy.run("diff", first["run"], f"{name}/{last['run']}", "--json").stdout)
    changes = {
        difference["key"]: (difference["a"], difference["b"])
        for difference in diff["differences"]
        if difference["in"] == "configuration"
    }
    assert changes["flags.max-total-tokens"] == ("65536", "32768")
    assert changes["server.api_key_env"] == ("", "THE_KEY")


def assert_death_is_reported(deploy: CommandLine, name: str, run: Path) -> None:
    """Kill the scheduler with SIGKILL, as the kernel's OOM killer does, and assert that the server's exit is reported.

    `test_scripted_engine.py` tests that the scripted engine exits in the same way.
    """
    assert "fired up" in deploy.run("logs", name).stdout
    cmdlines = {process.pid: Path(f"/proc/{process.pid}/cmdline").read_text() for process in processes_in(run)}
    (scheduler,) = [pid for pid, line in cmdlines.items() if line.startswith("sglang::scheduler")]
    os.kill(scheduler, signal.SIGKILL)
    wait_for(lambda: status(deploy, name)["status"] != "running")
    report = status(deploy, name)
    assert (report["status"], report["exit_code"], report["health"]) == ("exited", 137, "")
    assert report["detail"] == "killed by SIGKILL"
    wait_for(lambda: not processes_in(run))  # the supervisor exits a moment after it has recorded the exit
    smoke = deploy.run("smoke", name)
    assert smoke.returncode == 6
    assert f"`{name}` is not running: killed by SIGKILL" in smoke.stderr


@pytest.mark.slow
def test_failed_replacement_hints_at_restoring_old_server(deploy: CommandLine) -> None:
    port = free_port()
    assert deploy.run(*up_scripted("old", port, "SCRIPTED_PAUSE=0,0")).returncode == 0
    failed = deploy.run(*up("old", port, "--set", "flags.dtype=float8", "--replace"))
    assert failed.returncode == 3  # the plan is invalid, so the old server keeps running
    assert status(deploy, "old")["status"] == "running"
    failed = deploy.run(*up_scripted("old", port, "SCRIPTED_BROKEN=1", "--replace"))
    assert failed.returncode == 7, failed.stderr
    assert "exited" in failed.stderr
    assert "Traceback" in failed.stderr.partition("error:")[2], "the last lines of the log are missing"
    assert f"deploy up --profile cpu-tiny --name old --set server.port={port}" in failed.stderr.splitlines()[-1]
    assert_clean(deploy, "old", port)


@pytest.mark.slow
def test_keep_failed_leaves_server_for_inspection(deploy: CommandLine) -> None:
    port = free_port()
    failed = deploy.run(*up_scripted("kept", port, "SCRIPTED_BROKEN=1", "--keep-failed"))
    assert failed.returncode == 7
    assert "deploy logs kept" in failed.stderr
    assert status(deploy, "kept")["status"] == "exited"
    assert deploy.run("logs", "kept").stdout
    assert deploy.run("down", "kept").returncode == 0
    assert_clean(deploy, "kept", port)


def assert_ctrl_c_cleans_up(command: Running, deploy: CommandLine, name: str, port: int) -> None:
    code, output = command.end(signal.SIGINT)
    assert code == 130, output
    assert "interrupted" in output
    assert f"`{name}` was stopped; nothing is left running" in output
    assert "Traceback" not in output
    assert_clean(deploy, name, port)


def test_ctrl_c_right_after_start_leaves_nothing(deploy: CommandLine) -> None:
    port = free_port()
    with deploy.running(*up_scripted("stopped", port, "SCRIPTED_PAUSE=0,300")) as command:
        command.wait_for("started `")
        assert_ctrl_c_cleans_up(command, deploy, "stopped", port)


def test_concurrent_up_is_rejected_and_ctrl_c_cleans_up(deploy: CommandLine) -> None:
    port = free_port()
    words = up_scripted("twice", port, "SCRIPTED_PAUSE=0,300")  # loads until it is interrupted
    with deploy.running(*words) as first:
        first.wait_for("connecting ranks")
        second = deploy.run(*words)
        assert second.returncode == 6
        assert f"pid {first.pid}" in second.stderr
        assert_ctrl_c_cleans_up(first, deploy, "twice", port)


@pytest.mark.slow
def test_nohup_survives_sighup_and_ctrl_c_ends_smoke_test(deploy: CommandLine) -> None:
    port = free_port()
    slow = up_scripted("nohup", port, "SCRIPTED_STEP=1", "--set", "env.SCRIPTED_PAUSE=0.1")
    with deploy.running(*slow, ignores=[signal.SIGHUP]) as command:
        command.wait_for("started `")
        command.send(signal.SIGHUP)
        command.wait_for("smoke test")
        assert_ctrl_c_cleans_up(command, deploy, "nohup", port)


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.3])
def test_second_ctrl_c_during_cleanup_leaves_nothing(deploy: CommandLine, delay_s: float) -> None:
    port = free_port()
    with deploy.running(*up_scripted("impatient", port, "SCRIPTED_PAUSE=0,300")) as command:
        command.wait_for("started `")
        command.send(signal.SIGINT)
        time.sleep(delay_s)
        code, output = command.end(signal.SIGINT)
    # the second signal may arrive while the command exits
    assert code == 130 or (code == -signal.SIGINT and "error: interrupted" in output), output
    assert_clean(deploy, "impatient", port)


def test_server_of_killed_up_command_is_found(deploy: CommandLine) -> None:
    port = free_port()
    with deploy.running(*up_scripted("orphan", port, "SCRIPTED_PAUSE=0,300")) as command:
        command.wait_for("started `")
        command.send(signal.SIGKILL)
        command.wait()
    assert status(deploy, "orphan")["status"] == "running"
    assert deploy.run("down", "orphan").returncode == 0
    assert_clean(deploy, "orphan", port)


def test_occupied_port_error_names_its_holder(deploy: CommandLine) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", free_port()))
        holder.listen()
        failed = deploy.run(*up_scripted("late", holder.getsockname()[1], "SCRIPTED_PAUSE=0"))
    assert failed.returncode == 4
    assert f"pid {os.getpid()}" in failed.stderr
    assert "late" not in deploy.run("status").stdout


COMPILE_SECONDS = 2.0  # long enough to be observed: the log is read at intervals


@pytest.fixture
def kernels(tmp_path: Path) -> list[str]:
    """Return options with which the scripted engine compiles a kernel into an empty cache."""
    settings = (f"env.TRITON_CACHE_DIR={tmp_path / 'triton'}", f"env.SCRIPTED_COMPILE={COMPILE_SECONDS}")
    return [word for setting in settings for word in ("--set", setting)]


def test_fresh_host_reuses_kernels_saved_by_verified_server(
    deploy: CommandLine, tmp_path: Path, engine_home: Home, kernels: list[str]
) -> None:
    """This needs the scripted engine, because real sglang compiles nothing on a CPU.

    With `enable-torch-compile`, sglang 0.5.14 exits on a CPU without AMX, where its attention backend has no graphs.
    """
    port, cache = free_port(), tmp_path / "triton"
    start = [*up_scripted("kernels", port, "SCRIPTED_PAUSE=0", *kernels), "--json"]
    first = deploy.run(*start)
    assert "saved 1 files of compiled kernels" in first.stderr
    [archive] = engine_home.compiled_kernels.glob("*.tar.gz")
    digest = f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}"
    assert f"{archive}@{digest}" in first.stderr
    stages = status(deploy, "kernels")["startup"]
    assert "opening the port" in stages, stages
    compiled = (cache / "KEY/kernel.cubin").read_bytes()  # contains the time of the compilation

    deploy.run("down", "kernels")
    shutil.rmtree(cache)
    again = deploy.run(*start)
    assert again.returncode == 0, again.stderr
    assert (cache / "KEY/kernel.cubin").read_bytes() == compiled
    assert "compiled kernels: 1 files added" in again.stderr

    deploy.run("down", "kernels")
    shutil.rmtree(cache)
    moved = archive.rename(tmp_path / "moved.tar.gz")
    with_archive = ["--set", f"engine.compiled_kernels={moved}@{digest}"]
    assert deploy.run(*start, *with_archive).returncode == 0
    assert (cache / "KEY/kernel.cubin").read_bytes() == compiled

    changed = deploy.run(*start, "--replace", "--set", f"engine.compiled_kernels={moved}@sha256:{'0' * 64}")
    assert (changed.returncode, f"has the digest {digest}" in changed.stderr) == (9, True), changed.stderr
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nSCRIPTED_VERSIONS=\'{{"torch": "2.10.0"}}\' exec {SCRIPTED} "$@"\n')
    python.chmod(0o755)
    changes = ("--set", f"engine.python={python}", "--set", "flags.chunked-prefill-size=1024")
    other = deploy.run(*start, "--replace", *with_archive, *changes)
    assert other.returncode == 9
    assert "`engine.torch`: compiled for `2.9.1+cpu`, this start has `2.10.0`" in other.stderr
    assert "`plan`: compiled for" in other.stderr
    assert status(deploy, "kernels")["health"] == "healthy"  # the old server is still running
