"""When somebody has to be woken, and why. A limit is the profile's, its load's or its plan's, and says so."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from orchestrator.engine.options import Meaning
from orchestrator.monitoring.series import (
    ACCEPT_LENGTH,
    HIT_SHARE,
    SCRAPED,
    SCRAPED_GATEWAY,
    TTFT_P95,
    Expected,
    Monitored,
    left_out,
    series_of,
)

# How far live traffic may stay below what is expected of a load that is made; this and what follows are our choice.
_SLACK: Final = 0.8
_FULL: Final = 0.95  # of the KV cache: beyond it requests are taken back (retracted) to make room
_VRAM_FULL: Final = 0.98
_FAILED: Final = 0.01  # of the gateway's answers
_STORM: Final = 2  # times gone and back within an hour
_OURS: Final = "a choice of this tool"
_RECORDED: Final = re.compile(r"deploy:[\w:]+")


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One alert, of an expression that has lasted; `limit` says whose limit it is."""

    name: str
    expression: str
    lasting: str
    severity: str  # critical: not everybody is served; warning: they are, and worse than expected
    summary: str
    limit: str

    @property
    def needs(self) -> frozenset[str]:
        """The recorded series that it is made of."""
        return frozenset(_RECORDED.findall(self.expression))


def alerts_of(server: Monitored) -> tuple[Alert, ...]:
    """The alerts for which everything is known and recorded."""
    recorded = {series.record for series in series_of(server)}
    return tuple(alert for alert in _alerts(server) if alert.needs <= recorded)


def omitted(server: Monitored) -> Iterator[str]:
    """What is not recorded or told of, each with the reason."""
    recorded = {series.record for series in series_of(server)}
    for series, missing in left_out(server):
        yield f"no {series.record}: sglang {server.plan.engine.version} has no {missing}"
    for alert in _alerts(server):
        if missing := ", ".join(sorted(alert.needs - recorded)):
            yield f"no alert {alert.name}: {missing} is not recorded"
    for name, of in ((TTFT_P95, "DeployTtftHigh"), (HIT_SHARE, "DeployHitShareLow")):
        if name not in server.expected:
            yield f"no alert {of}: nothing is expected; `--workload` names a load that does, or `--expect {name}=…`"
    if server.speculates and ACCEPT_LENGTH not in server.expected:
        yield f"DeployAcceptLengthLow fires where no draft is right: `--expect {ACCEPT_LENGTH}=…` names a better length"
    if server.servers > 1 and not server.gateway_is_scraped:
        yield "no alert of the gateway: nobody is let in to its counters, or its servers; see `kubernetes.metrics_from`"
    if server.plan.gpus and not server.gpu_target:
        yield "no alert DeployVramFull: sglang exports no VRAM; `--gpu-exporter HOST:PORT` names what does"
    yield f"no alert on kernels without a tuned row: the log alone tells of them, see `deploy top {server.name}`"


def _alerts(server: Monitored) -> Iterator[Alert]:
    yield from _of_life(server)
    if server.servers > 1:
        yield from _of_several(server)
    yield from _of_load(server)
    yield from _of_expectations(server)


def _recorded(server: Monitored, name: str) -> str:
    return f"deploy:{name}{{{server.selector}}}"


def _of_life(server: Monitored) -> Iterator[Alert]:
    dp, scraped = server.plan.layout.dp, f'up{{{server.selector},job="{SCRAPED}"}}'
    ranks, of_rank, running, begun = (
        _recorded(server, name)
        for name in ("rank_tokens:rate", "rank_requests_running", "requests_running", "requests_open")
    )
    each = server.each
    hung = f"min_over_time({of_rank}[5m]) > 0 unless on ({each}, dp_rank) {ranks} > 0"
    # Answers that are not streamed are open while they run: two long ones on one rank are no sign of another's death.
    unserved = f"min_over_time({begun}[5m]) >= {dp} and {begun} > ({running} or 0 * {begun})"
    why = f"`deploy status {server.name}` and `deploy diagnose {server.name}` say why"
    yield Alert(
        name="DeployServerDown",
        expression=f"{_none_of(scraped) if server.servers > 1 else f'{scraped} == 0'} or absent({scraped})",
        lasting="1m",
        severity="critical",
        summary=f"{'none of its servers answers' if server.servers > 1 else 'it does not answer'}; {why}",
        limit=f"four scrapes, {_OURS}",
    )
    yield Alert(
        name="DeployRankDead",
        expression=f"(count by ({each}) ({ranks} > 0) or 0 * {running} or 0 * {begun}) < {dp}"
        f" and on ({each}) (count by ({each}) ({hung}) or ({unserved}))",
        lasting="1m",
        severity="critical",
        summary=f"{{{{ $value }}}} of {dp} ranks compute, and there is work for more; {why}",
        limit=f"`layout.dp` of the plan is {dp}",
    )
    yield Alert(
        name="DeployRestarting",
        expression=f"changes({scraped}[1h]) >= {2 * _STORM}",
        lasting="0m",
        severity="critical",
        summary=f"it went and came back {_STORM} times within an hour; `deploy history {server.name}` lists the starts",
        limit=_OURS,
    )


