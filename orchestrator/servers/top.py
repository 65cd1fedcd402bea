"""`deploy top`: load, latency, cache and GPU use of a server, from its metrics, log and GPUs."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from orchestrator.bench.counters import server_counts
from orchestrator.bench.energy import EnergyReader, EnergyReading, EnergyUnavailableError, read_energy
from orchestrator.core.console import table
from orchestrator.core.errors import UsageError
from orchestrator.engine.client import Timeouts
from orchestrator.engine.metrics import Buckets, Metric, Metrics, quantile, read_buckets, read_metrics
from orchestrator.engine.options import Meaning
from orchestrator.engine.responses import NoResponseError, UnexpectedResponseError
from orchestrator.hosts.gpus import read_gpus
from orchestrator.hosts.gpus.inventory import gib
from orchestrator.hosts.survey import Runner
from orchestrator.kernels.log_gate import GateReader
from orchestrator.kernels.plan_coverage import needs_table
from orchestrator.kernels.triton import TritonReader, uses_triton_configs
from orchestrator.plan.plan import Plan
from orchestrator.runtimes import runtime_class
from orchestrator.servers.servers import Servers, exited_processes
from orchestrator.servers.start.host import resolve_host_ref, runner_for

WINDOW_S: Final = 60.0
_GPUS_EVERY_S: Final = 15.0  # a vendor tool takes up to 1 s of CPU time
_LIMITS: Final = Timeouts(connect=2, idle=5, total=5)
_MAX_EVENTS: Final = 5


@dataclass(frozen=True, kw_only=True)
class Activity:
    """Rates over the last `window_s` seconds and current load of a server; None if unknown.

    `running` and `queued` are requests, `kv_tokens` the tokens that fit, `kv_cache_usage` the share of them in use, and
    `accept_length` tokens per verification step. Shares are 0 to 1.
    """

    window_s: float
    requests_per_s: float | None = None
    input_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    running: float | None = None
    queued: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    itl_p50_s: float | None = None
    itl_p95_s: float | None = None
    cache_hit_rate: float | None = None  # of the prompt tokens
    kv_cache_usage: float | None = None
    kv_tokens: float | None = None
    accept_length: float | None = None


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """A GPU of the server: VRAM in bytes, and mean power in W since the last sample; None if unknown."""

    index: int
    vram_used: int | None
    vram_bytes: int | None
    watts: float | None


@dataclass(frozen=True, kw_only=True)
class Event:
    """A change between two samples."""

    at: str  # time of day
    message: str


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One sample of a server."""

    time: str  # ISO 8601
    name: str
    url: str
    age: str  # time since its start
    problem: str  # why it is unhealthy; "" if it is not
    activity: Activity
    kernel_misses: int | None  # distinct keys, or Triton's files, since the start; None for a server without lookups
    gpus: tuple[GpuSample, ...]
    events: tuple[Event, ...]

    def to_text(self, *, width: int | None = None) -> str:
        """Return the sample as text."""
        rows = [row for row in self._rows() if any(row[1:])]
        parts = [
            f"{self.name}  up for {self.age}  {self.url}  {self.time[11:19]}",
            f"UNHEALTHY: {self.problem}" if self.problem else "",
            table(("", f"last {self.activity.window_s:.0f} s", ""), rows, width=width),
            _gpu_table(self.gpus, width) if self.gpus else "",
            "\n".join(f"{event.at}  {event.message}" for event in self.events),
        ]
        return "\n\n".join(part for part in parts if part)

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        def shown(value: float | None, form: str) -> str:
            return "" if value is None else form.format(value)

        now = self.activity
        waiting = shown(now.running, "{:.0f} running") + shown(now.queued, ", {:.0f} queued")
        yield "requests", shown(now.requests_per_s, "{:.2f}/s"), waiting
        cached = shown(now.cache_hit_rate, "{:.0%} from the cache")
        yield "tokens in", shown(now.input_tokens_per_s, "{:,.0f}/s"), cached
        accepted = shown(now.accept_length, "{:.2f} a verify step")
        yield "tokens out", shown(now.output_tokens_per_s, "{:,.0f}/s"), accepted
        yield "time to first token", shown(now.ttft_p50_s, "p50 {:.3f} s"), shown(now.ttft_p95_s, "p95 {:.3f} s")
        yield "between tokens", shown(now.itl_p50_s, "p50 {:.4f} s"), shown(now.itl_p95_s, "p95 {:.4f} s")
        yield "KV cache", shown(now.kv_cache_usage, "{:.0%} in use"), shown(now.kv_tokens, "of {:,.0f} tokens")
        yield "untuned kernels", shown(self.kernel_misses, "{} since the start"), ""


