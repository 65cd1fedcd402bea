"""The smoke test, which runs the checks in order."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final

import httpx

from orchestrator.core.console import Progress
from orchestrator.core.polling import poll_until
from orchestrator.core.signals import start_thread_without_signals
from orchestrator.engine import endpoints
from orchestrator.engine.client import EngineClient, Timeouts
from orchestrator.engine.first_sample import SAMPLE_LIMIT
from orchestrator.engine.requests import Body, generate_body
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError
from orchestrator.verify.checks import CHECKS, skip_reason
from orchestrator.verify.client import NotOfferedError, SmokeClient
from orchestrator.verify.report import CheckOutcome, CheckResult, SmokeReport, failed, skipped
from orchestrator.verify.target import Target

CONNECT_SECONDS: Final = 5.0
AT_ONCE_SECONDS: Final = 10.0  # half of sglang's timeout for the token of a health check
_SAMPLE_TRIES: Final = 3  # requests through a gateway
_SAMPLE_LIMITS: Final = Timeouts(connect=CONNECT_SECONDS, idle=SAMPLE_LIMIT, total=SAMPLE_LIMIT)


def smoke_test(
    target: Target,
    *,
    faults: Callable[[], Sequence[str]] | None,
    seed: int | None = None,
    timeout: float = 180.0,
    progress: Progress | None = None,
    transport: httpx.BaseTransport | None = None,
) -> SmokeReport:
    """Run the smoke test against a ready server.

    `faults` returns the log lines with known faults that did not stop the server, and is called last; None without a
    log. `timeout` is the limit of one request in seconds: the first requests after a start may compile kernels. Once
    the server stops answering, the remaining checks fail without a request.
    """
    limits = Timeouts(connect=min(CONNECT_SECONDS, timeout), idle=timeout, total=timeout)
    with (
        progress or Progress() as displayed,
        EngineClient(target.url, key=target.api_key, limits=limits, transport=transport) as server,
        EngineClient(target.engine_url or target.url, key=target.api_key, limits=limits, transport=transport) as engine,
    ):
        client = SmokeClient(
            target,
            server,
            seed=time.time_ns() if seed is None else seed,
            faults=faults,
            engine=engine if target.engine_url else server,
            show=lambda text: displayed.update("smoke test", transient=text),
        )
        began, problem = time.monotonic(), ""
        if target.on_gpu and client.is_sglang:
            displayed.update("first sampled request")
            problem = sample_ranks(target, server, client.fresh_ids(37))
        sampled = round(time.monotonic() - began, 3)
        checks = tuple(_all_checks(client, problem, displayed))
    return SmokeReport(url=target.url, served_name=target.served_name, checks=checks, first_sample_seconds=sampled)


def sample_ranks(
    target: Target,
    server: EngineClient,
    prompt: Sequence[int],
    *,
    fields: Mapping[str, object] = MappingProxyType({}),
) -> str:
    """Send a sampled request to each data-parallel rank; return which ranks do not answer, or "".

    sglang compiles kernels for the first such request; after it, no check and no user waits for them. The requests are
    sent in parallel, because the ranks compile in parallel. `fields` are added to each request. This function ignores
    the content of answers, which the checks read.
    """
    answers = dict.fromkeys(range(target.dp), "")

    def ask(rank: int) -> None:
        model = target.served_name
        body = generate_body(prompt, tokens=2, model=model, rank=rank, temperature=1.0, top_p=0.95, top_k=50)
        with suppress(RuntimeError):  # from httpx: the wait was interrupted and the client is closed
            answers[rank] = _sampled(server, {**body, **fields}, is_gateway=bool(target.engine_url))

    threads = [threading.Thread(target=ask, args=(rank,), daemon=True) for rank in answers]
    for thread in threads:
        start_thread_without_signals(thread)
    for thread in threads:
        thread.join()
    return "; ".join(
        f"rank {rank} does not answer a sampled request: {reason}" for rank, reason in answers.items() if reason
    )


def _sampled(server: EngineClient, body: Body, *, is_gateway: bool) -> str:
    """Send a sampled request; return why it is not answered, or "".

    A server fails its health checks while it compiles kernels. Its gateway then answers 503 until seconds after the
    compilation, so the request is repeated until the answer comes at once. A gateway may also drop a connection: only
    `_SAMPLE_TRIES` requests in a row without a response are a failure.
    """
    dropped: list[str] = []

    def ask() -> str | None:
        began = time.monotonic()
        try:
            status = server.status("POST", endpoints.GENERATE, body, limits=_SAMPLE_LIMITS)
        except NoResponseError as error:
            dropped.append(str(error))
            return dropped[-1] if len(dropped) == _SAMPLE_TRIES else None
        dropped.clear()
        at_once = time.monotonic() - began < AT_ONCE_SECONDS
        return "" if status != httpx.codes.SERVICE_UNAVAILABLE and at_once else None

    limit = SAMPLE_LIMIT if is_gateway else 0.0
    reason = poll_until(lambda reason: reason is not None, ask, timeout=limit, interval=1.0)
    return "".join(dropped[-1:]) if reason is None else reason


def _all_checks(client: SmokeClient, problem: str, progress: Progress) -> Iterator[CheckResult]:
    """Yield the result of each check; `problem` is why the server does not answer, or ""."""
    for number, (name, check) in enumerate(CHECKS, start=1):
        progress.update("smoke test", transient=f"{number}/{len(CHECKS)}: {name}")
        began = time.monotonic()
        if reason := skip_reason(check, client.target):  # even if the server does not answer
            outcome = skipped(reason)
        elif problem:
            outcome = failed(f"not run: {problem}")
        else:
            try:
                outcome = check(client)
            except NotOfferedError as error:
                outcome = skipped(str(error))
            except UnexpectedResponseError as error:
                outcome = failed(str(error))
            except NoResponseError as error:
                outcome, problem = failed(str(error)), f"the server stopped answering during `{name}`"
        yield outcome.result(name, time.monotonic() - began)


def run_check(name: str, check: Callable[[], CheckOutcome]) -> CheckResult:
    """Run a check that needs no `SmokeClient`; it fails if the server does not answer as expected."""
    began = time.monotonic()
    try:
        outcome = check()
    except (NoResponseError, UnexpectedResponseError) as error:
        outcome = failed(str(error))
    return outcome.result(name, time.monotonic() - began)
