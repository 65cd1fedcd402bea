"""Several servers behind one URL: waiting until their gateway counts all of them, and what only it can fail at.

Each server behind it is proved by itself; the gateway has no rank, cache or counter that the smoke test could look at.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Final

import httpx

from orchestrator.core.console import Progress
from orchestrator.core.errors import NotReadyError
from orchestrator.core.polling import poll_until
from orchestrator.engine import endpoints
from orchestrator.engine.client import EngineClient, Timeouts
from orchestrator.engine.gateway import GENERATION, LIVENESS, READINESS, read_readiness
from orchestrator.engine.requests import completion_body
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError, read_completion_event
from orchestrator.runtimes.base import ServerState, Status
from orchestrator.verify.checks import PROMPT
from orchestrator.verify.report import CheckOutcome, CheckResult, cause_of, failed, passed, skipped, warning
from orchestrator.verify.target import Target

_STARTS: Final = 300.0  # seconds; smg 1.13.0 takes 3, and half a minute where ten programs want each core
_WITHIN: Final = 60.0  # seconds; smg 1.13.0 counts two servers that serve 0.2 s after its own start
_POLL: Final = 0.1
_ASKED: Final = Timeouts(connect=2, idle=5, total=5)
_TOKENS: Final = 32

Check = Callable[[EngineClient, Target, int], CheckOutcome]


def count_workers(url: str, *, transport: httpx.BaseTransport | None = None) -> int:
    """How many servers a gateway counts as healthy; 0 where it counts none, or does not answer."""
    try:
        with EngineClient(url, key=None, limits=_ASKED, transport=transport) as gateway:
            return read_readiness(gateway.get(READINESS))
    except (NoResponseError, UnexpectedResponseError):  # 503 where there is none
        return 0


def generates(url: str) -> bool:
    """Return whether a gateway in disaggregation mode generates a token with a pair that it selects; needs no key."""
    try:
        with EngineClient(url, key=None) as gateway:
            return gateway.status("GET", GENERATION) == httpx.codes.OK
    except NoResponseError:
        return False


def _answers(url: str) -> bool:
    try:
        with EngineClient(url, key=None, limits=_ASKED) as gateway:
            return gateway.status("GET", LIVENESS) == httpx.codes.OK
    except (NoResponseError, UnexpectedResponseError):
        return False


def wait_for_gateway(url: str, *, servers: int, state: Callable[[], ServerState]) -> None:
    """Wait until it counts so many servers. Raises NotReadyError where it ends, or does not for too long.

    One that has no place to run yet is waited for, as long as something that comes by itself may start it.
    """
    progress = Progress()
    poll_until(lambda now: now.status is not Status.PENDING or now.unschedulable, state, within=inf, pause=_POLL)

    def require_alive() -> None:
        now = state()
        if now.unschedulable:
            raise NotReadyError(f"the gateway cannot start: {now.detail}")
        if now.status not in {Status.RUNNING, Status.PENDING}:
            raise NotReadyError(f"the gateway exited: {now.exit_summary}", hint="see its log: `deploy logs`")

    def is_there() -> bool:
        require_alive()
        return _answers(url)

    def look() -> int:
        require_alive()
        return count_workers(url)

    def shown(counted: int) -> None:
        progress.update("the gateway", transient=f"{counted}/{servers} servers")

    try:
        if not poll_until(bool, is_there, within=_STARTS, pause=_POLL, meanwhile=shown):
            raise NotReadyError(
                f"the gateway does not answer within {_STARTS:.0f} s", hint="see its log: `deploy logs`"
            )
        counted = poll_until(lambda found: found == servers, look, within=_WITHIN, pause=_POLL, meanwhile=shown)
    finally:
        progress.done()
    if counted != servers:
        raise NotReadyError(
            f"the gateway counts {counted} of {servers} servers after {_WITHIN:.0f} s",
            hint="another process may be using its port or the port of a replica",
        )


def gateway_checks(target: Target, servers: int) -> list[CheckResult]:
    """What is asked of the gateway itself, in the order it was asked."""
    limits = Timeouts(connect=5, idle=180, total=180)  # as for the servers: prompts of the smoke test
    with EngineClient(target.url, key=target.api_key, limits=limits) as client:
        return list(_carried_out(client, target, servers))


def _carried_out(client: EngineClient, target: Target, servers: int) -> Iterator[CheckResult]:
    for name, check in _CHECKS:
        begun = time.monotonic()
        try:
            conclusion = check(client, target, servers)
        except (NoResponseError, UnexpectedResponseError) as error:
            conclusion = failed(str(error))
        yield CheckResult(
            name=f"gateway: {name}",
            verdict=conclusion.verdict,
            evidence=conclusion.evidence,
            seconds=round(time.monotonic() - begun, 3),
            causes=conclusion.causes,
        )


def _all_counted(client: EngineClient, _: Target, servers: int) -> CheckOutcome:
    """A server is left out: the gateway serves on without it, and says nothing."""
    counted = read_readiness(client.get(READINESS))
    conclude = passed if counted == servers else failed
    return conclude(f"{counted} of {servers} servers healthy")


def _right_model(client: EngineClient, target: Target, _: int) -> CheckOutcome:
    """It lists another model, or none."""
    names = client.models()
    return (passed if target.served_name in names else failed)(f"serves `{', '.join(names)}`")


def _key_required(client: EngineClient, target: Target, _: int) -> CheckOutcome:
    """The servers are closed and the gateway, which has their key, is open."""
    if not target.api_key:
        return skipped("the profile has no API key")
    body = json.dumps(completion_body(target.served_name, PROMPT, tokens=1)).encode()
    status = client.post_status(endpoints.COMPLETIONS, body, with_key=False)
    return passed("401 without the key") if status == 401 else failed(f"a request without the key is answered {status}")


def _stream_agrees(client: EngineClient, target: Target, _: int) -> CheckOutcome:
    """It cuts, doubles or holds back what a server streams; or a server answers otherwise than the others."""
    body = completion_body(target.served_name, PROMPT, tokens=_TOKENS, ignore_eos=True)
    whole = _text([json.dumps(client.post(endpoints.COMPLETIONS, body)).encode()])
    events = list(client.events(endpoints.COMPLETIONS, body))
    if not whole or _text(events) != whole:
        conclude = warning if whole and target.nondeterministic else failed
        causes = tuple(cause_of(each) for each in target.nondeterministic)
        return conclude(f"streaming gives {len(_text(events))} characters, not streaming {len(whole)}", causes=causes)
    if len(events) < 2:
        return failed(f"{_TOKENS} tokens came in {len(events)} chunk: the response is not streamed")
    return passed(f"the same {len(whole)} characters, in {len(events)} chunks")


def _text(events: Sequence[bytes]) -> str:
    return "".join(read_completion_event(event)[0] for event in events)


_CHECKS: Final[Sequence[tuple[str, Check]]] = (
    ("replicas registered", _all_counted),
    ("served model", _right_model),
    ("API key required", _key_required),
    ("streaming matches", _stream_agrees),
)
