"""Workloads: what is sent, how often, and what must hold. Data files under profiles/workloads/, read strictly."""

import errno
import hashlib
import json
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import ProfileError, UsageError
from orchestrator.core.files import read_file
from orchestrator.core.subprocesses import quote
from orchestrator.core.suggest import did_you_mean
from orchestrator.core.validation import StrictModel, Text, read_model

Rate = Annotated[float, Field(gt=0, le=10_000)]
Share = Annotated[float, Field(ge=0, le=1)]
_MOST_PROMPT_TOKENS: Final = 200_000_000  # some 1 GB of token ids as JSON
ANY_IDS: Final = (100, 499)  # token ids that every tokenizer has, above the special ones of small vocabularies


class RateRamp(StrictModel):
    """Rates beyond the listed ones: up from the last in steps while the load is sustained."""

    step_rps: Rate
    max_rps: Rate


class SustainedLimits(StrictModel):
    """What a sustained rate must meet."""

    ttft_p95_s: Annotated[float, Field(gt=0)] = 5.0
    success_share: Share = 0.99


class Workload(StrictModel):
    """One workload. Tokens are the model's own; shares are parts of 1.

    Prompts are token ids drawn at random, or passages of a text: of random ids a model foretells nothing, so that they
    say nothing about speculation.
    """

    description: str = ""
    source: str = ""
    input_tokens: Annotated[int, Field(ge=2, le=10_000_000)]
    output_tokens: Annotated[int, Field(ge=2, le=10_000_000)]
    cache_hit_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    num_prefixes: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    prompts: Literal["random", "text"] = "random"
    token_ids: tuple[Annotated[int, Field(ge=0)], int] = ANY_IDS  # the first and the last to draw from
    text_file: Text | None = None  # by default the text that ships
    temperature: Annotated[float, Field(ge=0)] = 0.0
    load: Literal["open", "closed"] = "open"
    arrivals: Literal["constant", "poisson"] = "constant"
    request_rates: tuple[Rate, ...] = ()
    ramp: RateRamp | None = None
    concurrency: Annotated[int, Field(ge=1, le=100_000)] | None = None
    requests: Annotated[int, Field(ge=2, le=1_000_000)] = 100  # at each point
    duration_s: Annotated[float, Field(gt=0, le=86_400)] | None = None  # at each rate, instead of `requests`
    seed: int = 1
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    slo: SustainedLimits = SustainedLimits()

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> "Workload":
        if self.load == "open" and (not self.request_rates or self.concurrency is not None):
            raise ValueError("an open load needs `request_rates` and has no `concurrency`")
        if self.load == "closed" and (self.concurrency is None or self.request_rates or self.ramp):
            raise ValueError("a closed load needs `concurrency` and has neither `request_rates` nor `ramp`")
        if list(self.request_rates) != sorted(set(self.request_rates)):
            raise ValueError("`request_rates` must rise")
        if self.prompts != "random" and "token_ids" in self.model_fields_set:
            raise ValueError("`token_ids` are what `prompts: random` draws from, and nothing else has them")
        if self.token_ids[1] <= self.token_ids[0]:
            raise ValueError("`token_ids` is the first and the last id to draw from")
        if self.prompts == "random" and self.text_file is not None:
            raise ValueError("a `text_file` is for `prompts: text`")
        if (tokens := self._most_prompt_tokens()) > _MOST_PROMPT_TOKENS:
            raise ValueError(
                f"the prompts of one point have {tokens:,} tokens, which are kept in memory: at most "
                f"{_MOST_PROMPT_TOKENS:,}; lower `requests`, `duration_s`, `num_prefixes` or `input_tokens`"
            )
        return self

    def _most_prompt_tokens(self) -> int:
        """Tokens of the prompts of its largest point; those of a shared prefix count once."""
        last = max([*self.request_rates, *([self.ramp.max_rps] if self.ramp else [])], default=0.0)
        prompts = self.requests_at(last) if self.load == "open" else self.requests
        own = self.input_tokens - self.prefix_tokens
        return self.num_prefixes * self.input_tokens + prompts * own

    @property
    def prefix_tokens(self) -> int:
        """Tokens at the start of each prompt that come from one of the shared prefixes."""
        return round(self.input_tokens * self.cache_hit_rate)

    def requests_at(self, rate_rps: float) -> int:
        """How many requests are sent at one rate."""
        return max(2, round(rate_rps * self.duration_s)) if self.duration_s is not None else self.requests

    def to_dict(self) -> dict[str, object]:
        """The workload as plain JSON-able data; of random prompts as it was before there were others."""
        unsaid = {"prompts", "text_file"} if self.prompts == "random" else {"token_ids"}
        return self.model_dump(mode="json", exclude=unsaid)

    @property
    def digest(self) -> str:
        """sha256 over the workload's data, hex."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


_FILES = (".yaml", ".yml")


def workload_name(name_or_file: str) -> str:
    """What a workload is called: a name as it stands (it may hold a dot), a file by its own name."""
    return Path(name_or_file).stem if name_or_file.endswith(_FILES) else name_or_file


def load_workload(name_or_file: str, *, catalog: Catalog | None = None) -> Workload:
    """The workload of that name in the catalog, or in a file.

    Raises UsageError for an unknown name or a missing file, ProfileError with file:line for every fault of one.
    """
    catalog = catalog or Catalog.from_environment()
    path = Path(name_or_file) if name_or_file.endswith(_FILES) else catalog.find(EntryKind.WORKLOAD, name_or_file)
    if path is None or not path.is_file():
        known = did_you_mean(name_or_file, catalog.names(EntryKind.WORKLOAD))
        hint = known if known.endswith("?") else f"{known}, or a .yaml file"
        raise UsageError(f"there is no workload `{name_or_file}`", hint=hint)
    return read_model(path, Workload, catalog.shown(path), fault=ProfileError)


SHIPPED_TEXT: Final = "alice"  # profiles/texts: in the public domain
MOST_TEXT_BYTES: Final = (
    1 << 18
)  # of a text: its token ids, seven characters each at most, are one answer of the server
LEAST_TOKENS: Final = 1000  # in fewer, prompts would begin alike and come from cache


def read_text(workload: Workload, *, catalog: Catalog | None = None) -> str:
    """The text of a workload whose prompts are text, "" for another. Raises ProfileError for a file that is none."""
    if workload.prompts == "random":
        return ""
    catalog = catalog or Catalog.from_environment()
    path = Path(workload.text_file) if workload.text_file else catalog.path(EntryKind.TEXT, SHIPPED_TEXT)
    try:
        return read_file(path, most=MOST_TEXT_BYTES).decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        hint = "leave it out to take the text that ships"
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            reason = f"it has more than {MOST_TEXT_BYTES} bytes"
            hint = f"`head -c {MOST_TEXT_BYTES - 4} {quote([str(path)])} | iconv -c -t utf-8 > shorter.txt` cuts it"
        raise ProfileError(f"`text_file` cannot be read: {reason}", where=str(path), hint=hint) from error
