"""The output of `docker inspect` as the state of a server. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.runtimes.base import ServerState, Status

_NEVER: Final = "0001-01-01T00:00:00Z"
_ALIVE: Final = frozenset({"running", "restarting", "paused"})

NOT_FOUND: Final = ServerState(status=Status.NOT_FOUND)


def server_state(inspected: Mapping[str, Any]) -> ServerState:  # Any: JSON of the Docker API
    """Return the state of a server from its container's inspection (Docker Engine API 1.41, `ContainerInspect`)."""
    state = inspected["State"]
    alive = state["Status"] in _ALIVE
    started = state["StartedAt"] != _NEVER
    return ServerState(
        status=Status.RUNNING if alive else Status.EXITED,
        exit_code=state["ExitCode"] if started and not alive else None,
        restarts=inspected["RestartCount"],
        started_at=state["StartedAt"] if started else None,
        ended_at=state["FinishedAt"] if started and not alive else None,
        detail=_running(inspected) if alive else _ended(inspected),
    )


def _again(inspected: Mapping[str, Any]) -> str:
    limit = inspected["HostConfig"]["RestartPolicy"]["MaximumRetryCount"]
    return f"restarted {inspected['RestartCount']} of {limit} times"


def _running(inspected: Mapping[str, Any]) -> str:
    state = inspected["State"]
    if state["Status"] == "running":
        return _again(inspected) if inspected["RestartCount"] else ""
    return f"{state['Status']}, {_again(inspected)}, last exit code {state['ExitCode']}"


def _ended(inspected: Mapping[str, Any]) -> str:
    state = inspected["State"]
    if state["Status"] == "created":
        return "created and never started"
    if state["OOMKilled"]:
        return f"killed: the host ran out of memory, {_again(inspected)}"
    if state["ExitCode"] == 0:
        return "exited with code 0"
    if inspected["RestartCount"] >= inspected["HostConfig"]["RestartPolicy"]["MaximumRetryCount"]:
        return f"reached the restart limit ({_again(inspected)}), last exit code {state['ExitCode']}"
    # Docker restarts a failed container unless it was asked to stop, so an exit below the limit was requested. A clean
    # stop of sglang exits with 137: after the drain it kills its own process tree (0.5.14,
    # tokenizer_manager.py:2612-2656).
    return f"stopped by a command or with the Docker daemon, exit code {state['ExitCode']}"
