"""Estimated duration and cost of a list of commands, as a table and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.bench.published import price_book
from orchestrator.core.console import format_duration, table
from orchestrator.core.subprocesses import quote


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """A command, `deploy` first, with its estimated duration in seconds."""

    id: str
    argv: tuple[str, ...]
    estimated_s: int


@dataclass(frozen=True, kw_only=True)
class TotalOutput:
    """The estimated duration in seconds, and the cost in USD; null if no price is known."""

    estimated_s: int
    cost_per_node_hour: float | None
    cost: float | None
    price_source: str | None


@dataclass(frozen=True, kw_only=True)
class EstimateOutput:
    """The remaining steps and their total; `skipped` are sentences about skipped ones."""

    steps: tuple[StepOutput, ...]
    skipped: tuple[str, ...]
    total: TotalOutput


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """The hourly cost of a node in USD; None if no price is known."""

    hourly: float | None
    source: str

    @classmethod
    def for_gpus(cls, gpu: str, count: int, prices: Sequence[str]) -> "CostEstimate":
        """Estimate for `count` GPUs of one type."""
        price, source = price_book(prices).gpu_price(gpu)
        return cls(hourly=price * count if price and count else None, source=source)

    def cost_of(self, seconds: float) -> float | None:
        """Return the cost of a duration, or None if no price is known."""
        return seconds / 3600 * self.hourly if self.hourly is not None else None

    @property
    def terms(self) -> str:
        """The assumptions of the estimate, as one sentence."""
        if self.hourly is None:
            return "no price known; set one with `--price`"
        return f"at {self.hourly:.2f} USD per node-hour ({self.source}); durations are estimates and exclude failures"

    def to_output(self, steps: Sequence[StepOutput], skipped: Sequence[str]) -> EstimateOutput:
        """Return the commands and their total for JSON."""
        seconds = sum(step.estimated_s for step in steps)
        total = TotalOutput(
            estimated_s=seconds,
            cost_per_node_hour=self.hourly,
            cost=self.cost_of(seconds),
            price_source=self.source or None,
        )
        return EstimateOutput(steps=tuple(steps), skipped=tuple(skipped), total=total)

    def to_table(self, steps: Sequence[StepOutput]) -> str:
        """Return the commands and their total as a table."""
        seconds = sum(step.estimated_s for step in steps)
        rows = [
            (quote(step.argv), format_duration(step.estimated_s), self.format_cost(step.estimated_s)) for step in steps
        ]
        rows.append(("total", format_duration(seconds), self.format_cost(seconds)))
        return table(("command", "estimate", "estimated USD"), rows)

    def format_cost(self, seconds: float) -> str:
        """Format the cost of a duration; "-" if no price is known."""
        cost = self.cost_of(seconds)
        return "-" if cost is None else f"{cost:.2f}"
