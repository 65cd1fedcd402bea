"""Carrying the checks out, one after the other."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import httpx

from orchestrator.core.console import Progress
from orchestrator.core.polling import poll_until
from orchestrator.engine import endpoints
from orchestrator.engine.client import EngineClient, Timeouts
from orchestrator.engine.requests import generate_body
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError
from orchestrator.verify.checks import CHECKS, skip_reason
from orchestrator.verify.client import NotOfferedError, SmokeClient
from orchestrator.verify.report import CheckOutcome, CheckResult, SmokeReport, failed, skipped
from orchestrator.verify.target import Target

CONNECT_SECONDS: Final = 5.0
AT_ONCE_SECONDS: Final = 10.0  # half of what sglang gives the token of a health check
FIRST_SAMPLE_SECONDS: Final = 600.0  # 96 to 115 on one H100 or H200 (sglang 0.5.16)


def smoke_test(
    target: Target,
    *,
    faults: Callable[[], Sequence[str]] | None,
    seed: int | None = None,
    timeout: float = 180.0,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
    transport: httpx.BaseTransport | None = None,
) -> SmokeReport:
    """Check a ready server.

    `faults` gives the lines of the server's log that are known faults and did not stop it, read after everything else;
    None where there is no log. `timeout` is seconds for one request: the first ones after a start may compile kernels.
    Once the server no longer answers at all, the checks that are left fail without being tried.
    """
    limits = Timeouts(connect=min(CONNECT_SECONDS, timeout), idle=timeout, total=timeout)
    with (
        progress or Progress() as shown,
        EngineClient(target.url, key=target.api_key, limits=limits, transport=transport) as server,
        EngineClient(target.engine_url or target.url, key=target.api_key, limits=limits, transport=transport) as behind,
    ):
        client = SmokeClient(
            target,
            server,
            seed=time.time_ns() if seed is None else seed,
            faults=faults,
            behind=behind if target.engine_url else server,
            show=lambda text: shown.update("smoke test", transient=text),
        )
        began = clock()
        if target.on_gpu and client.is_sglang:
            _sample_once(client, shown, clock=clock)
        sampled = round(clock() - began, 3)
        checks = tuple(_all_checks(client, shown=shown, clock=clock))
    return SmokeReport(url=target.url, served_name=target.served_name, checks=checks, first_sample_seconds=sampled)


def _sample_once(client: SmokeClient, shown: Progress, *, clock: Callable[[], float]) -> None:
    """Send the first request that samples, for which sglang compiles kernels: no check and no user waits for them.

    Meanwhile a server fails its health checks. A gateway then answers 503, and for some seconds after the kernels are
    there: the request is repeated until it is answered at once. The checks find every other fault.
    """
    model = client.target.served_name
    body = generate_body(client.fresh_ids(37), tokens=2, model=model, temperature=1.0, top_p=0.95, top_k=50)

    def is_compiled() -> bool:
        began = clock()
        try:
            status = client.server.status("POST", endpoints.GENERATE, body)
        except NoResponseError:
            return True
        return status != httpx.codes.SERVICE_UNAVAILABLE and clock() - began < AT_ONCE_SECONDS

    shown.update("first sampled request")
    limit = FIRST_SAMPLE_SECONDS if client.target.engine_url else 0.0
    poll_until(bool, is_compiled, within=limit, pause=1.0)


def _all_checks(client: SmokeClient, *, shown: Progress, clock: Callable[[], float]) -> Iterator[CheckResult]:
    silent = ""
    for number, (name, check) in enumerate(CHECKS, start=1):
        shown.update("smoke test", transient=f"{number}/{len(CHECKS)}: {name}")
        begun = clock()
        if reason := skip_reason(check, client.target):  # also of a server that is silent
            outcome = skipped(reason)
        elif silent:
            outcome = failed(f"not run: {silent}")
        else:
            try:
                outcome = check(client)
            except NotOfferedError as error:
                outcome = skipped(str(error))
            except UnexpectedResponseError as error:
                outcome = failed(str(error))
            except NoResponseError as error:
                outcome, silent = failed(str(error)), f"the server stopped answering during `{name}`"
        yield outcome.result(name, clock() - begun)


def carry_out(name: str, check: Callable[[], CheckOutcome]) -> CheckResult:
    """Carry out a check that needs no `SmokeClient`. It fails if the server does not answer as expected."""
    begun = time.monotonic()
    try:
        outcome = check()
    except (NoResponseError, UnexpectedResponseError) as error:
        outcome = failed(str(error))
    return outcome.result(name, time.monotonic() - begun)
