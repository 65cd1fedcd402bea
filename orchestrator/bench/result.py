"""The result of a measurement, as it is written to `result.json` and read again by `compare` and `report`.

Every figure carries its unit in its name: `_s` seconds, `_rps` requests per second, `_tok_per_s` tokens per second,
`_share` a part of 1. What could not be measured is absent (None), never zero.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Final, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from orchestrator.core.errors import BenchError
from orchestrator.core.validation import validation_problems

RESULT_SCHEMA: Final = 2
RESULT_FILE: Final = "result.json"


# What stands in a file: finite, and small enough for whatever is computed from it.
MOST_AMOUNT = 1e15
Amount = Annotated[float, Field(ge=0, le=MOST_AMOUNT, allow_inf_nan=False)]
Slope = Annotated[float, Field(ge=-MOST_AMOUNT, le=MOST_AMOUNT, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Number = Annotated[int, Field(ge=1, le=1 << 20)]


class MarkKind(StrEnum):
    """Why a result must not be compared with a published one without a word of warning."""

    SIMULATED_ACCEPTANCE = "simulated-acceptance"
    KERNEL_MISS = "kernel-miss"
    UNMET_HIT_SHARE = "unmet-hit-share"
    UNKNOWN_HIT_SHARE = "unknown-hit-share"
    UNKNOWN_KERNELS = "unknown-kernels"  # the log that tells which kernels ran could not be read
    FAILED_REQUESTS = "failed-requests"
    WRONG_LENGTH = "wrong-length"  # of older results; an answer of another length is a failed request now
    CLIENT_LAGGED = "client-lagged"  # the load client did not keep its own schedule
    INCOMPLETE = "incomplete"  # interrupted, or the endpoint died
    RANDOM_PROMPTS = "random-prompts"  # which say nothing about speculation, and it was on
    CHANGED_WORKLOAD = "changed-workload"  # requests or duration were overridden on the command line


class BenchEnding(StrEnum):
    """How a run, or one point of it, came to its end."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    ENDPOINT_DIED = "endpoint-died"


@dataclass(frozen=True, kw_only=True)
class ComparabilityIssue:
    """One reason why the result is not comparable; `point` is the label of the point it concerns, "" for all."""

    kind: MarkKind
    detail: str
    point: str = ""


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """A distribution, in the unit of the field that holds it; percentiles are linearly interpolated."""

    count: Count
    mean: Amount
    p50: Amount
    p90: Amount
    p95: Amount
    p99: Amount
    max: Amount


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Tokens per second over `seconds`. Per node: what this one endpoint gave; per GPU: divided by the GPUs it uses."""

    seconds: Amount
    output_tok_per_s: Amount
    total_tok_per_s: Amount  # output tokens, and the prompts (cached ones too) of requests that began to answer
    output_tok_per_s_per_gpu: Amount | None = None
    total_tok_per_s_per_gpu: Amount | None = None


@dataclass(frozen=True, kw_only=True)
class Latency:
    """What the client saw, over successful requests. Open loop: `from_schedule` counts from the planned arrival."""

    ttft_from_schedule_s: Distribution
    ttft_from_send_s: Distribution
    e2e_from_schedule_s: Distribution
    e2e_from_send_s: Distribution
    tpot_s: Distribution | None = None  # (end - first token) / (output tokens - 1), a request
    itl_per_chunk_s: Distribution | None = None  # gaps between chunks that carry tokens; see tokens_per_chunk
    tokens_per_chunk: Amount | None = None  # mean; above 1 an inter-chunk gap is not an inter-token gap


@dataclass(frozen=True, kw_only=True)
class CacheHits:
    """How much of the prompts came from the prefix cache."""

    wanted_share: Share
    usage_share: Amount | None = None  # from the `cached_tokens` of each answer
    usage_share_per_request: Distribution | None = None
    metrics_share: Amount | None = None  # from the server's counters before and after


@dataclass(frozen=True, kw_only=True)
class ServerCounts:
    """The server's own counters over this point (after minus before, summed over replicas), and sampled gauges."""

    requests: Count | None = None
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    cached_tokens: Count | None = None
    ttft_mean_s: Amount | None = None
    e2e_mean_s: Amount | None = None
    retractions: Count | None = None
    accept_length: Amount | None = None  # tokens a verification step gave; absent without speculation
    queue_depth_mean: Amount | None = None
    queue_depth_max: Amount | None = None
    running_max: Amount | None = None  # requests at once


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Energy of all GPUs over the point, from the counters of amd-smi or nvidia-smi."""

    valid: bool  # False: a counter was missing, went backwards or did not move; then only `reason` is to be trusted
    source: str
    reason: str = ""
    seconds: Amount | None = None
    joules: Amount | None = None
    mean_watts: Amount | None = None
    joules_per_output_token: Amount | None = None
    output_tok_per_s_per_watt: Amount | None = None


@dataclass(frozen=True, kw_only=True)
class FailureCount:
    """Requests that failed in one way. `kind` is refused, reset, timeout, http-<status>, stream-error, ..."""

    kind: str
    count: Count
    example: str


@dataclass(frozen=True, kw_only=True)
class Point:
    """One offered rate (open loop) or one concurrency (closed loop)."""

    label: str  # `2.25` (rps) or `closed-1` (concurrency)
    arrivals: str  # constant | poisson | closed
    ending: BenchEnding
    started_at: str  # ISO 8601, UTC
    requests: Count  # that were due, and sent
    succeeded: Count
    success_share: Share
    failures: tuple[FailureCount, ...]
    input_tokens: Count  # of successful requests, by the server's count
    output_tokens: Count
    concurrency: Number | None = None
    offered_rps: Rate | None = None
    sent_rps: Amount | None = None
    achieved_rps: Amount | None = None  # successful completions per second in the steady window
    # of the requests due in the steady window, the share that was completed in it
    completion_ratio: Amount | None = None
    ttft_growth_s_per_s: Slope | None = None  # how fast the wait grows while the load stands; see bench/steady.py
    goodput_rps: Amount | None = None  # completions per second, full run, that meet the workload's TTFT limit
    window: Throughput | None = None  # the steady window: from the end of the ramp to the last arrival
    full_run: Throughput | None = None  # first scheduled arrival to last completion, ramp and drain included
    latency: Latency | None = None
    send_lag_s: Distribution | None = None  # how late the client itself began a request
    cache: CacheHits | None = None
    server: ServerCounts | None = None
    energy: Energy | None = None
    usd_per_million_output_tokens: Amount | None = None
    sustained: bool | None = None  # None: too short to tell, or a closed loop
    not_sustained_because: tuple[str, ...] = ()
    capped: str | None = None  # that as many requests ran as the server admits: its setting was measured, not the GPUs


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a GPU costs; `source` is `given` or names the publication."""

    usd_per_gpu_hour: Amount
    source: str


