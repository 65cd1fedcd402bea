"""Waiting for a scripted server, with a clock that advances only in `sleep`."""

import io
import re
from collections.abc import Callable, Iterator

import httpx
import pytest

from orchestrator.core.console import Progress
from orchestrator.core.errors import NotReadyError, ProfileError
from orchestrator.core.secrets import Secret
from orchestrator.engine.server_args import ArgumentRejection
from orchestrator.runtimes.base import ServerState, Status
from orchestrator.verify.readiness import StartingServer, wait_until_ready

LOADING = ["server_args=ServerArgs(api_key='sk-secret-0123')", "[2026-07-02 10:14:31] Load weight begin."]
READY = ["Uvicorn running on http://127.0.0.1:30000", "The server is fired up and ready to roll!"]


class Clock:
    """A clock that advances only in `sleep`."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Server:
    """A scripted server: new log lines by second, and state and responses from given seconds on."""

    def __init__(self, *, log: dict[int, list[str]], health: Callable[[float], int] = lambda _: 200) -> None:
        self.clock = Clock()
        self.log, self.health = dict(log), health
        self.exits_at, self.exit_code, self.restarts_at = float("inf"), 1, float("inf")
        self.end = Status.EXITED
        self.serves = "glm-5.2"
        self.requests: list[httpx.Request] = []
        self.progress = io.StringIO()

    @property
    def second(self) -> float:
        return self.clock.now - 100

    def lines(self) -> Iterator[str]:
        for due in sorted(due for due in self.log if due <= self.second + 1e-6):
            yield from self.log.pop(due)

    def state(self) -> ServerState:
        has_exited = self.second >= self.exits_at
        return ServerState(
            status=self.end if has_exited else Status.RUNNING,
            exit_code=self.exit_code if has_exited else None,
            restarts=int(self.second >= self.restarts_at),
            started_at=None,
            detail="OOMKilled" if has_exited or self.second >= self.restarts_at else "",
        )

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.path == "/health":
            status = self.health(self.second)
            if not status:
                raise httpx.ConnectError("refused")
            return httpx.Response(status)
        return httpx.Response(200, json={"data": [{"id": self.serves}]})

    def wait(
        self,
        *,
        deadline: float = 60,
        timeout: float | None = None,
        api_key: Secret | None = None,
        expected_seconds: float = 60,
    ) -> float:
        starting = self.starting = StartingServer(
            url="http://127.0.0.1:30000",
            served_name="glm-5.2",
            api_key=api_key,
            log=self.lines,
            state=self.state,
            expected_seconds=expected_seconds,
        )
        return wait_until_ready(
            starting,
            progress_deadline=deadline,
            timeout=timeout,
            progress=Progress(self.progress, clock=self.clock),
            clock=self.clock,
            sleep=self.clock.sleep,
            transport=httpx.MockTransport(self.answer),
        )


def test_ready_requires_log_line_and_health_response() -> None:
    server = Server(log={0: LOADING, 10: READY}, health=lambda second: 200 if second >= 12 else 503)
    assert server.wait() == pytest.approx(12, abs=0.5)


def test_startup_stages_are_timed() -> None:
    server = Server(log={0: LOADING, 10: READY}, health=lambda second: 200 if second >= 12 else 503)
    seconds = server.wait()
    stages = server.starting.stages
    assert stages["loading weights"] == pytest.approx(10, abs=0.5)
    assert stages["answering"] == pytest.approx(2, abs=0.5)
    assert sum(stages.values()) == pytest.approx(seconds, abs=0.5)


def test_overdue_start_is_reported() -> None:
    server = Server(log={0: LOADING, 30: ["Loading safetensors: | 1/2 ["], 55: READY})
    server.wait(expected_seconds=10)
    lines = re.sub(r"\b5\d s", "N s", server.progress.getvalue()).splitlines()
    assert lines[:3] == [
        "loading weights",
        "loading weights, longer than the 10 s estimated",
        "loading weights 1/2, longer than the 10 s estimated  N s",
    ]


def test_progress_is_printed_in_plain_lines() -> None:
    server = Server(log={0: LOADING, 1: ["Loading safetensors: | 1/2 ["], 2: READY})
    server.wait()
    assert re.sub(r"\d+\.\d s", "N s", server.progress.getvalue()).splitlines() == [
        "loading weights",
        "ready after N s",
    ]


def test_graph_capture_progress_is_one_line() -> None:
    """`up` once wrote 45 lines about graph capture."""
    bar = {5 + number: [f"Capturing batches (bs=8):  5%|..| {number}/20 ["] for number in range(1, 21)}
    server = Server(log={0: LOADING, 5: ["Capture target verify CUDA graph begin."], **bar, 40: READY})
    server.wait()
    assert re.sub(r"\d+(\.\d)? s", "N s", server.progress.getvalue()).splitlines() == [
        "loading weights",
        "capturing target verify graphs",
        "capturing target verify graphs 20/20  N s",
        "ready after N s",
    ]


def test_health_response_alone_is_not_ready() -> None:
    server = Server(log={0: LOADING})  # another server answers on the port while ours loads
    with pytest.raises(NotReadyError, match="no progress for 60 s while loading weights"):
        server.wait()
    assert server.requests == []  # the other server is not queried


def test_log_line_alone_is_not_ready() -> None:
    server = Server(log={0: LOADING + READY}, health=lambda _: 0)
    with pytest.raises(NotReadyError, match=r"while answering; http://[^ ]*/health: no connection: refused"):
        server.wait()


def test_different_served_model_is_not_ready() -> None:
    server = Server(log={0: LOADING + READY})
    server.serves = "llama"
    with pytest.raises(NotReadyError, match=r"it serves `llama`, not `glm-5\.2`"):
        server.wait()


def test_exited_server_ends_the_wait_immediately() -> None:
    server = Server(log={0: LOADING, 3: ["RuntimeError: boom"]})
    server.exits_at = 3
    with pytest.raises(NotReadyError) as caught:
        server.wait(deadline=3600)
    assert caught.value.message == "the server exited with code 1 while loading weights, after 3 s (OOMKilled)"
    assert caught.value.details.splitlines()[-1] == "RuntimeError: boom"
    assert server.second < 3.5


def test_removed_server_is_not_reported_as_exited() -> None:
    server = Server(log={0: LOADING})
    server.exits_at, server.end = 3, Status.NOT_FOUND
    with pytest.raises(NotReadyError, match="the server was removed by another program while loading weights"):
        server.wait(deadline=3600)


@pytest.mark.parametrize("second", [0, 5])
def test_restarted_server_ends_the_wait_immediately(second: int) -> None:
    """Also before the first poll."""
    server = Server(log={0: LOADING})
    server.restarts_at = second
    with pytest.raises(NotReadyError, match=r"exited while .* and was restarted \(OOMKilled\)$"):
        server.wait(deadline=3600)
    assert server.second < second + 0.5


def test_used_port_ends_the_wait_immediately() -> None:
    bind_error = (
        "ERROR: [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use"
    )
    server = Server(log={0: LOADING, 2: [bind_error]})
    with pytest.raises(NotReadyError, match="is in use by another process"):
        server.wait(deadline=3600)
    assert server.second < 2.5


def test_slow_start_with_progress_is_awaited() -> None:
    shards = {50 * n: [f"Loading safetensors: | {n}/40 ["] for n in range(1, 41)}
    server = Server(log={0: LOADING, **shards, 2040: READY})
    assert server.wait(deadline=60) == pytest.approx(2040, abs=1)


def test_no_progress_ends_the_wait() -> None:
    server = Server(log={0: LOADING, 30: ["Loading safetensors: | 1/40 ["]})
    with pytest.raises(NotReadyError, match="no progress for 60 s while loading weights 1/40"):
        server.wait(deadline=60)
    assert server.second == pytest.approx(90, abs=0.5)


def test_health_probes_of_other_clients_are_not_progress() -> None:
    probes = {n: [f'INFO:     10.0.0.7:{n} - "GET /health HTTP/1.1" 503 Service Unavailable'] for n in range(1, 300)}
    server = Server(log={0: LOADING, **probes})
    with pytest.raises(NotReadyError, match="no progress for 60 s"):
        server.wait(deadline=60)
    assert server.second == pytest.approx(60, abs=0.5)


def test_logged_health_failures_are_not_progress() -> None:
    failures = {n: ["Health check failed. Server couldn't get a response from detokenizer"] for n in range(1, 300)}
    server = Server(log={0: LOADING + READY, **failures}, health=lambda _: 503)
    with pytest.raises(NotReadyError, match="`/health`: 503"):
        server.wait(deadline=60)
    assert server.second == pytest.approx(60, abs=0.5)


def test_user_timeout_ends_a_progressing_start() -> None:
    server = Server(log={n: [f"line {n}"] for n in range(100)})
    with pytest.raises(NotReadyError, match="not ready within 20 s: still waiting"):
        server.wait(timeout=20)


def test_api_key_is_sent_but_never_shown() -> None:
    server = Server(log={0: LOADING + READY})
    server.serves = "llama"
    with pytest.raises(NotReadyError) as caught:
        server.wait(api_key=Secret("sk-secret-0123"))
    assert server.requests[-1].headers["Authorization"] == "Bearer sk-secret-0123"
    assert "sk-secret-0123" not in caught.value.details + caught.value.message
    assert "[REDACTED]" in caught.value.details


def test_error_details_contain_last_log_lines() -> None:
    server = Server(log={0: [f"line {n}" for n in range(100)]})
    with pytest.raises(NotReadyError) as caught:
        server.wait()
    assert caught.value.details.splitlines() == [f"line {n}" for n in range(60, 100)]


def test_rejected_arguments_are_a_profile_error() -> None:
    """A pod's argument check rejects them; otherwise its server would restart repeatedly with the same arguments."""
    rejection = ArgumentRejection(
        kind="AssertionError",
        message="AssertionError",
        location="server_args.py:5383",
        line="assert self.ep_size > 1",
        options=("enable-eplb",),
    )
    pending = ServerState(
        status=Status.PENDING,
        exit_code=None,
        restarts=0,
        started_at=None,
        detail="sglang rejected its arguments",
        unschedulable=True,
        rejection=rejection,
    )

    class RejectedServer(Server):
        def state(self) -> ServerState:
            return pending

    with pytest.raises(ProfileError, match=r"sglang rejected arguments of `glm-5\.2`") as caught:
        RejectedServer(log={}).wait()
    [problem] = caught.value.problems_or_self()
    assert (problem.message, problem.location) == (rejection.text, "flags.enable-eplb")
