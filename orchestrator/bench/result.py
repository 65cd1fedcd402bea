"""The result of a measurement: the content of `result.json`, which `compare` and `report` read.

Each metric has its unit in its name: `_s` seconds, `_rps` requests per second, `_tok_per_s` tokens per second, `_share`
a share of 1. A value that was not measured is None, never zero.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, TypeVar

from pydantic import Field, ValidationError

from orchestrator.core.errors import BenchError
from orchestrator.core.validation import type_adapter, validation_problems
from orchestrator.engine.other_engines import UNKNOWN

RESULT_SCHEMA: Final = 4
RESULT_FILE: Final = "result.json"


# Bounds of the numbers in a file: finite, and small enough for all later arithmetic.
MAX_AMOUNT = 1e15
Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT, allow_inf_nan=False)]
Slope = Annotated[float, Field(ge=-MAX_AMOUNT, le=MAX_AMOUNT, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Number = Annotated[int, Field(ge=1, le=1 << 20)]


class IssueKind(StrEnum):
    """The kind of a reason against comparing a result with a published one."""

    SIMULATED_ACCEPTANCE = "simulated-acceptance"
    KERNEL_MISS = "kernel-miss"
    CACHE_HIT_RATE_OFF_TARGET = "cache-hit-rate-off-target"
    CACHE_HIT_RATE_UNKNOWN = "cache-hit-rate-unknown"
    UNKNOWN_KERNELS = "unknown-kernels"  # the server log was not readable
    FAILED_REQUESTS = "failed-requests"
    CLIENT_LAGGED = "client-lagged"  # the load client missed its own schedule
    INCOMPLETE = "incomplete"  # interrupted, or the endpoint died
    RANDOM_PROMPTS = "random-prompts"  # with speculation, which random prompts do not measure
    ANOTHER_CLIENT = "another-client"  # which defines metrics differently
    CHANGED_WORKLOAD = "changed-workload"  # requests or duration were overridden on the command line
    # Only a comparison finds the next four; a result never has them.
    ANOTHER_WORKLOAD = "another-workload"
    ANOTHER_HARDWARE = "another-hardware"
    UNKNOWN_HARDWARE = "unknown-hardware"
    ABLATION = "ablation"


class EndReason(StrEnum):
    """The way in which a run or one of its points ended."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    ENDPOINT_DIED = "endpoint-died"


@dataclass(frozen=True, kw_only=True)
class ComparabilityIssue:
    """A reason against comparing the result; `point` is the label of the affected point, "" for all."""

    kind: IssueKind
    detail: str
    point: str = ""


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """A distribution in the unit of its field; percentiles are linearly interpolated."""

    count: Count
    mean: Amount
    p50: Amount
    p90: Amount
    p95: Amount
    p99: Amount
    max: Amount


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Tokens per second over `seconds`: of the whole endpoint, and divided by its number of GPUs."""

    seconds: Amount
    output_tok_per_s: Amount
    total_tok_per_s: Amount  # output tokens plus prompts (cached too) of requests with a first token
    output_tok_per_s_per_gpu: Amount | None = None


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Latencies of successful requests; `from_schedule` counts from the planned arrival (open loop)."""

    ttft_from_send_s: Distribution
    e2e_from_send_s: Distribution
    ttft_from_schedule_s: Distribution | None = None  # None if another client measured it
    e2e_from_schedule_s: Distribution | None = None
    tpot_s: Distribution | None = None  # per request: (end - first token) / (output tokens - 1)
    itl_per_chunk_s: Distribution | None = None  # gaps between chunks with tokens; a chunk may have several

    @property
    def ttft_s(self) -> Distribution:
        """The TTFT to judge: from the planned arrival, or from sending if another client measured it."""
        return self.ttft_from_schedule_s or self.ttft_from_send_s

    @property
    def e2e_s(self) -> Distribution:
        """The duration of a request, from the same start as `ttft_s`."""
        return self.e2e_from_schedule_s or self.e2e_from_send_s


@dataclass(frozen=True, kw_only=True)
class CacheHits:
    """The share of prompt tokens from the prefix cache."""

    wanted_share: Share | None = None  # None for sessions
    usage_share: Amount | None = None  # from `cached_tokens` of the responses
    achievable_share: Share | None = None  # forecast for the size of this server's cache
    metrics_share: Amount | None = None  # from the server counters


