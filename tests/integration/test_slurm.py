"""Tests of `deploy up --runtime slurm` on a real Slurm with the scripted engine: the lifecycle, and failures.

`test_slurm_nodes.py` starts real sglang.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import CommandLine, Running, processes_with
from cpu_server import CpuEngine
from ports import free_port
from proc_files import environ_of, proc_files
from slurm_cluster import GPU_TYPE, NODES, SlurmCluster, SlurmEngine
from user_profiles import add_profiles
from waits import wait_for

from orchestrator.core.errors import StartError
from orchestrator.core.paths import Home
from orchestrator.runtimes.slurm.jobs import cancel, signal_server

pytestmark = pytest.mark.engine
SCRIPTED = Path(__file__).parents[1] / "support" / "scripted_engine.py"
KEY = "wJ4-an-API-key-of-the-test"


@pytest.fixture
def deploy(slurm_home: Home, cpu_engine: CpuEngine, slurm_cluster: SlurmCluster) -> Iterator[CommandLine]:
    """Return `deploy`; cancel all jobs after the test."""
    assert cpu_engine.python.exists()
    add_profiles(slurm_home.root)
    yield CommandLine(slurm_home, {"THE_KEY": KEY})
    for number in slurm_cluster.queue():
        slurm_cluster.run("scancel", number)
    slurm_cluster.wait_for_nodes()
    wait_for(lambda: not slurm_cluster.queue())


@pytest.fixture
def gpu_python(tmp_path: Path) -> Path:
    """Return the scripted engine as an interpreter that reports a torch for GPUs."""
    python, versions = tmp_path / "python", '{"sglang": "0.5.16", "cuda": "13.0"}'
    python.write_text(f"#!/bin/sh\nSCRIPTED_VERSIONS='{versions}' exec {SCRIPTED} \"$@\"\n")
    python.chmod(0o755)
    return python


def words(profile: str, name: str, *settings: str) -> list[str]:
    """Return the command that starts a server with an API key on Slurm."""
    server = ("server.api_key_env=THE_KEY", f"server.port={free_port()}", "timeouts.termination_grace=3")
    sets = [word for setting in (*server, *settings) for word in ("--set", setting)]
    return ["up", profile, "--runtime", "slurm", "--name", name, *sets]


def scripted(name: str, *settings: str) -> list[str]:
    return words("cpu-tiny", name, f"engine.python={SCRIPTED}", "model.questions=null", *settings)


def with_gpus(name: str, python: Path, *settings: str) -> list[str]:
    """Return the command that starts a server on both GPUs of a node."""
    layout = ("layout.tp=2", f"slurm.gpu_type={GPU_TYPE}", "hardware.gpus=2", "slurm.time_limit=30")
    return words("h200-tiny", name, f"engine.python={python}", "model.questions=null", *layout, *settings)


def status(deploy: CommandLine, name: str) -> dict[str, Any]:
    [server] = [entry for entry in json.loads(deploy.run("status", "--json").stdout) if entry["name"] == name]
    assert isinstance(server, dict)
    return server


@contextmanager
def occupied(cluster: SlurmCluster, nodes: Sequence[str]) -> Iterator[None]:
    """Occupy all GPUs of these nodes with other jobs."""
    words = ["sbatch", "--parsable", f"--gres=gpu:{GPU_TYPE}:2", "--output=/dev/null", "--wrap=sleep 600"]
    jobs = [cluster.run(*words, f"--nodelist={node}").strip() for node in nodes]
    wait_for(lambda: cluster.run("squeue", "--noheader", "--states=running", "--format=%i").split() >= jobs)
    yield
    for job in jobs:
        cluster.run("scancel", job)


def test_rejected_sglang_arguments_submit_no_job(deploy: CommandLine, slurm_cluster: SlurmCluster) -> None:
    """The nodes share the home with the environment, so the arguments are checked before a job is submitted."""
    done = deploy.run(*words("cpu-tiny", "rejected", "flags.enable-eplb=true"))
    assert done.returncode == 3, done.stderr
    assert "error: sglang 0.5.14 rejects arguments of `cpu-tiny`" in done.stderr
    assert "--> --set flags.enable-eplb" in done.stderr
    assert not slurm_cluster.queue()
    assert not list(deploy.home.runs.glob("rejected/*/job.sh"))


def test_slurm_job_full_lifecycle_leaks_no_key(deploy: CommandLine, slurm_cluster: SlurmCluster) -> None:
    up = scripted("cluster")
    done = deploy.run(*up, "--json")
    assert done.returncode == 0, done.stderr
    assert re.search(r"job \d+ is running on n[01]", done.stderr)
    [job] = slurm_cluster.queue()
    run = Path(status(deploy, "cluster")["run_dir"])
    texts = [
        slurm_cluster.run("scontrol", "show", "job", job),
        slurm_cluster.run("scontrol", "write", "batch_script", job, "-"),
    ]

    again = deploy.run(*up)
    assert (again.returncode, "is already up" in again.stderr) == (0, True)
    verified = deploy.run("smoke", "cluster", "--json")
    assert (verified.returncode, json.loads(verified.stdout)["ok"]) == (0, True), verified.stderr
    assert deploy.run("ask", "cluster", "Once upon a time", "--tokens", "8").stdout.strip()
    assert deploy.run("status", "cluster").returncode == 0  # the node reports that all ranks run
    logged = deploy.run("logs", "cluster").stdout
    assert "fired up" in logged
    assert "api_key='[REDACTED]'" in logged

    texts += [done.stdout, done.stderr, logged, *processes_with("sglang"), *processes_with("slurm.job")]
    state = slurm_cluster.folder / "state"
    texts += [path.read_text(errors="replace") for root in (run, state) for path in root.rglob("*") if path.is_file()]
    assert not any(KEY in text for text in texts)

    assert deploy.run("down", "cluster").returncode == 0
    assert not slurm_cluster.queue()
    assert deploy.run("down", "cluster").returncode == 6


def test_job_reuses_kernels_compiled_by_another_job(deploy: CommandLine, gpu_python: Path, tmp_path: Path) -> None:
    """The nodes share the home directory, here a folder; the submitting host needs no GPU."""
    cache = tmp_path / "triton"
    up = with_gpus("kernels", gpu_python, f"env.TRITON_CACHE_DIR={cache}", "env.SCRIPTED_COMPILE=1")
    first = deploy.run(*up)
    assert first.returncode == 0, first.stderr
    assert "saved 1 files of compiled kernels" in first.stderr, first.stderr
    [compiled] = [path for path in cache.rglob("*") if path.is_file()]
    content = compiled.read_bytes()
    assert deploy.run("down", "kernels").returncode == 0
    shutil.rmtree(cache)
    [archive] = deploy.home.compiled_kernels.glob("*.tar.gz")
    moved = archive.rename(tmp_path / "kernels.tar.gz")
    digest = hashlib.sha256(moved.read_bytes()).hexdigest()
    again = deploy.run(*up, "--set", f"engine.compiled_kernels={moved}@sha256:{digest}")
    assert again.returncode == 0, again.stderr
    assert "compiled kernels: 1 files added" in again.stderr, again.stderr
    assert compiled.read_bytes() == content


def test_ctrl_c_cancels_pending_job_with_reported_reason(
    deploy: CommandLine, slurm_cluster: SlurmCluster, gpu_python: Path
) -> None:
    up = with_gpus("queued", gpu_python)
    with occupied(slurm_cluster, NODES), deploy.running(*up) as first:
        first.wait_for(r"job \d+ is pending: Resources")
        report = status(deploy, "queued")
        assert (report["status"], report["url"], "Resources" in report["detail"]) == ("pending", "", True)
        pending = deploy.run("status", "queued")
        assert (pending.returncode, "is pending: " in pending.stderr) == (6, True)
        replacement = deploy.run(*up)
        assert (replacement.returncode, f"pid {first.pid}" in replacement.stderr) == (6, True)
        code, output = first.end(signal.SIGINT)
        assert (code, "Traceback" in output) == (130, False), output
        assert len(slurm_cluster.queue()) == len(NODES)
        timed_out = deploy.run(*up, "--set", "slurm.queue_timeout=1")
        assert (timed_out.returncode, "; gave up after 1 s" in timed_out.stderr) == (6, True)
        assert len(slurm_cluster.queue()) == len(NODES)


@pytest.mark.slow
def test_pending_job_of_killed_up_starts_and_is_found(
    deploy: CommandLine, slurm_cluster: SlurmCluster, gpu_python: Path
) -> None:
    up = with_gpus("patient", gpu_python)
    with occupied(slurm_cluster, NODES), deploy.running(*up) as command:
        command.wait_for("pending: Resources")
        command.send(signal.SIGKILL)
        command.wait()
        replacement = deploy.run(*up)
        assert (replacement.returncode, "is pending:" in replacement.stderr) == (6, True)
        other = deploy.run(*with_gpus("patient", gpu_python))
        assert (other.returncode, "another plan" in other.stderr) == (6, True)
    wait_for(lambda: status(deploy, "patient")["status"] == "running")
    wait_for(lambda: deploy.run("smoke", "patient").returncode == 0)
    environ = environ_of(f"--port {status(deploy, 'patient')['url'].rpartition(':')[2]} ")
    assert environ["ROCR_VISIBLE_DEVICES"] == "0,1"
    assert deploy.run("down", "patient").returncode == 0
    assert not slurm_cluster.queue()


def test_pending_job_is_cancelled_by_down(deploy: CommandLine, slurm_cluster: SlurmCluster) -> None:
    with occupied(slurm_cluster, NODES), deploy.running(*scripted("waiting")) as command:
        command.wait_for("job .* is pending")
        command.send(signal.SIGKILL)
        command.wait()
        assert deploy.run("down", "waiting").returncode == 0
        assert len(slurm_cluster.queue()) == len(NODES)


def test_preflight_validates_job_with_slurm(deploy: CommandLine, slurm_cluster: SlurmCluster, gpu_python: Path) -> None:
    up = with_gpus("checked", gpu_python)
    good = deploy.run("preflight", *up[1:4], *up[6:])
    assert good.returncode == 0, good.stdout
    assert "slurm-wlm 22.05" in good.stdout
    for setting, reason in (
        ("slurm.gpu_type=h100", "Requested node configuration is not available"),
        ("slurm.partition=nope", "Invalid partition name specified"),
        ("slurm.sbatch_options=[--constraint=nothing]", "Invalid feature specification"),
    ):
        bad = deploy.run("preflight", *up[1:4], *up[6:], "--set", setting)
        assert (bad.returncode, reason in " ".join(bad.stdout.split())) == (4, True), bad.stdout
    assert not slurm_cluster.queue(), "a job was submitted"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["slurm.partition=short", "slurm.time_limit=30"], "PartitionTimeLimit"),
        (["slurm.sbatch_options=[--constraint=nothing]"], "Invalid feature specification"),
        (["slurm.sbatch_options=[--mem=900G]"], "node configuration is not available"),
    ],
)
def test_unschedulable_job_is_rejected_with_hint(slurm_engine: SlurmEngine, settings: list[str], reason: str) -> None:
    with pytest.raises(StartError) as caught:
        slurm_engine.start("never", ("sleep", "600"), *settings)
    assert reason in caught.value.message
    assert "sinfo" in caught.value.hint
    assert not slurm_engine.cluster.queue()
    assert slurm_engine.runtime.find("never") == ()


@pytest.mark.slow
def test_node_failure_is_reported_and_requeued_server_restarts(
    deploy: CommandLine, slurm_cluster: SlurmCluster
) -> None:
    for name, requeue in (("lost", "false"), ("again", "true")):
        up = deploy.run(*scripted(name, "slurm.exclusive=false", f"slurm.requeue={requeue}"))
        assert up.returncode == 0, up.stderr
    before = status(deploy, "again")
    path = Path(before["run_dir"], "job-start.json")
    assert path.stat().st_mode & 0o777 == 0o600
    assert not Path(status(deploy, "lost")["run_dir"], "job-start.json").exists()

    with deploy.running("watch", "again", "--json") as watch:  # the watch does not restart a job that Slurm requeues
        assert event(watch) == ("watching", False)
        slurm_cluster.lose_node("n0")
        lost = status(deploy, "lost")
        assert (lost["status"], lost["detail"]) == ("exited", "its node failed on n0 (NODE_FAIL)")
        pending = status(deploy, "again")
        assert (pending["status"], pending["restarts"], "requeued" in pending["detail"]) == ("pending", 1, True)
        assert event(watch) == ("waiting", True)
        requeued = slurm_cluster.queue()[0]
        slurm_cluster.run("scontrol", "update", f"jobid={requeued}", "starttime=now")  # instead of in two minutes
        assert event(watch) == ("runtime-restarted", True)
        assert deploy.run("smoke", "again").returncode == 0
        assert (before["url"][:16], status(deploy, "again")["url"][:16]) == ("http://127.0.0.1", "http://127.0.0.2")

    for name in ("lost", "again"):
        assert deploy.run("down", name).returncode == 0
    assert not path.exists()
    slurm_cluster.start_node("n0")


def test_ctrl_c_during_load_leaves_no_job(deploy: CommandLine, slurm_cluster: SlurmCluster) -> None:
    with deploy.running(*scripted("cut", "env.SCRIPTED_PAUSE=0,300")) as command:
        command.wait_for("connecting ranks")
        code, output = command.end(signal.SIGINT)
    assert (code, "Traceback" in output) == (130, False), output
    assert not slurm_cluster.queue()


@pytest.mark.slow
def test_externally_cancelled_job_is_reported(deploy: CommandLine, slurm_cluster: SlurmCluster) -> None:
    up = scripted("ended")
    assert deploy.run(*up).returncode == 0
    slurm_cluster.run("scancel", *slurm_cluster.queue())
    wait_for(lambda: not slurm_cluster.queue())
    report = status(deploy, "ended")
    assert (report["status"], report["detail"]) == ("exited", "its job was cancelled (CANCELLED)")
    assert "its job was cancelled" in deploy.run("smoke", "ended").stderr
    assert deploy.run("down", "ended").returncode == 0
    assert deploy.run("down", "ended").returncode == 6


def test_job_failing_to_start_reports_last_output(deploy: CommandLine, slurm_cluster: SlurmCluster) -> None:
    failed = deploy.run(*scripted("pythonless", "slurm.python=/nowhere/python"))
    assert failed.returncode == 7, failed.stderr
    assert re.search(r"exit code 127: .*/nowhere/python: not found", failed.stderr)
    assert not slurm_cluster.queue()


def test_rendered_job_runs_manually_with_listed_variables(
    deploy: CommandLine, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    port, key = free_port(), tmp_path / "key.yaml"
    sets = ("server.api_key_env=THE_KEY", f"server.port={port}", "slurm.exclusive=false")
    words = [word for setting in sets for word in ("--set", setting)]
    done = deploy.run("render", "cpu-tiny", "--runtime", "slurm", *words, "--output", str(tmp_path / "job"))
    assert done.returncode == 0, done.stderr
    key.write_text(json.dumps({"api-key": KEY}))  # the scripted engine reads only JSON
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} {SCRIPTED} "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    values = {"DEPLOY_HOME": str(deploy.home.root), "PATH": path, "API_KEY_FILE": str(key)}
    variables = re.findall(r"^#   ([A-Z_]+) ", (tmp_path / "job" / "job.sh").read_text(), re.MULTILINE)
    environ = {**os.environ, **slurm_cluster.environ, **{name: values[name] for name in variables}}
    subprocess.run(["sbatch", "job.sh"], cwd=tmp_path / "job", env=environ, check=True)

    def status_code() -> int:
        with suppress(httpx.TransportError):
            headers = {"Authorization": f"Bearer {KEY}"}
            return httpx.get(f"http://127.0.0.1:{port}/v1/models", headers=headers, trust_env=False).status_code
        return 0

    wait_for(lambda: status_code() == 200)
    assert slurm_cluster.run("squeue", "--noheader", "--format=%j").split() == ["cpu-tiny"]


@pytest.mark.usefixtures("deploy")
def test_cancelling_ended_job_is_not_an_error(slurm_cluster: SlurmCluster) -> None:
    """In about one of five attempts, the node forgets the job before the controller does; this test needs several."""
    words = ("sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null", "--wrap=exec sleep 60")
    jobs = [slurm_cluster.run(*words).strip() for _ in range(6)]
    wait_for(lambda: len(slurm_cluster.run("squeue", "--noheader", "--states=running", "--format=%i").split()) == 6)

    for job in jobs:
        for _ in range(3):
            signal_server(job)
        cancel(job)
    wait_for(lambda: not slurm_cluster.queue())


def test_unreachable_controller_is_not_a_missing_server(deploy: CommandLine, slurm_cluster: SlurmCluster) -> None:
    assert deploy.run(*scripted("served")).returncode == 0
    unreachable = slurm_cluster.folder / "unreachable.conf"
    text = (slurm_cluster.folder / "slurm.conf").read_text()
    unreachable.write_text(re.sub(r"SlurmctldPort=.*", f"SlurmctldPort={free_port()}\nMessageTimeout=1", text))
    for verb in ("status", "down"):
        result = deploy.run(verb, "served", SLURM_CONF=str(unreachable))
        assert result.returncode == 4, result.stderr
        assert "cannot query slurm: `squeue` failed: Unable to contact" in result.stderr
    assert deploy.run("down", "served").returncode == 0


def scheduler_of(url: str) -> int:
    """Return the pid of the scheduler of the server at a URL; a title replaces its command line and environment."""
    lines = dict(proc_files("cmdline"))
    port = b"--port\0" + url.rpartition(":")[2].encode() + b"\0"
    [server] = [pid for pid, line in lines.items() if port in line and b"sglang.launch_server" in line.split(b"\0")]
    return next(pid for pid in children_of(server) if lines[pid].startswith(b"sglang::scheduler"))


def children_of(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


def nodes_in_use(cluster: SlurmCluster) -> str:
    return cluster.run("squeue", "--noheader", "--format=%N").strip()


def event(watch: Running) -> tuple[str, bool]:
    """Return the next event, and whether the watch sends an alert for it."""
    report = json.loads(watch.line())
    return report["event"], report["alert"]


def wait_for_restart(watch: Running) -> str:
    """Wait until the server is restarted; return the reported cause of its death."""
    events = [json.loads(watch.line())]
    while events[-1]["event"] != "restarted":
        events.append(json.loads(watch.line()))
        assert events[-1]["event"] in {"unhealthy", "died", "restarted"}, events
    [died] = [entry for entry in events if entry["event"] == "died"]
    assert (died["alert"], events[-1]["alert"]) == (True, True)
    return str(died["detail"])


@pytest.mark.slow
def test_watch_restarts_dead_job_for_any_cause(deploy: CommandLine, slurm_cluster: SlurmCluster) -> None:
    """The causes are a killed scheduler, a cancelled job and a lost node. After `down`, the watch restarts nothing."""
    up = deploy.run(*scripted("kept", "slurm.exclusive=false"))
    assert up.returncode == 0, up.stderr
    with deploy.running("watch", "kept", "--json") as watch:
        assert event(watch) == ("watching", False)
        jobs = slurm_cluster.queue()
        os.kill(scheduler_of(status(deploy, "kept")["url"]), signal.SIGKILL)
        assert "killed by SIGKILL" in wait_for_restart(watch)

        jobs += slurm_cluster.queue()
        slurm_cluster.run("scancel", jobs[-1])
        cause = wait_for_restart(watch)  # while Slurm completes the job, only the record has a cause
        assert "its job was cancelled (CANCELLED)" in cause or "killed by SIG" in cause

        jobs += slurm_cluster.queue()
        assert len(set(jobs)) == 3
        node = nodes_in_use(slurm_cluster)
        slurm_cluster.lose_node(node)
        assert f"its node failed on {node} (NODE_FAIL)" in wait_for_restart(watch)
        assert nodes_in_use(slurm_cluster) not in {"", node}
        slurm_cluster.start_node(node)

        assert deploy.run("down", "kept").returncode == 0
        last = event(watch)
        assert last in {("stopped", True), ("waiting", True)}  # the watch may check the server during `down`
        assert last[0] == "stopped" or event(watch) == ("stopped", True)
        assert watch.end(signal.SIGINT)[0] == 130
    assert not slurm_cluster.queue()
