"""When a process of a server is killed, `status` reports it and `down` leaves nothing behind."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest
from deployment import Deployment, Deployments
from leftovers import EXIT_TIMEOUT_S, programs_of
from rounds import attack
from server_pids import pids_of, record_of
from waits import wait_for

from orchestrator.core.procfs import read_process
from orchestrator.runtimes.supervisor.record import write_record

pytestmark = pytest.mark.attack

ROUNDS = 24  # each process in each stage
# `sleep` has called setsid.
PROCESSES = ("server", "sglang::scheduler", "sglang::detokenizer", "sleep", "supervisor", "all")
FATAL = {"server", "sglang::scheduler", "sglang::detokenizer", "supervisor", "all"}
# A typical daemon: the leader of its session has exited.
DAEMON = """
import os, time
os.fork() and os._exit(0)
os.setsid()
os.fork() and os._exit(0)
print(os.getpid(), flush=True)
for stream in (0, 1, 2): os.close(stream)
time.sleep(600)
"""


def test_killed_server_processes_are_reported_and_cleaned_up(deployments: Deployments) -> None:
    stages = (while_starting, while_serving, while_stopping, with_other_process)

    def kill(number: int, rng: Random) -> Iterator[str]:
        deployment, stage = deployments(number), stages[number % len(stages)]
        process = PROCESSES[number // len(stages) % len(PROCESSES)]
        yield from (f"{process} {stage.__name__}: {fault}" for fault in stage(deployment, process, rng))
        yield from (f"{process} {stage.__name__}: {fault}" for fault in deployment.leftovers())

    attack("kills of processes", ROUNDS, kill)


def kill(deployment: Deployment, process: str) -> None:
    for pid in pids_of(deployment, process):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def while_starting(deployment: Deployment, process: str, rng: Random) -> Iterator[str]:
    starting = deployment.start(*deployment.up("SCRIPTED_PAUSE=0.2", "SCRIPTED_DETACHED=1"))
    wait_for(lambda: bool(pids_of(deployment, process)))
    time.sleep(rng.uniform(0.0, 0.8))
    kill(deployment, process)
    ended = starting.wait()
    yield from ended.faults(*((6, 7, 8) if process in FATAL else (0,)))
    if ended.code == 0:
        yield from deployment.run("down", deployment.name).faults(0)


def while_serving(deployment: Deployment, process: str, rng: Random) -> Iterator[str]:
    up = deployment.up(*(["SCRIPTED_DETACHED=1"] if process == "sleep" or rng.random() < 0.5 else []))
    yield from deployment.run(*up).faults(0)
    kill(deployment, process)
    yield from status_faults(deployment, "running" if process == "sleep" else "exited")
    yield from deployment.run("down", deployment.name).faults(0)


def while_stopping(deployment: Deployment, process: str, rng: Random) -> Iterator[str]:
    yield from deployment.run(*deployment.up("SCRIPTED_DEAF=1", "SCRIPTED_DETACHED=1")).faults(0)
    stopping = deployment.start("down", deployment.name)
    time.sleep(rng.uniform(0.0, 2.5))
    kill(deployment, process)
    yield from stopping.wait().faults(0)


def with_other_process(deployment: Deployment, process: str, _: Random) -> Iterator[str]:
    """Forge a record in which an unrelated daemon has the pids of the dead supervisor and server."""
    yield from deployment.run(*deployment.up()).faults(0)
    kill(deployment, "all")
    wait_for(lambda: not list(programs_of(deployment.home)))
    daemon = subprocess.run([sys.executable, "-c", DAEMON], capture_output=True, text=True, check=True)
    pid = int(daemon.stdout)
    try:
        yield from forge_record(deployment, pid, leads=process in {"supervisor", "all"})
        yield from deployment.run("down", deployment.name).faults(0, 4, 6)
        if read_process(pid) is None:
            yield "an unrelated process was killed"
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def forge_record(deployment: Deployment, pid: int, *, leads: bool) -> Iterator[str]:
    """Set the server in the record to another process, and the supervisor to the leader of its session if `leads`."""
    newest, other = record_of(deployment), read_process(pid)
    if newest is None or other is None:
        yield "no record, or no other process"
        return
    run_dir, record = newest
    boot, _, began = record.supervisor.split("/")
    supervisor = f"{boot}/{other.session}/{began}" if leads else record.supervisor
    write_record(run_dir, dataclasses.replace(record, supervisor=supervisor, server=f"{boot}/{pid}/{began}"))


def status_faults(deployment: Deployment, wanted: str) -> Iterator[str]:
    """Yield a problem unless `status` soon reports the wanted state."""
    deadline, status = time.monotonic() + EXIT_TIMEOUT_S, ""
    while time.monotonic() < deadline:
        ended = deployment.run("status", "--json")
        yield from ended.faults(0)
        servers = json.loads(ended.stdout or "[]")
        status = next((server["status"] for server in servers if server["name"] == deployment.name), "")
        if status == wanted:
            return
    yield f"status is {status!r}, not {wanted!r}"
