"""Workloads: what is sent, how often, and what must hold. Data files under profiles/workloads/, read strictly."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from orchestrator.core.document import read_document
from orchestrator.core.errors import BenchError, Problem, ProfileError, UsageError
from orchestrator.core.paths import data_root
from orchestrator.core.validation import faults_in

Rate = Annotated[float, Field(gt=0, le=10_000)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Climb(_Part):
    """Rates beyond the listed ones: up from the last in steps while the load is sustained."""

    step_rps: Rate
    up_to_rps: Rate


class SustainedLimits(_Part):
    """What a sustained rate must meet."""

    ttft_p95_s: Annotated[float, Field(gt=0)]
    success_share: Share


class Workload(_Part):
    """One workload. Tokens are the model's own; shares are parts of 1."""

    description: str
    source: str
    input_tokens: Annotated[int, Field(ge=2)]
    output_tokens: Annotated[int, Field(ge=2)]
    cached_share: Annotated[float, Field(ge=0, lt=1)]
    prefixes: Annotated[int, Field(ge=1)]
    token_ids: tuple[Annotated[int, Field(ge=0)], int]
    temperature: Annotated[float, Field(ge=0)]
    load: Literal["open", "closed"]
    arrivals: Literal["constant", "poisson"] = "constant"
    rates_rps: tuple[Rate, ...] = ()
    climb: Climb | None = None
    concurrency: Annotated[int, Field(ge=1)] | None = None
    requests: Annotated[int, Field(ge=2)]  # at each point
    duration_s: Annotated[float, Field(gt=0)] | None = None  # of the arrivals at each rate, instead of `requests`
    seed: int
    timeout_s: Annotated[float, Field(gt=0)]
    limits: SustainedLimits

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> "Workload":
        if self.load == "open" and (not self.rates_rps or self.concurrency is not None):
            raise ValueError("an open load needs `rates_rps` and has no `concurrency`")
        if self.load == "closed" and (self.concurrency is None or self.rates_rps or self.climb):
            raise ValueError("a closed load needs `concurrency` and has neither `rates_rps` nor `climb`")
        if list(self.rates_rps) != sorted(set(self.rates_rps)):
            raise ValueError("`rates_rps` must rise")
        if self.token_ids[1] <= self.token_ids[0]:
            raise ValueError("`token_ids` is the first and the last id to draw from")
        return self

    @property
    def prefix_tokens(self) -> int:
        """Tokens at the start of each prompt that come from one of the shared prefixes."""
        return round(self.input_tokens * self.cached_share)

    def requests_at(self, rate_rps: float) -> int:
        """How many requests are sent at one rate."""
        return max(2, round(rate_rps * self.duration_s)) if self.duration_s is not None else self.requests

    def to_dict(self) -> dict[str, object]:
        """The workload as plain JSON-able data."""
        return self.model_dump(mode="json")

    @property
    def digest(self) -> str:
        """sha256 over the workload's data, hex."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


_FILES = (".yaml", ".yml")


def workload_name(name_or_file: str) -> str:
    """What a workload is called: a name as it stands (it may hold a dot), a file by its own name."""
    return Path(name_or_file).stem if name_or_file.endswith(_FILES) else name_or_file


def load_workload(name_or_file: str, *, directory: Path | None = None) -> Workload:
    """The workload of that name under profiles/workloads/, or in a file.

    Raises UsageError for an unknown name, BenchError with file:line for every fault of a file.
    """
    directory = directory or data_root() / "profiles" / "workloads"
    path = Path(name_or_file) if name_or_file.endswith(_FILES) else directory / f"{name_or_file}.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(f"`{file.stem}`" for file in sorted(directory.glob("*.yaml")))
        raise UsageError(
            f"cannot read workload `{name_or_file}`", where=str(path), hint=f"known workloads: {known}, or a .yaml file"
        ) from error
    return parse_workload(text, name=str(path))


def parse_workload(text: str, *, name: str) -> Workload:
    """Read a workload from YAML text; `name` is the file's name in messages. Raises BenchError."""
    try:
        document = read_document(text, name)
    except ProfileError as error:
        raise BenchError(
            "the workload cannot be read", where=error.where, problems=error.problems or _only(error)
        ) from error
    try:
        return Workload.model_validate_json(json.dumps(document.data))
    except ValidationError as error:
        raise BenchError("the workload is not valid", where=name, problems=faults_in(error, document.place)) from error


def _only(error: ProfileError) -> tuple[Problem, ...]:
    return (Problem(error.message, error.where, error.hint),)
