"""The cost of output tokens on a rented or owned node, by utilization, and its electricity. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.published import PriceBook, parse_by_gpu, split_currency
from orchestrator.core.errors import UsageError
from orchestrator.report.compare import Comparison

UTILIZATIONS: Final = (1.0, 0.8, 0.6, 0.4, 0.2)  # share of hours at the knee; the node is idle otherwise
_PER_TOKENS: Final = "{} per million output tokens"


@dataclass(frozen=True, kw_only=True)
class NodePower:
    """The power of each node from the user: watts under load by GPU ("": any), price of a kWh, and PUE."""

    watts: Mapping[str, float] = field(default_factory=dict)
    per_kwh: float | None = None
    currency: str = "USD"  # of `per_kwh`; never converted
    pue: float = 1.0

    @classmethod
    def parse(cls, watts: Iterable[str], kwh: str | None, pue: float) -> "NodePower":
        """Parse command line options: `watts` such as `9000` (any node) and `MI355X=13500`, `kwh` `0.25` or `0.25EUR`.

        Raises UsageError for invalid values, and for a price without watts.
        """
        currency, prices = split_currency([kwh] if kwh else [])
        try:
            per_kwh = float(prices[0]) if prices else None
        except ValueError as error:
            raise UsageError(f"invalid price `--electricity-price {kwh}`", hint="such as 0.25 or 0.25EUR") from error
        hint = "power of the whole node under load: `--node-watts 13500` or `--node-watts MI355X=13500`"
        parsed = parse_by_gpu(watts, what="power", hint=hint)
        for option, value, least in (("electricity-price", per_kwh, 0), ("pue", pue, 1)):
            if value is not None and not least <= value < 1e6:
                raise UsageError(f"invalid value `--{option} {value:g}`", hint=f"a number of at least {least}")
        if per_kwh is not None and not parsed:
            raise UsageError(
                "`--electricity-price` needs the node's power", hint="`--node-watts W`, of the whole node under load"
            )
        return cls(watts=parsed, per_kwh=per_kwh, pue=pue, currency=currency)

    def watts_of(self, comparison: Comparison) -> float | None:
        """Return the watts of the node of a result; None if unknown."""
        return self.watts.get((comparison.result.run.provenance.gpu or "").lower(), self.watts.get(""))


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """One quantity of all results, in their order; None if an input is unknown."""

    name: str
    unit: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """A table of costs at the knee of each result, and its inputs with their sources."""

    labels: tuple[str, ...]
    rows: tuple[CostRow, ...]
    inputs: tuple[str, ...]


def costs_of(comparisons: tuple[Comparison, ...], prices: PriceBook, power: NodePower) -> Costs | None:
    """Return the table of costs; None without a knee in any result, or without both price and power."""
    found = tuple(comparison for comparison in comparisons if _tok_s(comparison) is not None)
    rows = tuple(row for row in _rows(found, prices, power) if any(value is not None for value in row.values))
    if not rows:
        return None
    inputs = tuple(dict.fromkeys(_inputs(found, prices, power)))
    return Costs(labels=tuple(item.label for item in found), rows=rows, inputs=inputs)


def _rows(found: tuple[Comparison, ...], prices: PriceBook, power: NodePower) -> Iterator[CostRow]:
    """Yield the rows; a rented or owned node is paid for all hours and used in a share of them."""
    rented, owned = [_rent(item) for item in found], [_ownership(item, prices) for item in found]
    for paid, hourly in (("rented", rented), ("owned", owned)):
        for share in UTILIZATIONS:
            used = [item / share if item else None for item in hourly]
            name = f"{paid}, {share:.0%} of the hours used"
            yield CostRow(name=name, unit=_PER_TOKENS.format("USD"), values=_per_million(found, used))
    electricity = _per_million(found, [_electricity(item, power) for item in found])
    yield CostRow(name="electricity alone", unit=_PER_TOKENS.format(power.currency), values=electricity)
    per_watt = tuple(_per_watt(item, power) for item in found)
    yield CostRow(name="output tok/s per watt of the node", unit="", values=per_watt)


def _tok_s(comparison: Comparison) -> float | None:
    return comparison.best.of(metrics.OUTPUT).measured if comparison.best is not None else None


def _per_million(found: tuple[Comparison, ...], hourly: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return the price of a million output tokens of each result, at its price of a used hour."""
    return tuple(metrics.usd_per_million_tokens(price, _tok_s(item)) for item, price in zip(found, hourly, strict=True))


def _rent(comparison: Comparison) -> float | None:
    """Return USD per hour of the node at the price from the user, given now or at the measurement."""
    return _of_node(comparison, comparison.usd_per_gpu_hour if comparison.price_source == "given" else None)


def _ownership(comparison: Comparison, prices: PriceBook) -> float | None:
    """Return USD per hour of the node at the published total cost of ownership."""
    return _of_node(comparison, prices.published_price_of(comparison.result.run.provenance.gpu)[0])


def _of_node(comparison: Comparison, usd_per_gpu_hour: float | None) -> float | None:
    gpus = comparison.result.run.provenance.gpus
    return usd_per_gpu_hour * gpus if usd_per_gpu_hour and gpus else None


def _electricity(comparison: Comparison, power: NodePower) -> float | None:
    """Return the price of one hour of electricity for the node, including PUE."""
    watts = power.watts_of(comparison)
    return watts / 1000 * power.pue * power.per_kwh if watts is not None and power.per_kwh is not None else None


def _per_watt(comparison: Comparison, power: NodePower) -> float | None:
    tok_s, watts = _tok_s(comparison), power.watts_of(comparison)
    return tok_s / watts if tok_s is not None and watts else None


def _inputs(found: tuple[Comparison, ...], prices: PriceBook, power: NodePower) -> Iterator[str]:
    for item in found:
        gpu = item.result.run.provenance.gpu
        if _rent(item):
            yield f"rented: ${item.usd_per_gpu_hour:.2f} per GPU-hour, given"
        price, source = prices.published_price_of(gpu)
        if price and _ownership(item, prices):
            yield f"owned: ${price:.2f} per {gpu}-hour, {source}; the source defines what it includes"
        if (watts := power.watts_of(item)) is not None:
            yield f"power of the {gpu or 'unknown'} node: {watts:g} W, given"
            if (hourly := _electricity(item, power)) is not None:
                a_kwh, an_hour = (f"{amount} {power.currency}" for amount in (f"{power.per_kwh:g}", f"{hourly:.2f}"))
                yield f"electricity: {a_kwh} a kWh, PUE {power.pue:g}, given: {an_hour} an hour"
    yield "throughput: output tok/s at the knee; unused hours cost the same and earn nothing"
