"""`deploy watch` restarts a server after every kind of death, also if the watch itself was killed."""

import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from deployment import Deployment, Deployments
from forked import Command
from leftovers import listens
from rounds import attack
from server_pids import pids_of
from waits import wait_for

pytestmark = pytest.mark.attack

DEATHS = 6  # one for each way
WAYS = ("server", "stopped", "watch", "sglang::scheduler", "supervisor", "sglang::detokenizer")
HANGS = {"stopped": "server", "sglang::detokenizer": "sglang::detokenizer"}  # parts that get SIGSTOP, not SIGKILL
MAX_KIB = 30 << 10  # resident memory of a watch


class Watched:
    """A server and its current watch."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.watch: Command = self._start()

    def records(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.watch.stdout.splitlines()]

    def events(self) -> list[str]:
        return [event["event"] for event in self.records()]

    def wait_for(self, *wanted: str, times: int = 1) -> None:
        wait_for(lambda: sum(event in wanted for event in self.events()) >= times)

    def die(self, way: str) -> Iterator[str]:
        """Kill the server in this way and wait for the restart."""
        restarts = self.events().count("restarted")
        process_name, number = (HANGS[way], signal.SIGSTOP) if way in HANGS else (way, signal.SIGKILL)
        for pid in pids_of(self.deployment, "server" if way == "watch" else process_name):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if way == "watch":
            self.wait_for("died", times=self.events().count("died") + 1)
            self.watch.send(signal.SIGKILL)
            self.watch.wait()
            self.watch = self._start()
            self.wait_for("watching", "restarted")
        else:
            with traffic(self.deployment.port):
                self.wait_for("restarted", times=restarts + 1)
        runs = sorted(path.name for path in self.deployment.home.glob("runs/*/*-*"))
        if (event := self.records()[-1])["run"] != runs[-1]:
            yield f"reported run {event['run']}, not {runs[-1]}"
        if not listens(self.deployment.port):
            yield "the port is closed"

    def resident_kib(self) -> int:
        lines = Path(f"/proc/{self.watch.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

    def _start(self) -> Command:
        return self.deployment.start("watch", self.deployment.name, "--json")


@contextmanager
def traffic(port: int) -> Iterator[None]:
    """Send requests with a timeout of one second for the length of the block."""
    done = threading.Event()
    body = json.dumps({"model": "tiny", "prompt": "once upon a time", "max_tokens": 8})

    def ask() -> None:
        while not done.wait(0.5):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
            with suppress(OSError, http.client.HTTPException), closing(connection):
                connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                connection.getresponse().read()

    client = threading.Thread(target=ask)
    client.start()
    try:
        yield
    finally:
        done.set()
        client.join()


def test_watch_recovers_every_death_without_leftovers(deployments: Deployments) -> None:
    deployment = deployments(0)
    restarting = [
        word for key in ("unhealthy_after=3", "max_attempts=1000") for word in ("--set", f"restart_policy.{key}")
    ]
    assert not list(deployment.run(*deployment.up(*restarting)).faults(0))
    watched = Watched(deployment)
    watched.wait_for("watching")

    attack("deaths under watch", DEATHS, lambda number, _: die(watched, number), at_once=1)

    second = deployment.run("watch", deployment.name)
    assert not list(second.faults(6))
    assert f"another `deploy watch` is watching `{deployment.name}` (pid {watched.watch.pid})" in second.stderr
    assert watched.resident_kib() < MAX_KIB
    assert not list(deployment.run("down", deployment.name).faults(0))
    watched.wait_for("stopped")
    assert watched.events()[-1] == "stopped"
    watched.watch.send(signal.SIGINT)
    assert not list(watched.watch.wait().faults(130))
    assert deployment.leftovers(killed=True) == []


def die(watched: Watched, number: int) -> Iterator[str]:
    way = WAYS[number % len(WAYS)]
    yield from (f"{way}: {fault}" for fault in watched.die(way))
