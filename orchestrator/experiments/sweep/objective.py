"""The objective of a sweep: the metrics to optimize, and the point at which to read them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.metrics import ReportMetric
from orchestrator.bench.result import BenchResult, IssueKind, Point

_DECIMALS: Final = 1  # decimals of the share of a rate; smaller differences are noise


class Objective(StrEnum):
    """The metric to optimize."""

    KNEE = "knee"
    TOK_S = "tok-s"
    PER_WATT = "tok-s-per-watt"
    USD = "usd-per-million"
    PARETO = "pareto"


_METRICS: Final[Mapping[Objective, tuple[ReportMetric, ...]]] = {
    Objective.TOK_S: (metrics.OUTPUT,),
    Objective.PER_WATT: (metrics.PER_WATT,),
    Objective.USD: (metrics.USD,),
    Objective.PARETO: (metrics.OUTPUT, metrics.PER_USER),
}


@dataclass(frozen=True, kw_only=True)
class Goal:
    """An objective, the rate (requests/s) at which to read it (None: the knee), and the TTFT p95 limit in seconds."""

    objective: Objective
    at_rps: float | None
    ttft_p95_s: float
    closed: bool = False  # a closed load, with one point and without rates or knee

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each value, with its unit."""
        if self.objective is Objective.KNEE:
            return ("knee, requests/s",)
        return tuple(metric.title for metric in _METRICS[self.objective])

    @property
    def higher_is_better(self) -> tuple[bool, ...]:
        """Whether higher is better, for each value."""
        if self.objective is Objective.KNEE:
            return (True,)
        return tuple(metric.higher_is_better for metric in _METRICS[self.objective])

    @property
    def words(self) -> str:
        """The objective as text."""
        metric = " and ".join(self.names)
        if self.closed:
            return metric
        rate = f" at {self.at_rps:g} requests/s" if self.at_rps is not None else " at the knee"
        rate = "" if self.objective is Objective.KNEE else rate
        return f"{metric}{rate}, with a TTFT p95 of at most {self.ttft_p95_s:g} s"

    def text(self, values: tuple[float, ...]) -> str:
        """Format the values of a trial."""
        if self.objective is Objective.KNEE:
            return f"{values[0]:g}"
        return " / ".join(metric.text(value) for metric, value in zip(_METRICS[self.objective], values, strict=True))

    def point(self, result: BenchResult) -> Point | None:
        """Return the point at which to read the objective; None if it was not measured, or without a knee."""
        at = self.at_rps if self.at_rps is not None else result.knee_rps
        return next((point for point in result.points if self.closed or point.offered_rps == at), None)

    def values(self, result: BenchResult) -> tuple[float, ...] | None:
        """Return the objective's values at a steady load; None if a metric was not measured."""
        if self.objective is Objective.KNEE:
            return (result.knee_rps,) if result.knee_rps else None
        point = self.point(result)
        values = tuple(
            value for metric in _METRICS[self.objective] if point and (value := metric.value_of(point)) is not None
        )
        return values if len(values) == len(self.names) else None

    def overload(self, result: BenchResult) -> str:
        """Return why the load was too high: no knee, TTFT beyond the limit, or no steady window; else ""."""
        point = self.point(result)
        if point is None:
            reasons = [
                f"at {measured.label} requests/s: {reason}"
                for measured in result.points
                for reason in measured.not_sustained_because
            ]
            return "; ".join(reasons) or "no rate was sustained"
        too_slow = point.latency is not None and point.latency.ttft_s.p95 > self.ttft_p95_s
        if self.closed or (point.window is not None and not too_slow):
            return ""
        return "; ".join(point.not_sustained_because) or "no steady window"

    def client_lag(self, result: BenchResult) -> str:
        """Return why the value reflects a late load client instead of the server; else ""."""
        lags = (issue for issue in result.comparability_issues if issue.kind is IssueKind.CLIENT_LAGGED)
        return next((lag.detail for lag in lags if self.at_rps is None or lag.point == f"{self.at_rps:g}"), "")

    def missing(self, result: BenchResult) -> str:
        """Return the reason for a missing value at a steady load."""
        point = self.point(result)
        energy = f": {point.energy.reason}" if point and point.energy else ""
        absent = next(m.title for m in _METRICS[self.objective] if point is None or m.value_of(point) is None)
        return f"{absent} was not measured{energy}"

    def knee_found(self, result: BenchResult) -> bool:
        """Return whether the knee is found, so that higher rates are not needed."""
        return self.at_rps is None and any(point.sustained is False for point in result.points)

    def attained_rates(self, result: BenchResult) -> float:
        """Return the sum of the sustained shares of all rates so far, rounded to suppress noise."""
        return round(sum(self.attained(point) for point in result.points), _DECIMALS)

    def attained(self, point: Point) -> float:
        """Return the share of a rate that the server sustained, from 0 to 1, rounded to `_DECIMALS` decimals.

        It is the product of success share, completion ratio, and TTFT p95 limit / measured TTFT p95 (each at most 1).
        """
        ttft_p95 = point.latency.ttft_s.p95 if point.latency else 0.0
        in_time = min(1.0, self.ttft_p95_s / ttft_p95) if ttft_p95 > 0 else 1.0
        in_window = min(1.0, point.completion_ratio) if point.completion_ratio is not None else 1.0
        return round(point.success_share * in_window * in_time, _DECIMALS)
