"""What steps take and cost, said before the first of them: for people and for programs."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.bench.published import Published, price_book
from orchestrator.core.console import format_duration, table
from orchestrator.core.subprocesses import quote


@dataclass(frozen=True)
class CommandEstimate:
    """A command of this tool, and the seconds it is expected to take."""

    id: str
    argv: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """What an hour of the whole node costs; None where no price is known."""

    hourly: float | None
    currency: str
    source: str

    @classmethod
    def of_node(cls, published: Published, prices: Sequence[str], currency: str) -> "CostEstimate":
        """For the node that the rates were published for; what others published is in USD, and nothing is converted."""
        return cls.of_gpus(published.rates_system.partition("×")[2], published.gpus, prices, currency)

    @classmethod
    def of_gpus(cls, gpu: str, count: int, prices: Sequence[str], currency: str) -> "CostEstimate":
        """For so many GPUs of a name."""
        price, source = price_book(prices).of(gpu)
        known = price if price and (currency == "USD" or source == "given") else None
        return cls(hourly=known * count if known and count else None, currency=currency, source=source)

    def of(self, seconds: float) -> float | None:
        """The cost of so long."""
        return seconds / 3600 * self.hourly if self.hourly is not None else None

    @property
    def terms(self) -> str:
        """On which terms it is told."""
        if self.hourly is None:
            return "no price is known: give one with `--price`"
        an_hour = f"at {self.hourly:.2f} {self.currency} an hour for the node ({self.source})"
        return f"{an_hour}; times are estimates, a failure adds to them"

    def to_dict(self, commands: Sequence[CommandEstimate], left_out: Sequence[str]) -> dict[str, object]:
        """Return the commands with their sums as plain data."""
        seconds, unit = sum(each.seconds for each in commands), self.currency.lower()
        listed = [{"id": each.id, "argv": ["deploy", *each.argv], "about_s": round(each.seconds)} for each in commands]
        total = {
            "about_s": round(seconds),
            f"{unit}_per_node_hour": self.hourly,
            unit: self.of(seconds),
            "price_source": self.source or None,
        }
        known = {key: value for key, value in total.items() if value is not None}
        return {"steps": listed, "left_out": left_out, "total": known}

    def to_table(self, commands: Sequence[CommandEstimate]) -> str:
        """Return the commands with their sums as a table."""
        seconds = sum(each.seconds for each in commands)
        rows = [
            (quote(["deploy", *each.argv]), format_duration(each.seconds), self.text(each.seconds)) for each in commands
        ]
        rows.append(("total", format_duration(seconds), self.text(seconds)))
        return table(("command", "about", f"about {self.currency}"), rows)

    def text(self, seconds: float) -> str:
        """The cost of so long, for people."""
        cost = self.of(seconds)
        return "-" if cost is None else f"{cost:.2f}"
