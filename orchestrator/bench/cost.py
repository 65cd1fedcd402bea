"""Estimated duration and cost of a list of commands, as a table and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.bench.published import Published, price_book
from orchestrator.core.console import format_duration, table
from orchestrator.core.subprocesses import quote


@dataclass(frozen=True)
class CommandEstimate:
    """A `deploy` command with its estimated duration in seconds."""

    id: str
    argv: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """The hourly cost of a node; None if no price is known."""

    hourly: float | None
    currency: str
    source: str

    @classmethod
    def for_node(cls, published: Published, prices: Sequence[str], currency: str) -> "CostEstimate":
        """Estimate for the node of a publication. Published prices are in USD; currencies are not converted."""
        return cls.for_gpus(published.rates_system.partition("×")[2], published.gpus, prices, currency)

    @classmethod
    def for_gpus(cls, gpu: str, count: int, prices: Sequence[str], currency: str) -> "CostEstimate":
        """Estimate for `count` GPUs of one type."""
        price, source = price_book(prices).price_of(gpu)
        usable = price if price and (currency == "USD" or source == "given") else None
        return cls(hourly=usable * count if usable and count else None, currency=currency, source=source)

    def cost_of(self, seconds: float) -> float | None:
        """Return the cost of a duration, or None if no price is known."""
        return seconds / 3600 * self.hourly if self.hourly is not None else None

    @property
    def terms(self) -> str:
        """The assumptions of the estimate, as one sentence."""
        if self.hourly is None:
            return "no price known; set one with `--price`"
        return (
            f"at {self.hourly:.2f} {self.currency} per node-hour ({self.source}); "
            "durations are estimates and exclude failures"
        )

    def to_dict(self, commands: Sequence[CommandEstimate], skipped: Sequence[str]) -> dict[str, object]:
        """Return the commands and their total as JSON data."""
        seconds, unit = sum(command.seconds for command in commands), self.currency.lower()
        steps = [
            {"id": command.id, "argv": ["deploy", *command.argv], "about_s": round(command.seconds)}
            for command in commands
        ]
        total = {
            "about_s": round(seconds),
            f"{unit}_per_node_hour": self.hourly,
            unit: self.cost_of(seconds),
            "price_source": self.source or None,
        }
        known = {key: value for key, value in total.items() if value is not None}
        return {"steps": steps, "left_out": skipped, "total": known}

    def to_table(self, commands: Sequence[CommandEstimate]) -> str:
        """Return the commands and their total as a table."""
        seconds = sum(command.seconds for command in commands)
        rows = [
            (quote(["deploy", *command.argv]), format_duration(command.seconds), self.format_cost(command.seconds))
            for command in commands
        ]
        rows.append(("total", format_duration(seconds), self.format_cost(seconds)))
        return table(("command", "about", f"about {self.currency}"), rows)

    def format_cost(self, seconds: float) -> str:
        """Format the cost of a duration; "-" if no price is known."""
        cost = self.cost_of(seconds)
        return "-" if cost is None else f"{cost:.2f}"