@dataclass(frozen=True, kw_only=True)
class ServerCounts:
    """The server counters of a point: after minus before, summed over replicas."""

    requests: Count | None = None
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    cached_tokens: Count | None = None
    cached_device_tokens: Count | None = None  # by source, if reported
    cached_host_tokens: Count | None = None
    cached_storage_tokens: Count | None = None
    ttft_mean_s: Amount | None = None
    e2e_mean_s: Amount | None = None
    accept_length: Amount | None = None  # tokens per verification step; None without speculation


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Energy of all GPUs over the point, from the counters of amd-smi or nvidia-smi."""

    valid: bool  # False: see `reason`; ignore the other values
    source: str
    reason: str = ""
    seconds: Amount | None = None
    joules: Amount | None = None
    joules_per_output_token: Amount | None = None
    output_tok_per_s_per_watt: Amount | None = None


@dataclass(frozen=True, kw_only=True)
class FailureCount:
    """The number of failed requests of one kind: refused, reset, timeout, http-<status>, stream-error, …"""

    kind: str
    count: Count
    example: str


@dataclass(frozen=True, kw_only=True)
class SessionLoad:
    """The sessions of a point."""

    sessions: Count  # sessions with a measured request, without subagents
    subagents: Count
    warmup_requests: Count  # sent but not measured
    dropped_requests: Count  # longer than `max_context`, or after such a request
    next_prompts: str  # what a later prompt of a session contains after the earlier ones
    drawn_share: Share = 0.0  # share of the answers in later prompts replaced by drawn tokens, which no cache has
    speed: Rate | None = None  # factor on the recorded arrivals; None: a closed loop


@dataclass(frozen=True, kw_only=True)
class Point:
    """One offered rate (open loop) or one concurrency (closed loop)."""

    label: str  # `2.25` (rps), `closed-1` (concurrency) or `x2` (speed of a trace)
    arrivals: str  # constant | poisson | closed | recorded
    end_reason: EndReason
    started_at: str  # ISO 8601, UTC
    requests: Count  # requests sent
    succeeded: Count
    success_share: Share
    failures: tuple[FailureCount, ...]
    input_tokens: Count  # in successful requests, counted by the server
    output_tokens: Count
    concurrency: Number | None = None
    offered_rps: Rate | None = None
    achieved_rps: Amount | None = None  # successful completions per second in the steady window
    # share of the requests due in the steady window that completed in it
    completion_ratio: Amount | None = None
    ttft_growth_s_per_s: Slope | None = None  # growth of TTFT per second of load; see steady_state.py
    goodput_rps: Amount | None = None  # completions per second of the full run within the SLO
    window: Throughput | None = None  # the steady window: from the end of the ramp to the last arrival
    full_run: Throughput | None = None  # first scheduled arrival to last completion, ramp and drain included
    latency: Latency | None = None
    send_lag_s: Distribution | None = None  # delay of the client behind its schedule
    cache: CacheHits | None = None
    sessions: SessionLoad | None = None  # None: independent prompts
    server: ServerCounts | None = None
    energy: Energy | None = None
    usd_per_million_output_tokens: Amount | None = None
    sustained: bool | None = None  # None: too short to judge, or a closed loop
    not_sustained_because: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of a GPU; `source` is `given` (by the user) or names the publication."""

    usd_per_gpu_hour: Amount
    source: str


@dataclass(frozen=True, kw_only=True)
class EndpointFacts:
    """The facts reported by the endpoint; context length and page size in tokens."""

    url: str
    api: str  # completions | generate
    served_model: str
    prompts_as: str = "token ids"  # token ids | text
    engine: str = UNKNOWN  # sglang | vllm | atom | unknown
    engine_version: str | None = None
    dp_ranks: Number = 1  # each with its own prefix cache
    context_length: Count | None = None
    page_size: Count | None = None
    speculative: str | None = None  # algorithm and settings, if speculation is on


