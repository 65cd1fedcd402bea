"""Published results and prices: profiles/published/<name>.yaml, each with source, unit and caveats."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, RootModel

from orchestrator.bench.workload import workload_name
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import UsageError
from orchestrator.core.suggest import did_you_mean
from orchestrator.core.validation import StrictModel, read_model

_Share = Annotated[float, Field(ge=0, le=1)]
_Positive = Annotated[float, Field(gt=0)]


class WorkloadShape(StrictModel):
    """The request shape: input and output tokens, and the share of the prompt from the prefix cache."""

    name: str
    input_tokens: int
    output_tokens: int
    cache_hit_rate: _Share


class PublishedKnee(StrictModel):
    """The highest published rate that met the limits."""

    rate_rps: _Positive
    ttft_p95_limit_s: _Positive
    success_share: _Share
    caveat: str = ""


class PublishedRate(StrictModel):
    """One row of a published table; throughput in the unit of the file."""

    rate_rps: _Positive
    output_tok_s: _Positive
    ttft_p50_s: _Positive
    ttft_p95_s: _Positive
    success_share: _Share


class PublishedLayout(StrictModel):
    """The best published throughput of one layout; `rate_rps` is None if it was not published."""

    system: str
    layout: str
    variant: str = ""
    output_tok_s: _Positive
    rate_rps: float | None = None
    caveat: str = ""


class SingleStream(StrictModel):
    """Output tok/s of one request at a time."""

    workload: str
    layout: str
    input_tokens: int
    output_tokens: int
    output_tok_s: _Positive
    caveat: str = ""


class EvalScore(StrictModel):
    """A published score with its ±; the caveat of the row explains the kind of ±."""

    label: str
    score: _Share
    plus_minus: float | None = None

    @property
    def display_label(self) -> str:
        """The label, with the ± if one was published."""
        return self.label if self.plus_minus is None else f"{self.label}, ± {self.plus_minus:g}"


class PublishedEval(StrictModel):
    """Two published scores of one suite. `questions` counts questions, `samples` counts answers (seeds × questions)."""

    suite: str
    model: str
    title: str
    questions: int | None = None
    samples: int | None = None
    baseline: EvalScore
    candidate: EvalScore
    caveat: str

    def is_of(self, served: str) -> bool:
        """Return whether a served model is the published one, by its name, such as `zai-org/GLM-5.2-FP8`."""
        return f"{served.rpartition('/')[2]}-".lower().startswith(f"{self.model}-".lower())


class Quote(StrictModel):
    """A sentence of the publication. `values` maps keys of a profile to the values that it states for `layout`."""

    text: str
    layout: str = ""
    values: dict[str, bool | int | float | str] = Field(default_factory=dict)
    subject: str = ""


class BoardPower(StrictModel):
    """Rated power of one GPU."""

    gpu: str
    watts: int


class PriceClaim(StrictModel):
    """A published ratio of the prices of two GPUs: `gpu` is `times` cheaper than `than`."""

    gpu: str
    than: str
    times: _Positive


class Claim(StrictModel):
    """A claim of the publication, in its words; with `price` it can be checked against prices."""

    text: str
    price: PriceClaim | None = None


class ReproduceRun(StrictModel):
    """One server to start, with its workloads and evaluation suites."""

    profile: str
    called: str = ""  # name of the server; by default that of its profile
    settings: tuple[str, ...] = ()  # overrides in the form of `--set`
    workloads: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()

    @property
    def server(self) -> str:
        """The name of the server: by default that of the profile, or the stem of a profile file."""
        return self.called or workload_name(self.profile)


class Ablation(ReproduceRun):
    """A server without one feature, measured to find the effect of the feature."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    claim: str  # published claim that the ablation tests
    settings: tuple[str, ...]  # suites run on both servers; the ablation is the baseline

    @property
    def is_baseline(self) -> bool:
        """Whether `reproduce` also measures another checkpoint as the baseline of the published scores."""
        return bool(self.suites) and any(setting.startswith("model=") for setting in self.settings)

    @property
    def full_server(self) -> str:
        """The name of the server with the feature."""
        return super().server

    @property
    def server(self) -> str:
        """The name of the server without the feature."""
        return f"{self.full_server}-{self.name}"


class PublishedModel(StrictModel):
    """A catalog entry like the published checkpoint, used `instead_of` another one if its checkpoint is on the host."""

    name: str
    instead_of: str

    def describe(self, model: object) -> str:
        """Describe whether a model is like the published one; empty for any model but these two."""
        if model == self.name:
            return "of the published kind"
        return f"not of the published kind, as `{self.name}` is" if model == self.instead_of else ""


class Reproduce(StrictModel):
    """The runs of `deploy reproduce`; an ablation runs on request, a baseline if its checkpoint is on the host."""

    summary: str
    published_model: PublishedModel | None = None
    runs: tuple[ReproduceRun, ...]
    ablations: tuple[Ablation, ...] = ()

    def baseline_of(self, suite: str) -> Ablation | None:
        """Return the baseline whose scores of a suite can be measured, or None."""
        return next(
            (ablation for ablation in self.ablations if ablation.is_baseline and suite in ablation.suites), None
        )

    def ablation_of(self, server: str | None) -> Ablation | None:
        """Return the ablation with this server name, or None."""
        return next((ablation for ablation in self.ablations if ablation.server == server), None)


