"""The output of `deploy up`, `restart` and `rollback`."""

import sys
from dataclasses import dataclass, fields
from typing import Any, Final

from orchestrator.core.console import info, note, terminal_width
from orchestrator.core.json_output import JsonOutput
from orchestrator.servers.group import Server
from orchestrator.servers.start.request import UpResult
from orchestrator.verify.report import SmokeReport


@dataclass(frozen=True, kw_only=True)
class ServerOutput:
    """A running server or replica: its URL from this host, on its own host, and the command of a tunnel to it."""

    runtime: str
    name: str
    profile: str
    plan_digest: str
    url: str
    run_dir: str
    runtime_id: str
    service_url: str
    forward_command: str
    replicas: "tuple[ServerOutput, ...]"
    gateway_dir: str

    @staticmethod
    def fields(server: Server) -> dict[str, Any]:
        """Return the values of the fields."""
        replicas = tuple(ServerOutput(**ServerOutput.fields(replica)) for replica in server.replicas)
        return {field.name: getattr(server, field.name) for field in fields(ServerOutput)} | {"replicas": replicas}


@dataclass(frozen=True, kw_only=True)
class UpOutput(ServerOutput):
    """A running server; `ready_seconds` and `smoke` are null if it ran before."""

    already_up: bool
    ready_seconds: float | None
    smoke: SmokeReport | None


UP: Final = JsonOutput(UpOutput)


def show_up(done: UpResult, *, json: bool) -> None:
    """Print the URL of the server, and its smoke test if it was started now."""
    if json:
        output, smoke = ServerOutput.fields(done.server), done.smoke
        UP.show(UpOutput(**output, already_up=smoke is None, ready_seconds=done.seconds, smoke=smoke))
        return
    server, prefix = done.server, "already " if done.smoke is None else ""
    if done.smoke is not None:
        info(done.smoke.to_table(width=terminal_width(sys.stderr)))
    url = f"{server.service_url}, inside its network" if server.service_url else server.url
    info(f"`{server.name}` is {prefix}up at {url} (model `{done.served_name}`)")
    if server.forward_command:
        note(f"to reach it from this host: `{server.forward_command}`")
