"""`deploy up` with the real server: the whole line, and every way it can fail. Nothing is left behind.

Where the fault is one of `up` and not of what it has started, the scripted engine serves in the real one's place.
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
    """`deploy`, whose servers are all taken down after the test."""
    assert cpu_engine.python.exists()
    command = CommandLine(engine_home)
    yield command
    for server in json.loads(command.run("status", "--json").stdout):  # a container may be that of another worker
        if server["name"] != "shared" and engine_home.holds(Path(server["run_dir"]), server["name"]):
            command.run("down", server["name"])


def up(name: str, port: int, *more: str) -> list[str]:
    return ["up", "--profile", "cpu-tiny", "--name", name, "--set", f"server.port={port}", *more]


def up_scripted(name: str, port: int, variable: str, *more: str) -> list[str]:
    """The same with the scripted engine, which this variable tells what to do."""
    settings = (f"engine.python={SCRIPTED}", "model.questions=null", f"env.{variable}")
    return up(name, port, *(word for setting in settings for word in ("--set", setting)), *more)


def is_clean(deploy: CommandLine, name: str, port: int) -> None:
    """No record, no process, no port of that server is left."""
    assert name not in [server["name"] for server in json.loads(deploy.run("status", "--json").stdout)]
    assert not processes_with(f"--port {port}")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def status(deploy: CommandLine, name: str) -> dict[str, Any]:
    """What `deploy status NAME` says."""
    [server] = json.loads(deploy.run("status", name, "--json").stdout)
    assert isinstance(server, dict)
    return server


def verdicts(smoke: dict[str, Any]) -> dict[str, str]:
    """What a smoke test found, by the name of each check."""
    return {check["name"]: check["verdict"] for check in smoke["checks"]}


def test_process_server_full_lifecycle(deploy: CommandLine) -> None:
    """Up, again, with another plan, replaced by that other one with an API key, asked, proven again, killed, down.

    What is replaced is the scripted engine; from there on it is real sglang. Each command is a program, as a user's is.
    """
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

    line = up("line", port, "--set", "timeouts.termination_grace=2")  # sglang takes 15 s and more to end by itself
    locked = ("--set", "flags.max-total-tokens=32768", "--set", "server.api_key_env=THE_KEY", "--replace")
    unset = deploy.run(*line, *locked)
    assert unset.returncode == 2
    assert "export THE_KEY" in unset.stderr
    assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=30).status_code == 200

    replaced = deploy.run(*line, *locked, "--json", THE_KEY=key)
    assert replaced.returncode == 0, replaced.stderr
    result = json.loads(replaced.stdout)
    assert result["url"] == f"http://127.0.0.1:{port}"
    found = verdicts(result["smoke"])
    assert found["prefix cache"] == found["streaming matches"] == found["bad requests rejected"] == "passed"
    assert (found["API key required"], found["speculative decoding"]) == ("passed", "skipped")
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
    assert any("api_key='[REDACTED]'" in text for text in written), "the log shows that there was one"

    assert_death_is_reported(deploy, "line", run)
    assert deploy.run("down", "line").returncode == 0
    is_clean(deploy, "line", port)
    assert_history(deploy, "line")


def assert_history(deploy: CommandLine, name: str) -> None:
    """Two starts: how each was proven and ended, and what differs between them."""
    last, first = json.loads(deploy.run("history", name, "--json").stdout)
    assert (first["ended"], last["ended"]) == ("replaced", "killed by SIGKILL")
    assert first["ready_seconds"] < last["ready_seconds"]  # of the scripted engine, and of real sglang
    assert first["smoke"].keys() == last["smoke"].keys() == {"passed", "skipped"}
    found = json.loads(deploy.run("diff", first["run"], f"{name}/{last['run']}", "--json").stdout)
    changes = {
        difference["key"]: (difference["a"], difference["b"])
        for difference in found["differences"]
        if difference["in"] == "configuration"
    }
    assert changes["flags.max-total-tokens"] == ("65536", "32768")
    assert changes["server.api_key_env"] == ("", "THE_KEY")


def assert_death_is_reported(deploy: CommandLine, name: str, run: Path) -> None:
    """SIGKILL to its scheduler, as by the kernel's OOM killer: the server goes too, and who asks is told.

    `test_scripted_engine.py` holds that the scripted engine ends in the same way.
    """
    assert "fired up" in deploy.run("logs", name).stdout
    titles = {process.pid: Path(f"/proc/{process.pid}/cmdline").read_text() for process in processes_in(run)}
    (scheduler,) = [pid for pid in titles if titles[pid].startswith("sglang::scheduler")]
    os.kill(scheduler, signal.SIGKILL)
    wait_for(lambda: status(deploy, name)["status"] != "running")
    report = status(deploy, name)
    assert (report["status"], report["exit_code"], report["health"]) == ("exited", 137, "")
    assert report["detail"] == "killed by SIGKILL"
    wait_for(lambda: not processes_in(run))  # the supervisor goes last, a moment after it has recorded the end
    smoke = deploy.run("smoke", name)
    assert smoke.returncode == 6
    assert f"`{name}` is not running: killed by SIGKILL" in smoke.stderr


@pytest.mark.slow
def test_failed_replacement_hints_at_restoring_old_server(deploy: CommandLine) -> None:
    port = free_port()
    assert deploy.run(*up_scripted("old", port, "SCRIPTED_PAUSE=0,0")).returncode == 0
    failed = deploy.run(*up("old", port, "--set", "flags.dtype=float8", "--replace"))
    assert failed.returncode == 3  # refused by the plan: the old one still runs
    assert status(deploy, "old")["status"] == "running"
    failed = deploy.run(*up_scripted("old", port, "SCRIPTED_BROKEN=1", "--replace"))
    assert failed.returncode == 7, failed.stderr
    assert "exited" in failed.stderr
    assert "Traceback" in failed.stderr.partition("error:")[2], "the server's own last lines are shown"
    assert f"deploy up --profile cpu-tiny --name old --set server.port={port}" in failed.stderr.splitlines()[-1]
    is_clean(deploy, "old", port)


@pytest.mark.slow
def test_keep_failed_leaves_server_for_inspection(deploy: CommandLine) -> None:
    port = free_port()
    failed = deploy.run(*up_scripted("kept", port, "SCRIPTED_BROKEN=1", "--keep-failed"))
    assert failed.returncode == 7
    assert "deploy logs kept" in failed.stderr
    assert status(deploy, "kept")["status"] == "exited"
    assert deploy.run("logs", "kept").stdout
    assert deploy.run("down", "kept").returncode == 0
    is_clean(deploy, "kept", port)


def ctrl_c(command: Running, deploy: CommandLine, name: str, port: int) -> None:
    """It ends the command, which leaves nothing."""
    code, output = command.end(signal.SIGINT)
    assert code == 130, output
    assert "interrupted" in output
    assert f"`{name}` was stopped; nothing is left running" in output
    assert "Traceback" not in output
    is_clean(deploy, name, port)


def test_ctrl_c_right_after_start_leaves_nothing(deploy: CommandLine) -> None:
    port = free_port()
    with deploy.running(*up_scripted("stopped", port, "SCRIPTED_PAUSE=0,300")) as command:
        command.wait_for("started `")
        ctrl_c(command, deploy, "stopped", port)


def test_concurrent_up_is_rejected_and_ctrl_c_cleans_up(deploy: CommandLine) -> None:
    port = free_port()
    words = up_scripted("twin", port, "SCRIPTED_PAUSE=0,300")  # it loads until it is interrupted
    with deploy.running(*words) as first:
        first.wait_for("connecting ranks")
        second = deploy.run(*words)
        assert second.returncode == 6
        assert f"pid {first.pid}" in second.stderr
        ctrl_c(first, deploy, "twin", port)


@pytest.mark.slow
def test_nohup_survives_sighup_and_ctrl_c_ends_smoke_test(deploy: CommandLine) -> None:
    port = free_port()
    slow = up_scripted("nohup", port, "SCRIPTED_STEP=1", "--set", "env.SCRIPTED_PAUSE=0.1")
    with deploy.running(*slow, ignores=[signal.SIGHUP]) as command:
        command.wait_for("started `")
        command.send(signal.SIGHUP)
        command.wait_for("smoke test")
        ctrl_c(command, deploy, "nohup", port)


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.3])
def test_second_ctrl_c_during_cleanup_leaves_nothing(deploy: CommandLine, delay_s: float) -> None:
    port = free_port()
    with deploy.running(*up_scripted("impatient", port, "SCRIPTED_PAUSE=0,300")) as command:
        command.wait_for("started `")
        command.send(signal.SIGINT)
        time.sleep(delay_s)
        code, output = command.end(signal.SIGINT)
    assert code == 130 or (code == -signal.SIGINT and "error: interrupted" in output), output  # it had given up by then
    is_clean(deploy, "impatient", port)


def test_server_of_killed_up_command_is_found(deploy: CommandLine) -> None:
    port = free_port()
    with deploy.running(*up_scripted("orphan", port, "SCRIPTED_PAUSE=0,300")) as command:
        command.wait_for("started `")
        command.send(signal.SIGKILL)
        command.wait()
    assert status(deploy, "orphan")["status"] == "running"
    assert deploy.run("down", "orphan").returncode == 0
    is_clean(deploy, "orphan", port)


def test_occupied_port_names_its_holder(deploy: CommandLine) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", free_port()))
        holder.listen()
        refused = deploy.run(*up_scripted("late", holder.getsockname()[1], "SCRIPTED_PAUSE=0"))
    assert refused.returncode == 4
    assert f"pid {os.getpid()}" in refused.stderr
    assert "late" not in deploy.run("status").stdout


COMPILES = 2.0  # seconds; the stage is observed at intervals


@pytest.fixture
def kernels(tmp_path: Path) -> list[str]:
    """The words by which the scripted engine compiles a kernel into an empty cache."""
    settings = (f"env.TRITON_CACHE_DIR={tmp_path / 'triton'}", f"env.SCRIPTED_COMPILE={COMPILES}")
    return [word for setting in settings for word in ("--set", setting)]


def test_fresh_host_reuses_kernels_saved_by_verified_server(
    deploy: CommandLine, tmp_path: Path, engine_home: Home, kernels: list[str]
) -> None:
    """The scripted engine stands in for one with a GPU: real sglang compiles nothing on a CPU.

    With `enable-torch-compile`, sglang 0.5.14 ends on a CPU without AMX: its attention backend there has no graphs.
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
    compiled = (cache / "KEY/kernel.cubin").read_bytes()  # it says when

    deploy.run("down", "kernels")
    shutil.rmtree(cache)
    again = deploy.run(*start)
    assert again.returncode == 0, again.stderr
    assert (cache / "KEY/kernel.cubin").read_bytes() == compiled
    assert "compiled kernels: 1 files added" in again.stderr

    deploy.run("down", "kernels")
    shutil.rmtree(cache)
    elsewhere = archive.rename(tmp_path / "from-elsewhere.tar.gz")
    named = ["--set", f"engine.compiled_kernels={elsewhere}@{digest}"]
    assert deploy.run(*start, *named).returncode == 0
    assert (cache / "KEY/kernel.cubin").read_bytes() == compiled

    changed = deploy.run(*start, "--replace", "--set", f"engine.compiled_kernels={elsewhere}@sha256:{'0' * 64}")
    assert (changed.returncode, f"has the digest {digest}" in changed.stderr) == (9, True), changed.stderr
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nSCRIPTED_VERSIONS=\'{{"torch": "2.10.0"}}\' exec {SCRIPTED} "$@"\n')
    python.chmod(0o755)
    changes = ("--set", f"engine.python={python}", "--set", "flags.chunked-prefill-size=1024")
    other = deploy.run(*start, "--replace", *named, *changes)
    assert other.returncode == 9
    assert "`engine.torch`: compiled for `2.9.1+cpu`, this start has `2.10.0`" in other.stderr
    assert "`plan`: compiled for" in other.stderr
    assert status(deploy, "kernels")["health"] == "healthy"  # the old server still serves
