"""The checks of prefill and decode servers: transfer, network and correct answers.

The gateway answers 200 while a role is dead, and an answer may be wrong or slow without any error.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from orchestrator.core.secrets import Secret
from orchestrator.engine import endpoints
from orchestrator.engine.client import EngineClient, Timeouts
from orchestrator.engine.disaggregation import RDMA_ONLY, TRANSFERS, network_unknown, transfer_problem
from orchestrator.engine.liveness import FAKE_BOOTSTRAP, samples
from orchestrator.engine.options import Meaning
from orchestrator.engine.requests import generate_body
from orchestrator.engine.responses import read_generated
from orchestrator.verify.checks import PROMPT
from orchestrator.verify.report import CheckOutcome, CheckResult, SmokeReport, failed, passed, skipped, warning
from orchestrator.verify.smoke import run_check, sample_ranks
from orchestrator.verify.target import Target

_LIMITS: Final = Timeouts(connect=5, idle=180, total=180)  # as in the smoke test
_TOKENS: Final = 16
_SAMPLED: Final = tuple(range(200, 237))  # the prompt of the first sampled request
_TIES: Final = 0.25  # share of tokens that may differ between prefill and decode kernels on a GPU (our limit)
_TIMEOUT: Final = 10.0  # seconds until a counter includes a request that was answered


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A gateway and its prefill and decode servers. `logs` returns the log of each server; None without logs."""

    gateway: str
    model: str  # served name
    prefill: Sequence[str]
    decode: Sequence[str]
    key: Secret | None
    on_gpu: bool
    transfer: str = ""  # `BACKEND over NETWORK`; "" if unknown
    logs: Callable[[], Mapping[str, Iterable[str]]] | None = None


def role_report(target: Target) -> SmokeReport:
    """Return the report of one role, which must generate a token alone, as in sglang's own health check.

    On a GPU, each rank answers a sampled request first.
    """

    def generates() -> CheckOutcome:
        if unresponsive:
            return failed(unresponsive)
        return passed("one token") if _generate(server, PROMPT, 1) else failed("no token")

    began = time.monotonic()
    with EngineClient(target.url, key=target.api_key, limits=_LIMITS) as server:
        unresponsive = sample_ranks(target, server, _SAMPLED, fields=FAKE_BOOTSTRAP) if target.on_gpu else ""
        sampled = round(time.monotonic() - began, 3)
        checks = (run_check("generates alone", generates),)
    return SmokeReport(url=target.url, served_name=target.served_name, checks=checks, first_sample_seconds=sampled)


def pair_checks(pair: Pair) -> Iterator[CheckResult]:
    """Yield the results of the checks of a pair."""
    with ExitStack() as stack:
        router = stack.enter_context(EngineClient(pair.gateway, key=pair.key, limits=_LIMITS))
        prefill = [stack.enter_context(EngineClient(url, key=pair.key, limits=_LIMITS)) for url in pair.prefill]
        yield run_check("pair: KV cache transferred", lambda: _transferred(router, prefill, pair.model))
        yield run_check("pair: answer of one server", lambda: _single_replica_output(router, prefill[0], pair))
        yield run_check("pair: network", lambda: _network(pair))


def _transferred(router: EngineClient, prefill: Sequence[EngineClient], model: str) -> CheckOutcome:
    """Check that the prefill servers count a transfer.

    Only these counters reveal a decode server that computes the prompt itself, or a cache that never arrives.
    """
    before = _transfers(prefill)
    read_generated(router.post(endpoints.GENERATE, generate_body(PROMPT, tokens=2, model=model)))
    end = time.monotonic() + _TIMEOUT
    while (after := _transfers(prefill)) is not None and after <= (before or 0) and time.monotonic() < end:
        time.sleep(0.2)
    if after is None:
        return warning(f"no prefill server counts its transfers (`{Meaning.METRICS}`)")
    text = f"{before or 0:g} transfers before a request, {after:g} after it"
    return passed(text) if after > (before or 0) else failed(text)


def _transfers(prefill: Sequence[EngineClient]) -> float | None:
    """Return the transfers that all prefill servers count; None if none counts any."""
    counts = [count for server in prefill for _, _, count in samples(server.exported(), {TRANSFERS})]
    return sum(counts) if counts else None


def _single_replica_output(router: EngineClient, prefill: EngineClient, pair: Pair) -> CheckOutcome:
    """Check that the KV cache arrives intact: a prefill server that computes the whole text must give the same answer.

    The prefill server generates one token after the prompt and each prefix of the pair's answer.
    """
    prompt = list(range(100, 137))
    body = generate_body(prompt, tokens=_TOKENS, model=pair.model)
    answer = read_generated(router.post(endpoints.GENERATE, body)).ids
    single = [_generate(prefill, [*prompt, *answer[:count]], 1)[:1] for count in range(len(answer))]
    wrong = sum((token,) != expected for token, expected in zip(answer, single, strict=True))
    if len(answer) != _TOKENS:
        return failed(f"{len(answer)} tokens instead of {_TOKENS}")
    if wrong == 0:
        return passed(f"the same {_TOKENS} tokens as a server without disaggregation")
    conclude = warning if pair.on_gpu and wrong <= _TIES * _TOKENS else failed
    return conclude(f"{wrong} of {_TOKENS} tokens differ from those of a server without disaggregation")


def _generate(server: EngineClient, prompt: str | list[int], tokens: int) -> tuple[int, ...]:
    body = {**generate_body(prompt, tokens=tokens), **FAKE_BOOTSTRAP}
    return read_generated(server.post(endpoints.GENERATE, body)).ids


def _network(pair: Pair) -> CheckOutcome:
    """Check that the transfer uses the planned network. Only the logs show a fallback to TCP, 5 to 20 times slower."""
    if pair.logs is None or not pair.transfer:
        return skipped("no log or no plan of the servers")
    backend, _, network = pair.transfer.partition(" over ")
    for name, log in pair.logs().items():
        if fault := transfer_problem(log, backend=backend, tcp=network == "tcp"):
            return failed(f"{name}: {fault}")
    if unknown := network_unknown(backend, tcp=network == "tcp"):
        return warning(unknown)
    if backend == RDMA_ONLY:
        return passed(f"{pair.transfer}, as in the profile: {backend} has no TCP")
    return passed(f"{pair.transfer}, as in the profile")
