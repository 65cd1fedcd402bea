"""Readiness: wait until log, health check and served model agree.

A healthy sglang server has generated a token (0.5.14, entrypoints/http_server.py:561-635). No signal suffices alone: a
server logged that it was ready, but its port was not published; an old server on the same port answered the health
check.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final

import httpx

from orchestrator.core.console import Progress, format_duration
from orchestrator.core.errors import DeployError, NotReadyError, Problem, ProfileError
from orchestrator.core.logs.lines import batches
from orchestrator.core.polling import poll_until
from orchestrator.core.secrets import Secret, redact
from orchestrator.engine import endpoints
from orchestrator.engine.client import EngineClient
from orchestrator.engine.log import StartupLogParser
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError
from orchestrator.engine.server_args import ArgumentRejection
from orchestrator.runtimes.base import ServerState, Status

POLL_SECONDS: Final = 0.2
_MIN_TIMEOUT: Final = 0.1  # shortest timeout of a request


@dataclass(frozen=True, kw_only=True)
class StartingServer:
    """A server that is starting.

    `log` returns the lines since its last call (a runtime's `tail`); `state` returns the state from the runtime.
    """

    url: str  # base URL as reached from this host
    served_name: str
    api_key: Secret | None
    log: Callable[[], Iterable[str]]
    state: Callable[[], ServerState]
    expected_seconds: float = inf  # until ready
    stages: dict[str, float] = field(default_factory=dict)  # seconds by stage, filled by the wait


def wait_until_ready(
    server: StartingServer,
    *,
    progress_deadline: float,
    timeout: float | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    transport: httpx.BaseTransport | None = None,
) -> float:
    """Wait until the server serves its model; return the seconds it took.

    The progress line shows when a start takes twice its estimate. Raises NotReadyError if the server exits, is
    restarted or is unschedulable, makes no progress for `progress_deadline` seconds, or exceeds `timeout` seconds; its
    details are the last log lines, without secrets. Raises ProfileError if the engine rejects its arguments.
    """
    with (
        EngineClient(server.url, key=server.api_key, transport=transport) as client,
        progress or Progress(clock=clock) as text,
    ):
        attempt = _Wait(server, client=client, clock=clock, end=inf if timeout is None else clock() + timeout)

        def on_tick(_: object) -> None:
            activity, stage = attempt.activity(server.expected_seconds)
            text.update(activity, stage=stage, transient=f"{attempt.elapsed:.0f} s")
            attempt.give_up_after(progress_deadline=progress_deadline, timeout=timeout)

        poll_until(bool, attempt.is_ready, timeout=inf, interval=POLL_SECONDS, on_tick=on_tick, sleep=sleep)
        seconds = attempt.elapsed
        text.update(f"ready after {seconds:.1f} s")
    return seconds


class _Wait:
    """The state of one wait."""

    def __init__(self, server: StartingServer, *, client: EngineClient, clock: Callable[[], float], end: float) -> None:
        self.reader = StartupLogParser()
        self._end = end  # by the clock; no request continues after this
        self._server, self._client, self._clock = server, client, clock
        self._start = self._moved = self._seen = clock()
        self._late = ""  # the stage in which the start exceeded twice its estimate
        self._answer = ""  # the last response of the health check
        self._pending = ""  # what a pending server waits for

    @property
    def elapsed(self) -> float:
        return self._clock() - self._start

    @property
    def _left(self) -> float:
        return max(self._end - self._clock(), _MIN_TIMEOUT)

    def is_ready(self) -> bool:
        """Check the process, the log and the port once; return whether the server is ready."""
        state = self._server.state()  # before the log, to read also the last lines of a server that has exited
        self._check_placement(state)
        self._count_stage()
        self._read_log()
        self._require_alive(state)
        if not (self.reader.is_ready and self._is_healthy()):
            return False
        self._require_expected_model()
        return True

    def activity(self, expected_seconds: float) -> tuple[str, str]:
        """Return the server's activity with its count, and its stage; the stage that exceeds the estimate says so."""
        if self._pending:
            return self._pending, self._pending
        stage = self.reader.stage
        if self.elapsed > 2 * expected_seconds:
            self._late = self._late or stage
        suffix = f", longer than the {format_duration(expected_seconds)} estimated" if stage == self._late else ""
        return f"{self.reader.text}{suffix}", f"{stage}{suffix}"

    def give_up_after(self, *, progress_deadline: float, timeout: float | None) -> None:
        activity = self.reader.text
        idle_seconds = self._clock() - self._moved
        answer = f"; {self._answer}" if self._answer else ""
        if idle_seconds >= progress_deadline:
            hint = "raise `timeouts.progress_deadline` in the profile to wait longer"
            raise self._error(f"no progress for {idle_seconds:.0f} s while {activity}{answer}", hint=hint)
        if timeout is not None and self.elapsed >= timeout:
            message = f"not ready within {timeout:g} s: still {activity}{answer}"
            raise self._error(message, hint="raise `--timeout`, or omit it")

    def _read_log(self) -> None:
        for text in batches(self._server.log()):
            was_ready = self.reader.is_ready
            alive = self.reader.feed(text)
            if self.reader.port_in_use:
                raise self._error(f"the port of `{self._server.url}` is in use by another process")
            if alive and not was_ready:  # later lines may come from our own health requests
                self._moved = self._clock()

    def _count_stage(self) -> None:
        """Add the time since the last poll to the stage that was current then."""
        now, stage = self._clock(), "pending" if self._pending else self.reader.stage
        self._server.stages[stage] = self._server.stages.get(stage, 0.0) + now - self._seen
        self._seen = now

    def _check_placement(self, state: ServerState) -> None:
        """Restart the deadline while the server is pending; raise NotReadyError if it is unschedulable.

        Raises ProfileError if the engine rejected arguments.
        """
        self._pending = state.detail if state.status is Status.PENDING else ""
        if state.rejection is not None:
            raise self._rejected_arguments(state.rejection)
        if not self._pending:
            return
        if state.unschedulable:
            hint = "fix that and repeat the command; with `--keep-failed`, the server stays and starts when it can"
            raise self._error(f"the server cannot start: {self._pending}", hint=hint)
        self._moved = self._clock()

    def _rejected_arguments(self, rejection: ArgumentRejection) -> DeployError:
        if rejection.is_of_node:
            hint = "use an image and a network that fit the node: `deploy show PROFILE` names both"
            return self._error(f"the server cannot use RDMA: {redact(rejection.text)}", hint=hint)
        location = ", ".join(".".join(key) for key in rejection.keys(rejection.options))
        problem = Problem(redact(rejection.text), location)
        return ProfileError(f"sglang rejected arguments of `{self._server.served_name}`", problems=[problem])

    def _require_alive(self, state: ServerState) -> None:
        activity = self.reader.text
        reason = f" ({state.detail})" if state.detail else ""
        if state.restarts:
            raise self._error(f"the server exited while {activity} and was restarted{reason}")
        if state.status is Status.NOT_FOUND:
            raise self._error(f"the server was removed by another program while {activity}")
        if state.status not in {Status.RUNNING, Status.PENDING}:
            code = "" if state.exit_code is None else f" with code {state.exit_code}"
            raise self._error(f"the server exited{code} while {activity}, after {self.elapsed:.0f} s{reason}")

    def _is_healthy(self) -> bool:
        try:
            status = self._client.health(timeout=self._left)
            answer = f"`{endpoints.HEALTH}`: {status}"
        except (NoResponseError, UnexpectedResponseError) as error:
            status, answer = 0, str(error)
        if answer != self._answer:
            self._answer, self._moved = answer, self._clock()
        return status == httpx.codes.OK

    def _require_expected_model(self) -> None:
        try:
            names = self._client.models(timeout=self._left)
        except (NoResponseError, UnexpectedResponseError) as error:
            raise self._error(f"`{self._server.url}` does not report its model: {error}") from error
        if self._server.served_name not in names:
            raise self._error(
                f"another server answers at `{self._server.url}`: it serves `{', '.join(names)}`, "
                f"not `{self._server.served_name}`",
                hint="stop it, or use another port: `--set server.port=PORT`",
            )

    def _error(self, message: str, *, hint: str = "") -> NotReadyError:
        lines = "\n".join(self.reader.last_lines) or "(the log is empty)"
        return NotReadyError(redact(message), hint=hint, details=redact(lines))
