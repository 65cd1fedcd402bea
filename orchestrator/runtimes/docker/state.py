"""The output of `docker inspect` as the state of a server. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from orchestrator.engine.log import lost_another_rank
from orchestrator.runtimes.base import ServerState, Status
from orchestrator.runtimes.replicas import failed_rank
from orchestrator.runtimes.supervisor.record import describe_exit

_NEVER: Final = "0001-01-01T00:00:00Z"
_ALIVE: Final = frozenset({"running", "restarting", "paused"})


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
        detail=_detail(inspected),
    )


def state_of_ranks(ranks: Sequence[tuple[str, ServerState]], log: Callable[[int], Iterable[str]]) -> ServerState:
    """Return the state of a server on several nodes from the host and state of each rank, rank 0 first.

    The server has exited when one rank has: rank 0 notices an exit within 7 s (0.5.14), but not a lost host. `log`
    returns the log of a rank.
    """
    (_, first), *_ = ranks
    named = [(f"rank {rank} on {host}", state) for rank, (host, state) in enumerate(ranks)]
    alive, ended = list[str](), dict[int, str]()
    for rank, (name, state) in enumerate(named):
        if state.status in {Status.EXITED, Status.NOT_FOUND}:
            ended[rank] = state.ended_at or ""
        elif state.detail:
            alive.append(f"{name}: {state.detail}")
    if not ended:
        return replace(first, detail="; ".join(alive))
    removed = {rank for rank, (_, state) in enumerate(named) if state.status is Status.NOT_FOUND}
    rank, after = failed_rank(ended, {rank for rank in ended.keys() - removed if lost_another_rank(log(rank))})
    name, state = named[rank]
    reason = "its container was removed" if rank in removed else f"{state.detail}{after}"
    detail = "; ".join([f"{name} exited first: {reason}", *alive])
    return replace(state, status=Status.EXITED, started_at=first.started_at, detail=detail)


def _detail(inspected: Mapping[str, Any]) -> str:
    state, restarts = inspected["State"], inspected["RestartCount"]
    if state["Status"] == "running" and not restarts:
        return ""
    limit = inspected["HostConfig"]["RestartPolicy"]["MaximumRetryCount"]
    restart_count, code = f"restarted {restarts} of {limit} times", state["ExitCode"]
    match state["Status"]:
        case "running":
            detail = restart_count
        case "restarting" | "paused" as status:
            detail = f"{status}, {restart_count}, last exit code {code}" if limit else status
        case "created":
            detail = "created and never started"
        case _ if state["OOMKilled"]:
            detail = f"killed: the host ran out of memory, {restart_count}"
        case _ if code == 0:
            detail = "exited with code 0"
        case _ if not limit:
            detail = describe_exit(code)
        case _ if restarts >= limit:
            detail = f"reached the restart limit ({restart_count}), last exit code {code}"
        # Docker restarts a failed container unless it was asked to stop, so an exit below the limit was requested. A
        # clean stop of sglang exits with 137: after the drain it kills its own process tree (0.5.14,
        # tokenizer_manager.py:2612-2656).
        case _:
            detail = f"stopped by a command or with the Docker daemon, exit code {code}"
    return detail