def _none_of(scraped: str) -> str:
    return f"count by (server) ({scraped}) unless on (server) {scraped} == 1"


def _of_several(server: Monitored) -> Iterator[Alert]:
    """Of the servers behind a gateway, and of the gateway: while one of them is gone, the others serve."""
    scraped, gateway = (f'up{{{server.selector},job="{job}"}}' for job in (SCRAPED, SCRAPED_GATEWAY))
    answering, status = f"count by (server) ({scraped} == 1)", f"`deploy status {server.name}` names it"
    yield Alert(
        name="DeployReplicaDown",
        # The target of a pod goes with it: what is left of it is that one is missing.
        expression=f"{scraped} == 0 and on (server) {answering}"
        f" or {answering} < {server.servers} unless on (server) {scraped} == 0",
        lasting="1m",
        severity="warning",
        summary=f"one of its {server.servers} servers does not answer, the gateway sends to the others; {status}",
        limit=f"`replicas` of the plan is {server.servers}",
    )
    if not server.gateway_is_scraped:
        return
    yield Alert(
        name="DeployGatewayDown",
        expression=f"{gateway} == 0 or absent({gateway})",
        lasting="1m",
        severity="critical",
        summary=f"its gateway does not answer, and nobody else lets clients in; `deploy diagnose {server.name}`",
        limit=f"four scrapes, {_OURS}",
    )
    behind = _recorded(server, "gateway_servers")
    yield Alert(
        name="DeployReplicaLeftOut",
        expression=f"{behind} < on (server) {answering}",
        lasting="2m",
        severity="warning",
        summary=f"the gateway sends to {{{{ $value }}}} of {server.servers} servers, and more answer: one hangs, "
        f"or was taken away; {status}",
        limit="two minutes, " + _OURS,
    )
    yield Alert(
        name="DeployGatewayFails",
        expression=f"{_recorded(server, 'gateway_failed_share:rate')} > {_FAILED}",
        lasting="5m",
        severity="critical",
        summary="{{ $value | humanizePercentage }} of what clients are answered is an error of the servers",
        limit=f"{_FAILED}, {_OURS}",
    )


def _of_load(server: Monitored) -> Iterator[Alert]:
    queued, full = _recorded(server, "requests_queued"), _recorded(server, "kv_share")
    yield Alert(
        name="DeployQueueGrowing",
        expression=f"min_over_time({queued}[5m]) > 0 and deriv({queued}[5m]) > 0",
        lasting="5m",
        severity="warning",
        summary="{{ $value }} requests wait, and more from minute to minute: more arrive than it can serve",
        limit="ten minutes in which it never empties and grows, " + _OURS,
    )
    yield Alert(
        name="DeployKvCacheFull",
        expression=f"{full} > {_FULL} and on ({server.each}) {queued} > 0",
        lasting="10m",
        severity="warning",
        summary="{{ $value | humanizePercentage }} of a rank's KV cache is in use, and requests wait for it",
        limit=f"{_FULL}, {_OURS}",
    )
    if server.gpu_target:
        yield Alert(
            name="DeployVramFull",
            expression=f"{_recorded(server, 'vram_share')} > {_VRAM_FULL}",
            lasting="5m",
            severity="warning",
            summary="{{ $value | humanizePercentage }} of a GPU's VRAM is in use: an allocation may fail",
            limit=f"{_VRAM_FULL}, {_OURS}; the plan's `{Meaning.MEMORY_FRACTION}` is {_fraction(server)}",
        )


def _fraction(server: Monitored) -> str:
    fraction = server.plan.serving.memory_fraction
    return "sglang's own" if fraction is None else f"{fraction:g}"


def _of_expectations(server: Monitored) -> Iterator[Alert]:
    if limit := server.expected.get(TTFT_P95):
        yield Alert(
            name="DeployTtftHigh",
            expression=f"{_recorded(server, 'ttft_seconds:p95')} > {limit.value:g}",
            lasting="5m",
            severity="warning",
            summary="one request in twenty waits {{ $value | humanizeDuration }} or longer for its first token",
            limit=f"{limit.value:g} s: {limit.source}",
        )
    if share := server.expected.get(HIT_SHARE):
        yield Alert(
            name="DeployHitShareLow",
            expression=f"{_recorded(server, 'hit_share:rate')} < {share.value * _SLACK:g}",
            lasting="15m",
            severity="warning",
            summary="{{ $value | humanizePercentage }} of the prompt tokens come from the cache",
            limit=f"{_SLACK:g} of {share.value:g}: {share.source}",
        )
    if server.speculates:
        length = server.expected.get(ACCEPT_LENGTH) or Expected(
            value=1, source="no draft is right, as in the smoke test"
        )
        below = f"< {length.value * _SLACK:g}" if length.value > 1 else "<= 1"
        yield Alert(
            name="DeployAcceptLengthLow",
            expression=f"{_recorded(server, 'accept_length:rate')} {below}",
            lasting="15m",
            severity="warning",
            summary="a verification gives {{ $value }} tokens: drafts cost more than they give",
            limit=f"{below}: {length.source}",
        )
