"""What a runtime is: five verbs over the one thing it starts. The registry stands in `orchestrator.runtimes`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from orchestrator.core.secret import Secret
from orchestrator.render.artifacts import Artifacts


class Status(StrEnum):
    """What has become of a server's process or container."""

    RUNNING = "running"
    EXITED = "exited"
    ABSENT = "absent"


@dataclass(frozen=True, kw_only=True)
class Handle:
    """One started server: enough to find it again from another terminal, and nothing secret."""

    runtime: str
    name: str
    profile: str
    plan_digest: str
    url: str  # base URL as reached from this machine
    run_dir: str  # absolute path of the run directory on this machine
    identity: str  # container id, or pid and start time


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """The truth about a handle, as the runtime sees it (whether it answers is for health to say)."""

    status: Status
    exit_code: int | None
    restarts: int
    started_at: str | None  # ISO 8601, UTC
    detail: str  # what else the runtime knows: a reason, a signal


class Runtime(Protocol):
    """A way to run a server."""

    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Handle:
        """Start a server. Raises NameTakenError for a name in use, StartError, and leaves nothing behind then.

        `secrets` are variables for the server by name; they reach it without standing in an argv or a readable file.
        """

    def find(self, name: str | None = None) -> tuple[Handle, ...]:
        """The servers of this runtime (of that name), running or exited, sorted by name."""

    def state(self, handle: Handle) -> ServerState:
        """What has become of it; never raises for "gone"."""

    def logs(self, handle: Handle, *, follow: bool) -> Iterator[str]:
        """The server's log line by line, without line ends, as the server wrote it (callers redact)."""

    def stop(self, handle: Handle, *, grace: float) -> None:
        """Stop it with everything it started, within `grace` seconds and a bit; idempotent."""

    def close(self) -> None:
        """Let go of connections this runtime holds; servers run on."""