def _gpu_table(gpus: Sequence[GpuSample], width: int | None) -> str:
    """Return a table of the GPUs, without the column `power` if no GPU reports it."""
    columns = 3 if any(gpu.watts is not None for gpu in gpus) else 2
    rows = []
    for gpu in gpus:
        vram = "" if gpu.vram_used is None else gib(gpu.vram_used)
        size = "" if gpu.vram_bytes is None else f" of {gib(gpu.vram_bytes)}"
        rows.append((str(gpu.index), f"{vram}{size}", "" if gpu.watts is None else f"{gpu.watts:.0f} W")[:columns])
    return table(("GPU", "VRAM", "power")[:columns], rows, width=width)


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Metrics of a server; `at` is a time of a monotonic clock."""

    at: float
    metrics: Metrics
    first_token: Buckets
    between_tokens: Buckets


def activity(first: Counters, last: Counters) -> Activity:
    """Return the activity of a server between two samples of its metrics."""
    counts, now, passed = server_counts(first.metrics, last.metrics), last.metrics, last.at - first.at

    def rate(count: float | None) -> float | None:
        return count / passed if count is not None and passed > 0 else None

    cached, prompt = counts.cached_tokens, counts.prompt_tokens
    used_tokens, all_tokens = now.get(Metric.USED_TOKENS), now.get(Metric.ALL_TOKENS)
    return Activity(
        window_s=passed,
        requests_per_s=rate(counts.requests),
        input_tokens_per_s=rate(prompt),
        output_tokens_per_s=rate(counts.output_tokens),
        running=now.get(Metric.RUNNING),
        queued=now.get(Metric.QUEUED),
        ttft_p50_s=quantile(first.first_token, last.first_token, 0.5),
        ttft_p95_s=quantile(first.first_token, last.first_token, 0.95),
        itl_p50_s=quantile(first.between_tokens, last.between_tokens, 0.5),
        itl_p95_s=quantile(first.between_tokens, last.between_tokens, 0.95),
        cache_hit_rate=cached / prompt if cached is not None and prompt else None,
        kv_cache_usage=used_tokens / all_tokens if used_tokens is not None and all_tokens else None,
        kv_tokens=all_tokens or None,
        accept_length=counts.accept_length,
    )


class GpuReader:
    """Reads the GPUs of a server at most every 15 s; finds none on a CPU or without the vendor's tool."""

    def __init__(self, plan: Plan, runner: Runner | None, energy: EnergyReader | None) -> None:
        """Read GPUs through `runner`; None in a cluster, where no GPUs are read.

        `energy` reads the energy counters of the GPUs of this host; None for a remote host.
        """
        self._plan, self._runner, self._energy = plan, runner, energy
        self._sampled_at: float | None = None
        self._reading: EnergyReading | None = None
        self._seen: tuple[GpuSample, ...] = ()

    def read(self, at: float) -> tuple[GpuSample, ...]:
        """Return the GPUs; sample them again if the last sample is too old."""
        if self._plan.gpus and (self._sampled_at is None or at - self._sampled_at >= _GPUS_EVERY_S):
            self._sampled_at = at
            self._seen = self._sample()
        return self._seen

    def _sample(self) -> tuple[GpuSample, ...]:
        if self._runner is None:
            return ()
        inventory, watts = read_gpus(self._plan.hardware.vendor, self._runner), self._watts()
        return tuple(
            GpuSample(index=gpu.index, vram_used=gpu.vram_used, vram_bytes=gpu.vram_bytes, watts=watts.get(gpu.index))
            for gpu in (inventory.gpus if inventory else ())
            if gpu.index in self._plan.gpus
        )

    def _watts(self) -> dict[int, float]:
        gpus, before = tuple(self._plan.gpus), self._reading
        try:
            self._reading = now = self._energy() if self._energy else None
        except EnergyUnavailableError:
            self._reading = now = None
        if before is None or now is None or now.at_s <= before.at_s:
            return {}
        joules_used = [last - first for first, last in zip(before.joules, now.joules, strict=True)]
        return {
            gpu: joules / (now.at_s - before.at_s) for gpu, joules in zip(gpus, joules_used, strict=True) if joules >= 0
        }


