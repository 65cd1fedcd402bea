"""The cost of output tokens on a rented or owned node, by utilization, and its electricity. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.published import PriceBook, parse_by_gpu, split_currency
from orchestrator.core.errors import UsageError
from orchestrator.report.compare import Comparison

UTILIZATIONS: Final = (1.0, 0.8, 0.6, 0.4, 0.2)  # share of hours at the knee; the node is idle otherwise
_PER_TOKENS: Final = "{} per million output tokens"
_USD: Final = _PER_TOKENS.format("USD")


@dataclass(frozen=True, kw_only=True)
class NodePower:
    """The power of each node from the user: watts under load by GPU ("": any), price of a kWh, and PUE."""

    watts: Mapping[str, float] = field(default_factory=dict)
    per_kwh: float | None = None
    currency: str = "USD"  # of `per_kwh`; never converted
    pue: float = 1.0

    @classmethod
    def given(cls, watts: Iterable[str], kwh: str | None, pue: float) -> "NodePower":
        """Parse command line options: `watts` such as `9000` (any node) and `MI355X=13500`, `kwh` `0.25` or `0.25EUR`.

        Raises UsageError for invalid values.
        """
        currency, prices = split_currency([kwh] if kwh else [])
        try:
            per_kwh = float(prices[0]) if prices else None
        except ValueError as error:
            raise UsageError(f"invalid price `--electricity-price {kwh}`", hint="such as 0.25 or 0.25EUR") from error
        hint = "power of the whole node under load: `--node-watts 13500` or `--node-watts MI355X=13500`"
        parsed = parse_by_gpu(watts, what="power", hint=hint)
        power = cls(watts=parsed, per_kwh=per_kwh, pue=pue, currency=currency)
        power.require()
        return power

    def require(self) -> None:
        """Raise UsageError if a value is out of range, or a price is given without watts."""
        for option, value, least in (
            ("electricity-price", self.per_kwh, 0),
            ("pue", self.pue, 1),
        ):
            if value is not None and not least <= value < 1e6:
                raise UsageError(f"invalid value `--{option} {value:g}`", hint=f"a number of at least {least}")
        if self.per_kwh is not None and not self.watts:
            raise UsageError(
                "`--electricity-price` needs the node's power", hint="`--node-watts W`, of the whole node under load"
            )

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
    found = tuple(each for each in comparisons if _tok_s(each) is not None)
    rows = []
    for name, unit, value in _rows(prices, power):
        values = tuple(map(value, found))
        rows += [CostRow(name=name, unit=unit, values=values)] if any(each is not None for each in values) else []
    if not rows:
        return None
    inputs = tuple(dict.fromkeys(_inputs(found, prices, power)))
    return Costs(labels=tuple(each.label for each in found), rows=tuple(rows), inputs=inputs)


def _rows(prices: PriceBook, power: NodePower) -> Iterator[tuple[str, str, Callable[[Comparison], float | None]]]:
    for paid, price in (("rented", _rent), ("owned", partial(_ownership, prices=prices))):
        for share in UTILIZATIONS:
            yield f"{paid}, {share:.0%} of the hours used", _USD, partial(_at, price=price, share=share)
    electricity = _PER_TOKENS.format(power.currency)
    yield "electricity alone", electricity, partial(_at, price=partial(_electricity, power=power), share=1.0)
    yield "output tok/s per watt of the node", "", partial(_per_watt, power=power)


def _tok_s(comparison: Comparison) -> float | None:
    return comparison.best.of(metrics.OUTPUT).measured if comparison.best is not None else None


def _at(comparison: Comparison, *, price: Callable[[Comparison], float | None], share: float) -> float | None:
    """Return USD per million tokens of a node that is paid for all hours and used in a share of them."""
    hourly = price(comparison)
    return metrics.usd_per_million_tokens(hourly / share if hourly else None, _tok_s(comparison))


def _rent(comparison: Comparison) -> float | None:
    """Return USD per hour of the node at the price from the user, given now or at the measurement."""
    return _of_node(comparison, comparison.usd_per_gpu_hour if comparison.price_source == "given" else None)


def _ownership(comparison: Comparison, *, prices: PriceBook) -> float | None:
    """Return USD per hour of the node at the published total cost of ownership."""
    return _of_node(comparison, prices.published_price_of(comparison.result.run.provenance.gpu)[0])


def _of_node(comparison: Comparison, usd_per_gpu_hour: float | None) -> float | None:
    gpus = comparison.result.run.provenance.gpus
    return usd_per_gpu_hour * gpus if usd_per_gpu_hour and gpus else None


def _electricity(comparison: Comparison, *, power: NodePower) -> float | None:
    """Return the price of one hour of electricity for the node, including PUE."""
    watts = power.watts_of(comparison)
    return watts / 1000 * power.pue * power.per_kwh if watts is not None and power.per_kwh is not None else None


def _per_watt(comparison: Comparison, *, power: NodePower) -> float | None:
    tok_s, watts = _tok_s(comparison), power.watts_of(comparison)
    return tok_s / watts if tok_s is not None and watts else None


def _inputs(found: tuple[Comparison, ...], prices: PriceBook, power: NodePower) -> Iterator[str]:
    for each in found:
        gpu = each.result.run.provenance.gpu
        if _rent(each):
            yield f"rented: ${each.usd_per_gpu_hour:.2f} per GPU-hour, given"
        price, source = prices.published_price_of(gpu)
        if price and _ownership(each, prices=prices):
            yield f"owned: ${price:.2f} per {gpu}-hour, {source}; the source defines what it includes"
        if (watts := power.watts_of(each)) is not None:
            yield f"power of the {gpu or 'unknown'} node: {watts:g} W, given"
            if (hourly := _electricity(each, power=power)) is not None:
                a_kwh, an_hour = (f"{amount} {power.currency}" for amount in (f"{power.per_kwh:g}", f"{hourly:.2f}"))
                yield f"electricity: {a_kwh} a kWh, PUE {power.pue:g}, given: {an_hour} an hour"
    yield "throughput: output tok/s at the knee; unused hours cost the same and earn nothing"
