"""The state of a server from inspections of its container, as Docker 20.10 returns them."""

from typing import Any

import pytest

from orchestrator.runtimes.base import NOT_FOUND, ServerState, Status
from orchestrator.runtimes.docker.state import server_state, state_of_ranks

NEVER = "0001-01-01T00:00:00Z"


def inspected(
    status: str, *, code: int = 0, restarts: int = 0, oom: bool = False, started: str = "T", limit: int = 3
) -> dict[str, Any]:
    return {
        "State": {"Status": status, "ExitCode": code, "OOMKilled": oom, "StartedAt": started, "FinishedAt": "E"},
        "RestartCount": restarts,
        "HostConfig": {"RestartPolicy": {"MaximumRetryCount": limit}},
    }


@pytest.mark.parametrize(
    ("container", "status", "code", "detail"),
    [
        (inspected("running"), Status.RUNNING, None, ""),
        (inspected("running", restarts=1), Status.RUNNING, None, "restarted 1 of 3 times"),
        (
            inspected("restarting", code=137, restarts=2),
            Status.RUNNING,
            None,
            "restarting, restarted 2 of 3 times, last exit code 137",
        ),
        (inspected("created", started=NEVER), Status.EXITED, None, "created and never started"),
        (inspected("exited"), Status.EXITED, 0, "exited with code 0"),
        (
            inspected("exited", code=1, restarts=3),
            Status.EXITED,
            1,
            "reached the restart limit (restarted 3 of 3 times), last exit code 1",
        ),
        (
            inspected("exited", code=137, oom=True, restarts=3),
            Status.EXITED,
            137,
            "killed: the host ran out of memory, restarted 3 of 3 times",
        ),
        (inspected("paused", limit=0), Status.RUNNING, None, "paused"),  # a rank, which Docker does not restart
        (inspected("exited", code=137, limit=0), Status.EXITED, 137, "killed by SIGKILL"),
        # a clean stop of sglang also exits with 137; Docker restarts only containers that it was not told to stop
        (
            inspected("exited", code=137),
            Status.EXITED,
            137,
            "stopped by a command or with the Docker daemon, exit code 137",
        ),
    ],
)
def test_state(container: dict[str, Any], status: Status, code: int | None, detail: str) -> None:
    state = server_state(container)
    assert (state.status, state.exit_code, state.detail) == (status, code, detail)


def test_container_never_started_has_no_start_time() -> None:
    assert server_state(inspected("created", started=NEVER)).started_at is None
    assert server_state(inspected("running")).started_at == "T"


def test_only_exited_container_has_end_time() -> None:
    assert server_state(inspected("exited")).ended_at == "E"
    assert server_state(inspected("running")).ended_at is None  # FinishedAt is that of its previous run
    assert server_state(inspected("created", started=NEVER)).ended_at is None


RUNNING = ServerState(status=Status.RUNNING, started_at="T0")
PAUSED = ServerState(status=Status.RUNNING, detail="paused")
UNREACHABLE = ServerState(status=Status.UNKNOWN, detail="cannot connect")


LOST_PEER = (
    "RuntimeError: [/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:3625"
)


def exited(time: str, detail: str) -> ServerState:
    return ServerState(status=Status.EXITED, exit_code=137, ended_at=time, detail=detail)


@pytest.mark.parametrize(
    ("states", "status", "detail"),
    [
        ((RUNNING, RUNNING), Status.RUNNING, ""),
        ((RUNNING, PAUSED), Status.RUNNING, "rank 1 on b: paused"),
        ((RUNNING, UNREACHABLE), Status.RUNNING, "rank 1 on b: cannot connect"),  # rank 0 may serve: its health decides
        ((RUNNING, exited("T2", "killed")), Status.EXITED, "rank 1 on b exited first: killed"),
        ((exited("T3", "killed"), exited("T2", "exit code 1")), Status.EXITED, "rank 1 on b exited first: exit code 1"),
        ((exited("T2", "killed"), exited("T3", "exit code 3")), Status.EXITED, "rank 0 on a exited first: killed"),
        (
            (exited("T2", "killed"), UNREACHABLE),
            Status.EXITED,
            "rank 0 on a exited first: killed; rank 1 on b: cannot connect",
        ),
        ((RUNNING, NOT_FOUND), Status.EXITED, "rank 1 on b exited first: its container was removed"),
    ],
)
def test_server_is_exited_when_any_rank_exits(
    states: tuple[ServerState, ServerState], status: Status, detail: str
) -> None:
    state = state_of_ranks(list(zip("ab", states, strict=True)), lambda _: ["Scheduler hit an exception:"])
    assert (state.status, state.detail) == (status, detail)


@pytest.mark.parametrize("lost", [0, 1])
def test_rank_that_lost_its_peer_is_not_the_cause(lost: int) -> None:
    """sglang 0.5.14 on two nodes: after rank 0's scheduler is killed, its main process exits later than rank 1."""
    logs = {lost: [LOST_PEER], 1 - lost: ["Subprocess scheduler_0 (pid=10561) crashed with exit code -9."]}
    ends = [exited("T2" if rank == lost else "T3", "killed") for rank in (0, 1)]
    ranks = list(zip("ab", ends, strict=True))
    failed = 1 - lost
    assert state_of_ranks(ranks, logs.__getitem__).detail == f"rank {failed} on {'ab'[failed]} exited first: killed"
    both = state_of_ranks(ranks, lambda _: [LOST_PEER])
    assert both.detail == f"rank {lost} on {'ab'[lost]} exited first: killed, after another rank had failed"
