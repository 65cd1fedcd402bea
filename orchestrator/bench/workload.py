"""Workloads: request shape, rates and SLO, from the files in profiles/workloads/."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError, model_validator

from orchestrator.bench.traces.synthetic import SessionShape
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import ProfileError, UsageError
from orchestrator.core.files import read_file
from orchestrator.core.suggest import did_you_mean
from orchestrator.core.validation import StrictModel, Text, read_model, validation_problems

Rate = Annotated[float, Field(gt=0, le=10_000)]
Share = Annotated[float, Field(ge=0, le=1)]
_MAX_PROMPT_TOKENS: Final = 200_000_000  # about 1 GB of token ids as JSON
ANY_IDS: Final = (100, 499)  # ids in every vocabulary, above the usual special tokens


# Keys of sessions only, and keys of independent prompts only.
_OF_SESSIONS: Final = frozenset({"sessions", "trace", "speeds", "max_think_time_s", "max_context", "warmup_requests"})
_OF_PROMPTS: Final = frozenset({"cache_hit_rate", "num_prefixes", "request_rates", "ramp", "arrivals"})


class RateRamp(StrictModel):
    """Increasing rates after the listed ones, as long as the load is sustained."""

    step_rps: Rate
    max_rps: Rate


class SustainedLimits(StrictModel):
    """The SLO: a sustained rate keeps each p95, and goodput counts the requests below all of them."""

    ttft_p95_s: Annotated[float, Field(gt=0)] = 5.0
    tpot_p95_s: Annotated[float, Field(gt=0)] | None = None  # time per output token after the first
    e2e_p95_s: Annotated[float, Field(gt=0)] | None = None  # for a whole request
    success_share: Share = 0.99


class Workload(StrictModel):
    """One workload, with lengths in tokens of the model.

    Prompts are random token ids or passages of a text. Random ids are unpredictable and do not measure speculation.
    """

    description: str = ""
    source: str = ""
    input_tokens: Annotated[int, Field(ge=2, le=10_000_000)] = 0  # 0: of `sessions` or `trace`
    output_tokens: Annotated[int, Field(ge=2, le=10_000_000)] = 0
    sessions: SessionShape | None = None  # synthetic sessions, instead of independent prompts
    trace: Text | None = None  # a file or directory of recorded sessions, instead of independent prompts
    cache_hit_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    num_prefixes: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    prompts: Literal["random", "text"] = "random"
    token_ids: tuple[Annotated[int, Field(ge=0)], int] = ANY_IDS  # first and last id to draw from
    text_file: Text | None = None  # by default the built-in text
    temperature: Annotated[float, Field(ge=0)] = 0.0
    load: Literal["open", "closed"] = "open"
    arrivals: Literal["constant", "poisson"] = "constant"
    request_rates: tuple[Rate, ...] = ()
    ramp: RateRamp | None = None
    speeds: tuple[Rate, ...] = (1.0,)  # factors on a trace's recorded arrivals, one point each
    concurrency: Annotated[int, Field(ge=1, le=100_000)] | None = None  # requests; of sessions, with their subagents
    max_think_time_s: Annotated[float, Field(ge=0)] | None = None  # bound of the delays within a session
    max_context: Annotated[int, Field(ge=2)] | None = None  # tokens; a session ends before a longer request
    warmup_requests: Annotated[int, Field(ge=0, le=1_000_000)] = 0  # first requests of the sessions, not measured
    requests: Annotated[int, Field(ge=2, le=1_000_000)] = 100  # per point; of a trace all, unless set
    duration_s: Annotated[float, Field(gt=0, le=86_400)] | None = None  # per rate, instead of `requests`
    seed: int = 1
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    slo: SustainedLimits = SustainedLimits()

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> "Workload":
        has_lengths = "input_tokens" in self.model_fields_set and "output_tokens" in self.model_fields_set
        if [has_lengths, self.sessions is not None, self.trace is not None].count(True) != 1:
            raise ValueError("needs either `input_tokens` and `output_tokens`, `sessions`, or `trace`")
        self._check_load()
        if not self.has_sessions and (unfit := _OF_SESSIONS & self.model_fields_set):
            raise ValueError(f"`{min(unfit)}` requires `sessions` or `trace`")
        if self.has_sessions and (unfit := _OF_PROMPTS & self.model_fields_set):
            raise ValueError(f"`{min(unfit)}` is for independent prompts")
        if self.prompts != "random" and "token_ids" in self.model_fields_set:
            raise ValueError("`token_ids` requires `prompts: random`")
        if self.token_ids[1] <= self.token_ids[0]:
            raise ValueError("`token_ids` must be a range: first id, last id")
        if self.prompts == "random" and self.text_file is not None:
            raise ValueError("`text_file` requires `prompts: text`")
        if (tokens := self._most_prompt_tokens()) > _MAX_PROMPT_TOKENS:
            raise ValueError(
                f"the prompts of one point have {tokens:,} tokens in memory; the maximum is "
                f"{_MAX_PROMPT_TOKENS:,}: reduce `requests`, `duration_s`, `num_prefixes` or `input_tokens`"
            )
        return self

    def _check_load(self) -> None:
        if self.load == "open" and self.trace is not None:
            if self.request_rates or self.ramp or self.concurrency is not None:
                raise ValueError("a trace has its own arrivals: use `speeds`, or `load: closed` and `concurrency`")
        elif self.sessions is not None and (self.load == "open" or self.concurrency is None):
            raise ValueError("`sessions` needs `load: closed` and `concurrency`")
        elif self.load == "open" and (not self.request_rates or self.concurrency is not None):
            raise ValueError("an open load needs `request_rates` and has no `concurrency`")
        if self.load == "closed" and (self.concurrency is None or self.request_rates or self.ramp):
            raise ValueError("a closed load needs `concurrency` and has neither `request_rates` nor `ramp`")
        if list(self.request_rates) != sorted(set(self.request_rates)):
            raise ValueError("`request_rates` must rise")
        if not self.speeds or list(self.speeds) != sorted(set(self.speeds)):
            raise ValueError("`speeds` must rise")
        if self.load == "closed" and "speeds" in self.model_fields_set:
            raise ValueError("`speeds` are for recorded arrivals, and `load: closed` has none")

    @property
    def has_sessions(self) -> bool:
        """Whether the load consists of sessions (synthetic or recorded), not independent prompts."""
        return self.sessions is not None or self.trace is not None

    def _most_prompt_tokens(self) -> int:
        """Return the prompt tokens of the largest point; a shared prefix counts once."""
        if self.has_sessions:
            return 0  # built while the load runs
        last = max([*self.request_rates, *([self.ramp.max_rps] if self.ramp else [])], default=0.0)
        prompts = self.requests_at(last) if self.load == "open" else self.requests
        suffix_tokens = self.input_tokens - self.prefix_tokens
        return self.num_prefixes * self.input_tokens + prompts * suffix_tokens

    @property
    def prefix_tokens(self) -> int:
        """The length of the shared prefix of each prompt, in tokens."""
        return round(self.input_tokens * self.cache_hit_rate)

    def requests_at(self, rate_rps: float) -> int:
        """Return the number of requests at one rate."""
        return max(2, round(rate_rps * self.duration_s)) if self.duration_s is not None else self.requests

    def to_dict(self) -> dict[str, object]:
        """Return the workload as JSON data; random prompts omit the fields of text prompts, for a stable digest."""
        omitted = {"prompts", "text_file"} if self.prompts == "random" else {"token_ids"}
        omitted |= _OF_PROMPTS | {"input_tokens", "output_tokens"} if self.has_sessions else _OF_SESSIONS
        return {**self.model_dump(mode="json", exclude=omitted), "slo": self.slo.model_dump(exclude_none=True)}

    def digest(self, trace_digest: str | None = None) -> str:
        """Return the hex sha256 of the JSON data, with the digest of a trace in place of its path."""
        data = {**self.to_dict(), **({"trace": trace_digest} if trace_digest else {})}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


_FILES = (".yaml", ".yml")
_TRACES = (".jsonl", ".json")


def workload_name(name_or_file: str) -> str:
    """Return the name of a workload: the name itself (which may contain a dot), or the stem of a file."""
    return Path(name_or_file).stem if name_or_file.endswith((*_FILES, *_TRACES)) else name_or_file


def validate_workload(data: Mapping[str, object]) -> Workload:
    """Return the workload described by options. Raises UsageError with each problem."""
    try:
        return Workload.model_validate(data)
    except ValidationError as error:
        raise UsageError("invalid workload", problems=validation_problems(error)) from error


def load_workload(name_or_file: str, *, catalog: Catalog | None = None) -> Workload:
    """Load a workload by name from the catalog, or from a file; a trace is a workload with its recorded arrivals.

    Raises UsageError for an unknown name or a missing file, ProfileError with the location of each problem.
    """
    catalog = catalog or Catalog.from_environment()
    if name_or_file.endswith(_TRACES):
        return validate_workload({"trace": name_or_file})
    path = Path(name_or_file) if name_or_file.endswith(_FILES) else catalog.find(EntryKind.WORKLOAD, name_or_file)
    if path is None or not path.is_file():
        suggestion = did_you_mean(name_or_file, catalog.names(EntryKind.WORKLOAD))
        hint = suggestion if suggestion.endswith("?") else f"{suggestion}, or a .yaml or .jsonl file"
        raise UsageError(f"no workload `{name_or_file}` found", hint=hint)
    return read_model(path, Workload, catalog.display_path(path))


def require_context(name: str, workload: Workload, context: int, profile: str) -> None:
    """Raise UsageError if a request of the workload is longer than the context of a profile."""
    needed = workload.input_tokens + workload.output_tokens  # unknown for sessions, which `bench` checks
    if needed > context:
        raise UsageError(
            f"a request of `{name}` has {needed:,} tokens; the context of `{profile}` has {context:,}",
            hint="`-w WORKLOAD` with shorter prompts, or a profile with a longer context",
        )


DEFAULT_TEXT: Final = "alice"  # profiles/texts; public domain
# Its token ids, seven characters each at most, must fit into one response of the server.
MAX_TEXT_BYTES: Final = 1 << 18
MIN_TEXT_TOKENS: Final = 1000  # with fewer, prompts share their start and hit the cache


def read_text(workload: Workload, *, catalog: Catalog | None = None) -> str:
    """Read the text of a workload with text prompts, "" for random ones. Raises ProfileError for an unreadable file."""
    if workload.prompts == "random":
        return ""
    catalog = catalog or Catalog.from_environment()
    path = Path(workload.text_file) if workload.text_file else catalog.path(EntryKind.TEXT, DEFAULT_TEXT)
    try:
        return read_file(path, max_bytes=MAX_TEXT_BYTES).decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        hint = f"remove `text_file` to use the built-in text; a text has at most {MAX_TEXT_BYTES} bytes"
        raise ProfileError(f"cannot read `text_file`: {reason}", location=str(path), hint=hint) from error