@dataclass(frozen=True, kw_only=True)
class ServerProvenance:
    """The server of the endpoint, if `deploy` started it: plan, image, patches, kernel gate, host."""

    name: str | None = None
    profile: str | None = None
    plan: dict[str, object] | None = None
    plan_digest: str | None = None
    image_digest: str | None = None
    patch_receipt: dict[str, object] | None = None
    kernel_gate: dict[str, object] | None = None
    host: dict[str, object] | None = None
    gpu: str | None = None  # hardware name in the plan, such as `mi355x`
    gpus: Count | None = None
    layout: str | None = None  # such as `TP4×DP2`; set by the user for an endpoint without a plan


@dataclass(frozen=True, kw_only=True)
class CacheSize:
    """The cache of one DP rank in tokens, and the share of prompt tokens that it can hold."""

    tokens: Count
    share: Share


@dataclass(frozen=True, kw_only=True)
class CacheForecast:
    """The shares of prompt tokens that a prefix cache can have, from the load alone; see plan/reuse_distance.py.

    Each DP rank has a cache of its own. `share` is that of this server, if its sessions stay on one DP rank each.
    """

    prompt_tokens: Count
    unlimited_share: Share
    sizes: tuple[CacheSize, ...]  # ascending; the largest has all hits of an unlimited cache
    dp_ranks: Number  # of all replicas
    cache_tokens: Count | None = None  # cache size of a DP rank
    share: Share | None = None
    sampled_share: Share | None = None  # share of the blocks used for the estimate; None: all


@dataclass(frozen=True, kw_only=True)
class Run:
    """The metadata of a measurement."""

    tool_version: str
    client: str | None = None  # program that sent the load, such as `aiperf 0.13.0`; None: deploy
    started_at: str  # ISO 8601, UTC
    ended_at: str
    command: str  # quoted argv that repeats the measurement
    workload_name: str
    workload: dict[str, object]
    workload_digest: str  # sha256 of the workload, overrides included
    seed: int
    warmup: str  # description of the cache warm-up
    endpoint: EndpointFacts
    provenance: ServerProvenance
    price: Price | None = None
    label: str | None = None  # chosen by the user
    text_sha256: str | None = None  # digest of the prompt text
    cache_forecast: CacheForecast | None = None  # None if no prompts share a prefix
    trace_sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """A complete measurement."""

    schema_version: int
    run: Run
    end_reason: EndReason
    points: tuple[Point, ...]
    comparability_issues: tuple[ComparabilityIssue, ...]
    knee_rps: Rate | None = None  # highest sustained rate, if any

    @property
    def knee_reached(self) -> bool:
        """Whether a rate was not sustained; otherwise the knee may be above the highest measured rate."""
        return any(point.sustained is False for point in self.points)

    @property
    def comparable(self) -> bool:
        """Whether the result has no comparability issue."""
        return not self.comparability_issues

    def to_json(self) -> str:
        """Return the result as JSON text without None fields. Raises BenchError if `from_json` would reject it."""
        text = type_adapter(BenchResult).dump_json(self, indent=2, exclude_none=True).decode() + "\n"
        self.from_json(text, location="the result of this measurement")
        return text

    @classmethod
    def from_json(cls, text: str, *, location: str) -> "BenchResult":
        """Parse a result read from `location`. Raises BenchError for another schema version or damaged data."""
        version = parse_strict(dict[str, object], text, description="result of `deploy bench`", location=location).get(
            "schema_version"
        )
        if version != RESULT_SCHEMA:
            raise BenchError(
                f"the result has schema version `{version}`; this version of `deploy` reads `{RESULT_SCHEMA}`",
                location=location,
                hint="use the version of `deploy` that wrote it, or measure again",
            )
        return parse_strict(cls, text, description="result of `deploy bench`", location=location)


Parsed = TypeVar("Parsed")


def parse_strict(form: type[Parsed], text: str, *, description: str, location: str) -> Parsed:
    """Parse JSON text and validate types and bounds. Raises BenchError if it is not a valid `description`."""
    try:
        return type_adapter(form).validate_json(text, strict=True)  # type: ignore[arg-type, no-any-return]
    except ValidationError as error:
        problems = validation_problems(error)[:10]
    raise BenchError(f"not a valid {description}", location=location, problems=problems)