@dataclass(frozen=True, kw_only=True)
class EndpointFacts:
    """What was measured, as the endpoint tells it."""

    url: str
    api: str  # completions | generate
    served_model: str
    engine: str | None = None  # sglang | None where it does not say
    engine_version: str | None = None
    replicas: Number = 1  # data-parallel replicas, each with a prefix cache of its own
    context_length: Count | None = None
    page_size: Count | None = None
    speculative: str | None = None  # algorithm and settings, where speculation is on


@dataclass(frozen=True, kw_only=True)
class ServerProvenance:
    """What stood behind the endpoint, where this tool started it: plan, image, patches, kernel gate, host."""

    name: str | None = None
    profile: str | None = None
    plan: dict[str, object] | None = None
    plan_digest: str | None = None
    image_digest: str | None = None
    patch_receipt: dict[str, object] | None = None
    kernel_gate: dict[str, object] | None = None
    host: dict[str, object] | None = None
    gpu: str | None = None  # hardware name of the plan, `mi355x`
    gpus: Count | None = None
    layout: str | None = None  # `TP4×DP2`, of an endpoint without a plan whose user named it


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything about a measurement that is not a figure."""

    tool_version: str
    started_at: str  # ISO 8601, UTC
    ended_at: str
    command: str  # quoted argv that repeats it
    workload_name: str
    workload: dict[str, object]
    workload_digest: str  # sha256 over the workload as used (overrides included)
    seed: int
    warmup: str  # how the prefix caches were filled, in words
    endpoint: EndpointFacts
    provenance: ServerProvenance
    price: Price | None = None
    label: str | None = None  # what the user calls it
    text_sha256: str | None = None  # of the text that prompts were cut from


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """A whole measurement."""

    schema_version: int
    run: Run
    ending: BenchEnding
    points: tuple[Point, ...]
    marks: tuple[ComparabilityIssue, ...]
    knee_rps: Rate | None = None  # the highest sustained rate, where one was found

    @property
    def knee_reached(self) -> bool:
        """Whether a rate was not sustained: else the knee lies at the highest rate that was measured, or above it."""
        return any(point.sustained is False for point in self.points)

    @property
    def comparable(self) -> bool:
        """Whether nothing speaks against laying this beside a published figure."""
        return not self.marks

    def to_json(self) -> str:
        """Return the result as JSON text without empty fields. Raises BenchError where `from_json` would refuse it."""
        text = _result().dump_json(self, indent=2, exclude_none=True).decode() + "\n"
        self.from_json(text, where="the result of this measurement")
        return text

    @classmethod
    def from_json(cls, text: str, *, where: str) -> "BenchResult":
        """Read a result; `where` names its origin. Raises BenchError for another schema or a damaged file."""
        version = read_strictly(_VERSIONED, text, what="result of `deploy bench`", where=where).get("schema_version")
        if version != RESULT_SCHEMA:
            raise BenchError(
                f"result has schema version `{version}`, this tool reads `{RESULT_SCHEMA}`",
                where=where,
                hint="read it with the version of `deploy` that wrote it, or measure again",
            )
        return read_strictly(_result(), text, what="result of `deploy bench`", where=where)


Kind = TypeVar("Kind")


def read_strictly(kind: TypeAdapter[Kind], text: str, *, what: str, where: str) -> Kind:
    """A file that `deploy` wrote and anybody may have changed: its types and bounds hold. Raises BenchError."""
    try:
        return kind.validate_json(text, strict=True)
    except ValidationError as error:
        problems = validation_problems(error)[:10]
    raise BenchError(f"not a {what}, or a damaged one", where=where, problems=problems)


_VERSIONED: Final = TypeAdapter(dict[str, object])


@cache
def _result() -> TypeAdapter[BenchResult]:
    """Made when a result is read or written: 40 ms of every command otherwise."""
    return TypeAdapter(BenchResult)
