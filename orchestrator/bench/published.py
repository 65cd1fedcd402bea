"""Published figures and prices as data: profiles/published/<name>.yaml, each with its source, unit and caveats."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from pydantic import Field, RootModel

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import UsageError
from orchestrator.core.suggest import did_you_mean
from orchestrator.core.validation import StrictModel, read_model

_USD: Final = "USD"
_CURRENCY: Final = re.compile(r"(?<=[\d.])\s*[A-Za-z]{3}\Z")
_Share = Annotated[float, Field(ge=0, le=1)]
_Positive = Annotated[float, Field(gt=0)]


class WorkloadShape(StrictModel):
    """What was sent: tokens a request, and the share of the prompt that came from the prefix cache."""

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
    """The best published throughput of one layout; `rate_rps` is None where it was not given."""

    system: str
    layout: str
    variant: str = ""
    output_tok_s: _Positive
    rate_rps: float | None = None
    caveat: str = ""


class SingleStream(StrictModel):
    """One request at a time: output tok/s of that stream."""

    workload: str
    layout: str
    input_tokens: int
    output_tokens: int
    output_tok_s: _Positive
    caveat: str = ""


class EvalScore(StrictModel):
    """A published score with its ±, whatever kind of ± it is (the row's caveat says)."""

    label: str
    score: _Share
    plus_minus: float | None = None

    @property
    def shown(self) -> str:
        """The label, with the ± where one was published."""
        return self.label if self.plus_minus is None else f"{self.label}, ± {self.plus_minus:g}"


class PublishedEval(StrictModel):
    """Two published scores of one suite. `items` are questions, `samples` answers (seeds × questions)."""

    suite: str
    model: str  # whose scores they are
    title: str
    items: int | None = None
    samples: int | None = None
    baseline: EvalScore
    candidate: EvalScore
    caveat: str


class BoardPower(StrictModel):
    """Rated power of one GPU."""

    gpu: str
    watts: int


def _called(text: str) -> str:
    """A name, which may hold a dot; or that of a file."""
    return Path(text).stem if text.endswith((".yaml", ".yml")) else text


class ReproduceRun(StrictModel):
    """One server to bring up, the workloads to put on it, and the suites to ask it."""

    profile: str
    called: str = ""  # the server; by default as its profile
    settings: tuple[str, ...] = ()  # as `--set` takes them
    workloads: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()

    @property
    def server(self) -> str:
        """What it is called: by default the profile's name, also where that is a file."""
        return self.called or _called(self.profile)

    @property
    def measured(self) -> tuple[str, ...]:
        """Its workloads as results call them."""
        return tuple(_called(workload) for workload in self.workloads)


class Ablation(ReproduceRun):
    """One thing left out of a server, measured beside it: what it brings."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    claim: str  # that it puts to the test
    settings: tuple[str, ...]  # its suites are asked of both, the one left out being the baseline

    @property
    def beside(self) -> str:
        """The server with everything."""
        return super().server

    @property
    def server(self) -> str:
        """The server without."""
        return f"{self.beside}-{self.name}"


class Reproduce(StrictModel):
    """What `deploy reproduce` runs; an ablation only where it is asked for."""

    summary: str
    runs: tuple[ReproduceRun, ...]
    ablations: tuple[Ablation, ...] = ()

    def ablation_of(self, server: str | None) -> Ablation | None:
        """The ablation that a server of this name is, None for any other."""
        return next((ablation for ablation in self.ablations if ablation.server == server), None)


class Published(StrictModel):
    """A published measurement that ours is set beside. Throughput is output tok/s per node."""

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
    claims: tuple[str, ...]
    caveats: tuple[str, ...]
    reproduce: Reproduce


class ReferenceRow(StrictModel):
    """One published line; its values follow the columns of the file."""

    label: str
    values: tuple[float, ...]


class Reference(StrictModel):
    """Figures in another unit or on another workload: shown apart, never beside ours."""

    kind: Literal["reference"]
    name: str
    title: str
    source: str
    unit: str
    columns: tuple[str, ...]
    rows: tuple[ReferenceRow, ...]
    caveats: tuple[str, ...]


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

    def of(self, gpu: str) -> float | None:
        """USD per GPU-hour of a GPU by its marketing name, None where it is not listed."""
        return next((entry.usd_per_gpu_hour for entry in self.prices if entry.gpu.lower() == gpu.lower()), None)


AnyPublished = Published | Reference | Prices
_Kind = TypeVar("_Kind", Published, Reference, Prices)


class _File(RootModel[Annotated[AnyPublished, Field(discriminator="kind")]]):
    """One file, of any kind."""


def load_all_published(catalog: Catalog | None = None) -> tuple[AnyPublished, ...]:
    """Every file of published figures, sorted by name. Raises ProfileError with every fault of one and its line."""
    catalog = catalog or Catalog.from_environment()
    return tuple(read_published(path, catalog.shown(path)) for path in catalog.all(EntryKind.PUBLISHED))


def read_published(path: Path, name: str) -> AnyPublished:
    """The published figures in one file; `name` is its name in messages."""
    return read_model(path, _File, name).root


def of_kind(everything: tuple[AnyPublished, ...], kind: type[_Kind]) -> tuple[_Kind, ...]:
    """Those of one kind."""
    return tuple(entry for entry in everything if isinstance(entry, kind))


def published_workloads() -> frozenset[str]:
    """The workloads that figures were published for: of another shape a result cannot be compared with those."""
    known = of_kind(load_all_published(), Published)
    return frozenset(name for each in known for name in (each.workload.name, each.single_stream.workload))


def load_published(name: str, catalog: Catalog | None = None) -> Published:
    """The published measurement of that name, or in that file. Raises UsageError with the names that exist."""
    if name.endswith((".yaml", ".yml")):
        return _in_file(Path(name))
    found = {entry.name: entry for entry in of_kind(load_all_published(catalog), Published)}
    if name not in found:
        raise UsageError(f"no published figures named `{name}`", hint=did_you_mean(name, found))
    return found[name]


def _in_file(path: Path) -> Published:
    if not path.is_file():
        raise UsageError(f"there is no file `{path}`", hint="a name without `.yaml` is one that ships with the tool")
    found = read_published(path, str(path))
    if not isinstance(found, Published):
        raise UsageError(f"this file is of kind `{found.kind}`, not `comparison`", where=str(path))
    return found


@dataclass(frozen=True, kw_only=True)
class PriceBook:
    """USD per GPU-hour: what the user gave (by GPU, or "" for any), else what was published."""

    given: Mapping[str, float]
    published: tuple[Prices, ...]

    def of(self, gpu: str | None) -> tuple[float | None, str]:
        """The price of a GPU by name (upper or lower case), and where it comes from."""
        name = (gpu or "").lower()
        for key in (name, ""):
            if key in self.given:
                return self.given[key], "given"
        return self.of_owner(gpu)

    def of_owner(self, gpu: str | None) -> tuple[float | None, str]:
        """What owning it costs as was published, whatever the user gave, and where that comes from."""
        for book in self.published:
            if (price := book.of(gpu or "")) is not None:
                return price, f"{book.title} ({book.source})"
        return None, ""


def parse_prices(texts: Iterable[str]) -> dict[str, float]:
    """Read `2.10` (any GPU) and `MI355X=2.10`. Raises UsageError for anything else."""
    given: dict[str, float] = {}
    for text in texts:
        gpu, _, amount = text.rpartition("=")
        try:
            price = float(amount)
        except ValueError:
            price = 0.0
        if not 0 < price < float("inf"):
            raise UsageError(f"not a price: `{text}`", hint="USD per GPU-hour: `--price 2.10` or `--price MI355X=2.10`")
        given[gpu.strip().lower()] = price
    return given


def split_currency(texts: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """The currency that prices were given in, USD where none stands behind them, and the prices without it.

    Raises UsageError for two currencies: nothing is converted.
    """
    found, plain = dict[str, None](), []
    for text in texts:
        amount = _CURRENCY.sub("", text)
        found[text[len(amount) :].strip().upper() or _USD] = None
        plain.append(amount)
    if len(found) > 1:
        raise UsageError(f"prices in {' and '.join(found)}", hint="give them in one currency: nothing is converted")
    return next(iter(found), _USD), tuple(plain)


def price_book(prices: Sequence[str]) -> PriceBook:
    """The prices given on the command line, over those that were published."""
    return PriceBook(given=parse_prices(prices), published=of_kind(load_all_published(), Prices))