class TopView:
    """Repeated samples of a server; changes between two samples are events."""

    def __init__(
        self, servers: Servers, name: str, *, host: str | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Open the server `name`.

        Raises StartError if there is none, it is not running or its plan is not in this home; UsageError if it exports
        no metrics.
        """
        self._server = servers.open(name)
        self._server.require_running()
        plan = self._server.require_plan()
        if not plan.serving.metrics:
            hint = f"`deploy up PROFILE --replace --set flags.{Meaning.METRICS}=true` starts it with them"
            raise UsageError(f"`{name}` exports no metrics", hint=hint)
        host_ref = resolve_host_ref(plan.runtime, servers.home, host)
        runner = runner_for(host_ref) if runtime_class(self._server.runtime).is_local else None
        self._gpus = GpuReader(plan, runner, None if host_ref.remote else partial(read_energy, tuple(plan.gpus)))
        # A gateway counts no tokens.
        self._clients = [engine.client(_LIMITS) for engine in self._server.engines]
        self._gate = GateReader() if needs_table(plan) else TritonReader() if uses_triton_configs(plan) else None
        self._log = self._server.tail() if self._gate else None
        self._clock = clock
        self._counters: deque[Counters] = deque()
        self._events: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self._seen: tuple[str, int, int] | None = None  # problem, restarts, misses

    def sample(self) -> Frame:
        """Take a sample of the server. Raises StartError if it is not running."""
        state, moment = self._server.require_running(), datetime.now().astimezone()
        problem = exited_processes(self._server) or self._count()
        misses = self._misses()
        self._note(moment, problem=problem, restarts=state.restarts, misses=misses or 0)
        first, last = (self._counters[0], self._counters[-1]) if self._counters else (None, None)
        return Frame(
            time=moment.isoformat(timespec="seconds"),
            name=self._server.name,
            url=self._server.url,
            age=state.age(),
            problem=problem,
            activity=activity(first, last) if first and last and not problem else Activity(window_s=0),
            kernel_misses=misses,
            gpus=self._gpus.read(self._clock()),
            events=tuple(self._events),
        )

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()

    def _count(self) -> str:
        """Read the metrics; return the error, or "" if there is none."""
        try:
            exported = bytearray(b"\n").join(client.exported() for client in self._clients)
        except (NoResponseError, UnexpectedResponseError) as error:
            return str(error)
        read = Counters(
            at=self._clock(),
            metrics=read_metrics(exported),
            first_token=read_buckets(exported, Metric.TTFT),
            between_tokens=read_buckets(exported, Metric.ITL),
        )
        if not read.metrics:
            return "the server no longer exports metrics"
        self._counters.append(read)
        while self._counters[0].at < read.at - WINDOW_S and len(self._counters) > 2:
            self._counters.popleft()
        return ""

    def _misses(self) -> int | None:
        if self._log is None or self._gate is None:
            return None
        for line in self._log():
            self._gate.feed(line)
        return len(self._gate.report().misses)

    def _note(self, moment: datetime, *, problem: str, restarts: int, misses: int) -> None:
        """Record the changes since the last sample as events."""
        before = self._seen or ("", restarts, misses)
        changes = (
            (problem and problem != before[0], problem),
            (before[0] and not problem, "recovered"),
            (restarts > before[1], f"restarted ({restarts} in all)"),
            (misses > before[2], f"{misses - before[2]} more MoE keys without a tuned kernel"),
        )
        self._events.extend(Event(at=f"{moment:%H:%M:%S}", message=message) for changed, message in changes if changed)
        self._seen = (problem, restarts, misses)
