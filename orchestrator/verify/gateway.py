"""The wait for a gateway, and its checks.

Each replica has its own smoke test; the gateway has no rank, cache or counter that a smoke test could check.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Final

import httpx

from orchestrator.core.console import Progress
from orchestrator.core.errors import NotReadyError
from orchestrator.core.polling import poll_until
from orchestrator.engine import endpoints
from orchestrator.engine.client import DEFAULT_TIMEOUTS, EngineClient, Timeouts
from orchestrator.engine.gateway import GENERATION, LIVENESS, READINESS, read_readiness
from orchestrator.engine.requests import completion_body
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError, read_completion_event
from orchestrator.runtimes.base import ServerState, Status
from orchestrator.verify.checks import PROMPT, check_key_required
from orchestrator.verify.report import CheckOutcome, CheckResult, differs, failed, passed
from orchestrator.verify.smoke import run_check
from orchestrator.verify.target import Target

_STARTS: Final = 300.0  # seconds; smg 1.13.0 starts in 3, or in 30 if ten programs compete for each core
_TIMEOUT: Final = 60.0  # seconds; smg 1.13.0 counts two ready servers 0.2 s after its own start
_POLL: Final = 0.1
_TIMEOUTS: Final = Timeouts(connect=2, idle=5, total=5)
_TOKENS: Final = 32


def count_workers(url: str) -> int:
    """Return the number of workers that a gateway counts as healthy; 0 if it does not answer."""
    try:
        with EngineClient(url, key=None, limits=_TIMEOUTS) as gateway:
            return read_readiness(gateway.get(READINESS))
    except (NoResponseError, UnexpectedResponseError):  # 503 if no worker is healthy
        return 0


def generates(url: str) -> bool:
    """Return whether a gateway in disaggregation mode generates a token with a pair of its choice; needs no key."""
    return _is_ok(url, GENERATION, DEFAULT_TIMEOUTS)


def is_alive(url: str) -> bool:
    """Return whether a gateway responds to its liveness check."""
    return _is_ok(url, LIVENESS, _TIMEOUTS)


def _is_ok(url: str, path: str, limits: Timeouts) -> bool:
    try:
        with EngineClient(url, key=None, limits=limits) as gateway:
            return gateway.status("GET", path) == httpx.codes.OK
    except (NoResponseError, UnexpectedResponseError):
        return False


def wait_for_gateway(url: str, *, name: str, servers: int, state: Callable[[], ServerState]) -> None:
    """Wait until the gateway counts `servers` healthy workers; the time while it is pending does not count.

    Raises NotReadyError if the gateway exits, is unschedulable or exceeds a timeout.
    """
    poll_until(lambda now: now.status is not Status.PENDING or now.unschedulable, state, timeout=inf, interval=_POLL)

    log_hint = f"`deploy logs {name}` shows its log"

    def probe(ask: Callable[[str], int]) -> int:
        now = state()
        if now.unschedulable:
            raise NotReadyError(f"the gateway cannot start: {now.detail}", hint="change its node or its resources")
        if now.status not in {Status.RUNNING, Status.PENDING}:
            raise NotReadyError(f"the gateway exited: {now.exit_summary}", hint=log_hint)
        return ask(url)

    def show(healthy: int) -> None:
        progress.update("the gateway", transient=f"{int(healthy)}/{servers} servers")

    with Progress() as progress:
        if not poll_until(bool, partial(probe, is_alive), timeout=_STARTS, interval=_POLL, on_tick=show):
            raise NotReadyError(f"the gateway does not answer within {_STARTS:.0f} s", hint=log_hint)
        count = partial(probe, count_workers)
        healthy = poll_until(lambda number: number == servers, count, timeout=_TIMEOUT, interval=_POLL, on_tick=show)
    if healthy != servers:
        hint = "another process may be using its port or the port of a replica"
        raise NotReadyError(f"the gateway counts {healthy} of {servers} servers after {_TIMEOUT:.0f} s", hint=hint)


def gateway_checks(target: Target, servers: int) -> list[CheckResult]:
    """Return the results of the checks of a gateway, in the order they ran."""
    limits = Timeouts(connect=5, idle=180, total=180)  # as for a server: the prompt is from the smoke test
    with EngineClient(target.url, key=target.api_key, limits=limits) as client:
        return [
            run_check("gateway: replicas registered", lambda: _all_counted(client, servers)),
            run_check("gateway: served model", lambda: _right_model(client, target)),
            run_check("gateway: API key required", lambda: check_key_required(client, target)),
            run_check("gateway: streaming matches", lambda: _stream_agrees(client, target)),
        ]


def _all_counted(client: EngineClient, servers: int) -> CheckOutcome:
    """Check that every replica is registered: a gateway that lacks one keeps serving and reports nothing."""
    healthy = read_readiness(client.get(READINESS))
    conclude = passed if healthy == servers else failed
    return conclude(f"{healthy} of {servers} servers healthy")


def _right_model(client: EngineClient, target: Target) -> CheckOutcome:
    """Check that the gateway lists the model."""
    names = client.models()
    return (passed if target.served_name in names else failed)(f"serves `{', '.join(names)}`")


def _stream_agrees(client: EngineClient, target: Target) -> CheckOutcome:
    """Check that streams pass unchanged: not cut, duplicated or held back, with the same answer from all replicas."""
    body = completion_body(target.served_name, PROMPT, tokens=_TOKENS, ignore_eos=True)
    text, reason = _answer([json.dumps(client.post(endpoints.COMPLETIONS, body)).encode()])
    events = list(client.events(endpoints.COMPLETIONS, body))
    streamed, stream_reason = _answer(events)
    if not text or streamed != text:
        evidence = f"streaming gives {len(streamed)} characters, not streaming {len(text)}"
        complete = text and streamed and stream_reason == reason
        return differs(evidence, target.nondeterministic if complete else ())
    if len(events) < 2:
        return failed(f"{_TOKENS} tokens came in {len(events)} chunk: the response is not streamed")
    return passed(f"the same {len(text)} characters, in {len(events)} chunks")


def _answer(events: Sequence[bytes]) -> tuple[str, str | None]:
    """Return the text and the finish reason, which is None if the answer was cut off."""
    read = [read_completion_event(event) for event in events]
    return "".join(text for text, _ in read), next((reason for _, reason in read if reason), None)
