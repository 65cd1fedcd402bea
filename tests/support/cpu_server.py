"""Start real sglang servers on the CPU."""

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from ports import free_port
from waits import TIMEOUT

from orchestrator.core.logs.lines import LogTail
from orchestrator.core.paths import Home
from orchestrator.core.procfs import Process, server_processes
from orchestrator.core.secrets import Secret
from orchestrator.engine.log import StartupLogParser
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load, render_artifacts
from orchestrator.render.artifacts import Artifacts
from orchestrator.runs.run_dir import open_run
from orchestrator.runtimes.base import Runtime, Status, Unit
from orchestrator.runtimes.process.runtime import ProcessRuntime
from orchestrator.runtimes.supervisor.record import read_record
from orchestrator.verify.readiness import StartingServer, wait_until_ready


@dataclass(frozen=True, kw_only=True)
class CpuServer:
    """A started server, with its runtime and plan."""

    handle: Unit
    runtime: Runtime
    plan: Plan

    @property
    def url(self) -> str:
        return self.handle.url

    @property
    def log(self) -> Path:
        return Path(self.handle.run_dir, "server.log")

    def wait_until_ready(self) -> None:
        """Wait until the server generates a token; fail with the end of its log if it exits or takes too long."""
        deadline = time.monotonic() + TIMEOUT
        while not (listens(self.url) and healthy(self.url)):
            running = self.runtime.state(self.handle).status is Status.RUNNING
            if not running or time.monotonic() > deadline:
                lines = list(self.runtime.logs(self.handle, follow=False))
                raise AssertionError("not ready:\n" + "\n".join(lines[-30:]))
            time.sleep(0.2)

    def complete(self, prompt: str = "the server answers", **options: object) -> httpx.Response:
        """Request one greedy completion."""
        body = {"model": self.plan.model.served_name, "prompt": prompt, "max_tokens": 8, "temperature": 0, **options}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=TIMEOUT, trust_env=False)


@dataclass(frozen=True, kw_only=True)
class CpuEngine:
    """The home with the model, and a Python that has sglang."""

    home: Home
    python: Path

    def artifacts(self, *overrides: str, argv: tuple[str, ...] = ()) -> Artifacts:
        """Render `cpu-tiny` on a free port; `argv` replaces the whole command."""
        plan = load("cpu-tiny", overrides=[f"server.port={free_port()}", *overrides]).plan
        artifacts = render_artifacts(plan)
        argv = argv or (str(self.python), *artifacts.command.argv[1:])
        return replace(artifacts, command=replace(artifacts.command, argv=argv))

    def start(
        self,
        name: str,
        *overrides: str,
        artifacts: Artifacts | None = None,
        secrets: Mapping[str, Secret] | None = None,
    ) -> CpuServer:
        """Start `cpu-tiny`, or the given artifacts, without waiting for readiness."""
        artifacts, runtime = artifacts or self.artifacts(*overrides), ProcessRuntime(self.home)
        run = open_run(self.home, name, artifacts.plan)
        handle = runtime.start(artifacts, name=name, run_dir=run.path, secrets=secrets or {})
        return CpuServer(handle=handle, runtime=runtime, plan=artifacts.plan)


def processes_of(handle: Unit) -> tuple[Process, ...]:
    return processes_in(Path(handle.run_dir))


def processes_in(run_dir: Path) -> tuple[Process, ...]:
    """Return the running processes of the server that was started in this run directory."""
    record = read_record(run_dir)
    return server_processes(record.markers) if record else ()


def wait_by_its_log(server: CpuServer) -> list[str]:
    """Wait for readiness as `up` does; return the startup stages in the log."""
    starting = StartingServer(
        url=server.url,
        served_name=server.plan.model.served_name,
        api_key=None,
        log=LogTail(server.log),
        state=lambda: server.runtime.state(server.handle),
    )
    wait_until_ready(starting, progress_deadline=240)
    reader = StartupLogParser()
    for line in LogTail(server.log)():
        reader.feed(line)
    return reader.names


def listens(url: str) -> bool:
    """Return whether the port accepts connections. A bare socket is faster than httpx, which reads certificates."""
    address = httpx.URL(url)
    with socket.socket() as probe:
        return probe.connect_ex((address.host, address.port)) == 0


def healthy(url: str) -> bool:
    """Return whether the health check passes, for which the server generates a token."""
    try:
        return httpx.get(f"{url}/health", timeout=30, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
