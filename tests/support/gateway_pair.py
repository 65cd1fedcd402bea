"""Two replicas behind the real gateway, as processes; the scripted engine by default."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from command_line import CommandLine
from cpu_server import CpuEngine, processes_in
from ports import free_port
from steady_load import client_of
from waits import wait_for

from orchestrator.core.paths import Home
from orchestrator.core.procfs import find_process
from orchestrator.runtimes.process.runtime import ProcessRuntime
from orchestrator.runtimes.supervisor.record import read_record
from orchestrator.servers.group import Server, servers_of

ENGINE = Path(__file__).with_name("scripted_engine.py")
KEY = "sk-of-the-clients-alone"
NAME = "pair"


@dataclass(frozen=True)
class Pair:
    """Starts and finds two replicas and their gateway in a home."""

    deploy: CommandLine
    port: int
    python: Path = ENGINE

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ports(self) -> tuple[int, int]:
        return self.port + 8, self.port + 16

    @property
    def server(self) -> Server:
        return self.servers[0]

    @property
    def servers(self) -> tuple[Server, ...]:
        runtime = ProcessRuntime(self.deploy.home)
        return servers_of(runtime, runtime.find(NAME))

    def settings(self) -> list[str]:
        own = [f"server.port={self.port}", "replicas=2", f"engine.python={self.python}", "timeouts.termination_grace=1"]
        return [*own, "model.questions=null", "server.api_key_env=PAIR_KEY"]

    def words(self, *more: str, name: str = NAME) -> list[str]:
        """Return the `up` command line, with `more` settings."""
        settings = (word for setting in (*self.settings(), *more) for word in ("--set", setting))
        return ["up", "cpu-tiny", "--name", name, *settings]

    def up(self, *settings: str, replace: bool = False) -> None:
        ended = self.deploy.run(*self.words(*settings), *(["--replace"] if replace else []))
        assert ended.returncode == 0, ended.stderr

    def pid(self, unit: Server) -> int:
        """Return the pid of a replica or of the gateway."""
        record = read_record(Path(unit.log_dir))
        assert record is not None
        assert record.server is not None
        process = find_process(record.server)
        assert process is not None
        return process.pid

    def client(self) -> httpx.Client:
        return client_of(self.url, KEY)

    def with_real(self, engine: CpuEngine) -> "Pair":
        """Return this pair with real sglang as its first replica."""
        self.deploy.home.models.symlink_to(engine.home.models)
        python = self.deploy.home.root / "python"
        python.write_text(
            f'#!/bin/sh\ncase " $* " in *" --port {self.ports[0]} "*) exec {engine.python} "$@";; esac\n'
            f'exec {ENGINE} "$@"\n'
        )
        python.chmod(0o755)
        return replace(self, python=python)

    def nothing_left(self) -> None:
        """Assert that no process of any run is left."""
        runs = [run for run in (self.deploy.home.runs / NAME).glob("*-*") if run.is_dir()]
        wait_for(lambda: not any(processes_in(folder) for run in runs for folder in (run, *run.glob("*-[1-9]"))))
        assert self.servers == ()


@contextmanager
def pair_in(folder: Path) -> Iterator[Pair]:
    """Yield a pair in a new home below `folder`, with the user's environments; stop it at the end of the block."""
    home = Home(folder / "home")
    home.root.mkdir()
    users = Home.from_environment()
    users.environments.mkdir(parents=True, exist_ok=True)
    home.environments.symlink_to(users.environments)
    made = Pair(CommandLine(home, {"PAIR_KEY": KEY, "DOCKER_HOST": "unix:///nonexistent"}), free_port())
    try:
        yield made
    finally:
        for server in made.servers:
            server.stop(grace=0)
