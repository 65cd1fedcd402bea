"""Carrying the checks out, one after the other."""

import time
from collections.abc import Callable, Iterator, Sequence

import httpx

from orchestrator.core.console import Progress
from orchestrator.core.secret import redact
from orchestrator.prove.checks import CHECKS
from orchestrator.prove.probe import Probe, Unexpected
from orchestrator.prove.report import Check, Finding, SmokeReport, failed
from orchestrator.prove.target import Target


def run(
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
    headers = {"Authorization": f"Bearer {target.api_key.reveal()}"} if target.api_key else {}
    shown = progress or Progress()
    with httpx.Client(
        base_url=target.url, headers=headers, timeout=timeout, transport=transport, trust_env=False
    ) as client:
        probe = Probe(target, client, seed=time.time_ns() if seed is None else seed, faults=faults)
        try:
            checks = tuple(_carry_out(probe, shown=shown, clock=clock))
        finally:
            shown.done()
    return SmokeReport(url=target.url, served_name=target.served_name, checks=checks)


def _carry_out(probe: Probe, *, shown: Progress, clock: Callable[[], float]) -> Iterator[Check]:
    silent = ""
    for number, (name, check) in enumerate(CHECKS, start=1):
        shown.update("smoke test", transient=f"{number}/{len(CHECKS)}: {name}")
        begun = clock()
        finding, silent = (failed(f"not tried: {silent}"), silent) if silent else _try(name, check, probe)
        yield _done(name, finding, target=probe.target, seconds=clock() - begun)


def _try(name: str, check: Callable[[Probe], Finding], probe: Probe) -> tuple[Finding, str]:
    """A check's finding, and in what words the server has stopped answering ("" while it answers)."""
    try:
        return check(probe), ""
    except Unexpected as error:
        return failed(str(error)), ""
    except httpx.HTTPError as error:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        return failed(f"no answer ({what})"), f"the server stopped answering during `{name}`"


def _done(name: str, finding: Finding, *, target: Target, seconds: float) -> Check:
    secrets = [target.api_key] if target.api_key else []
    evidence = redact(" ".join(finding.evidence.split()), secrets)
    return Check(name=name, verdict=finding.verdict, evidence=evidence, seconds=round(seconds, 3))