class Published(StrictModel):
    """A published measurement to compare with. Throughput is output tok/s per node."""

    kind: Literal["comparison"]
    name: str
    title: str
    source: str
    date: str
    workload: WorkloadShape
    gpus: int
    unit: Literal["output tok/s per node"]
    tolerance: _Share
    knee: PublishedKnee
    rates_system: str
    rates_layout: str
    rates: tuple[PublishedRate, ...]
    layouts: tuple[PublishedLayout, ...]
    single_stream: SingleStream
    evals: tuple[PublishedEval, ...]
    power: tuple[BoardPower, ...]
    claims: tuple[Claim, ...]
    quotes: tuple[Quote, ...] = ()
    caveats: tuple[str, ...]
    reproduce: Reproduce


class GpuPrice(StrictModel):
    """The price of one GPU for one hour."""

    gpu: str
    usd_per_gpu_hour: _Positive


class Prices(StrictModel):
    """A published price list."""

    kind: Literal["prices"]
    name: str
    title: str
    source: str
    unit: Literal["USD per GPU-hour"]
    prices: tuple[GpuPrice, ...]
    caveats: tuple[str, ...]

    def gpu_price(self, gpu: str) -> float | None:
        """Return the price of a GPU in USD per hour by its marketing name, or None if it is not listed."""
        return next((entry.usd_per_gpu_hour for entry in self.prices if entry.gpu.lower() == gpu.lower()), None)


AnyPublished = Published | Prices
_Kind = TypeVar("_Kind", Published, Prices)


class _File(RootModel[Annotated[AnyPublished, Field(discriminator="kind")]]):
    """One published file, of any kind."""


def all_published(kind: type[_Kind]) -> tuple[_Kind, ...]:
    """Load all published files of a kind, sorted by name. Raises ProfileError with the location of each problem."""
    catalog = Catalog.from_environment()
    entries = (read_published(path, catalog.display_path(path)) for path in catalog.all(EntryKind.PUBLISHED))
    return tuple(entry for entry in entries if isinstance(entry, kind))


def read_published(path: Path, name: str) -> AnyPublished:
    """Read one published file; `name` is its name in messages."""
    return read_model(path, _File, name).root


def published_workloads() -> frozenset[str]:
    """Return the names of the workloads with published results."""
    entries = all_published(Published)
    return frozenset(name for entry in entries for name in (entry.workload.name, entry.single_stream.workload))


def published_evals() -> tuple[PublishedEval, ...]:
    """Return the first published pair of scores of each suite."""
    lines = [line for table in all_published(Published) for line in table.evals]
    return tuple({line.suite: line for line in reversed(lines)}.values())[::-1]


def load_published(name: str) -> Published:
    """Load a published measurement by name or file. Raises UsageError with similar names if there is none."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            hint = "use a name without `.yaml` for built-in published results"
            raise UsageError(f"no file `{path}` found", hint=hint)
        entry = read_published(path, name)
        if not isinstance(entry, Published):
            raise UsageError(
                f"the file has kind `{entry.kind}`, not `comparison`", location=name, hint="pass a file of that kind"
            )
        return entry
    tables = {entry.name: entry for entry in all_published(Published)}
    if name not in tables:
        raise UsageError(f"no published results named `{name}`", hint=did_you_mean(name, tables))
    return tables[name]


@dataclass(frozen=True, kw_only=True)
class PriceBook:
    """Prices in USD per GPU-hour; the user's prices (by GPU, or "" for any GPU) precede published ones."""

    user_prices: Mapping[str, float]
    published: tuple[Prices, ...]

    def gpu_price(self, gpu: str | None) -> tuple[float | None, str]:
        """Return the price of a GPU by name (case-insensitive) and the source of the price."""
        name = (gpu or "").lower()
        for key in (name, ""):
            if key in self.user_prices:
                return self.user_prices[key], "given"
        for book in self.published:
            if (price := book.gpu_price(name)) is not None:
                return price, f"{book.title} ({book.source})"
        return None, ""


def parse_by_gpu(texts: Iterable[str], *, quantity: str, hint: str) -> dict[str, float]:
    """Parse positive amounts by GPU, in lower case; "" is any GPU. Raises UsageError for anything else."""
    amounts: dict[str, float] = {}
    for text in texts:
        gpu, _, amount = text.rpartition("=")
        try:
            value = float(amount)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise UsageError(f"`{text}` is not a {quantity}", hint=hint)
        amounts[gpu.strip().lower()] = value
    return amounts


def price_book(prices: Sequence[str]) -> PriceBook:
    """Return the command line's prices, with published prices as a fallback."""
    hint = "USD per GPU-hour: `--price 2.10` or `--price MI355X=2.10`"
    user_prices = parse_by_gpu(prices, quantity="price", hint=hint)
    return PriceBook(user_prices=user_prices, published=all_published(Prices))
