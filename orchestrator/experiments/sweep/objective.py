"""What the best configuration is: a figure of a measurement, and at which of its points it is read. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from orchestrator.bench import metrics
from orchestrator.bench.metrics import ReportMetric
from orchestrator.bench.result import BenchResult, Point

_ROUGHLY: Final = 1  # digits of the share that was held: a twentieth more or less is noise


class Objective(StrEnum):
    """What is wanted most."""

    KNEE = "knee"
    TOK_S = "tok-s"
    PER_WATT = "tok-s-per-watt"
    USD = "usd-per-million"
    PARETO = "pareto"


_FIGURES: Final[Mapping[Objective, tuple[ReportMetric, ...]]] = {
    Objective.TOK_S: (metrics.OUTPUT,),
    Objective.PER_WATT: (metrics.PER_WATT,),
    Objective.USD: (metrics.USD,),
    Objective.PARETO: (metrics.OUTPUT, metrics.PER_USER),
}


@dataclass(frozen=True, kw_only=True)
class Goal:
    """An objective, the rate at which it is read (None: at the knee), and the limit of TTFT p95."""

    objective: Objective
    at_rps: float | None
    ttft_p95_s: float
    closed: bool = False  # the load is: it has one point, no rates and no knee

    @property
    def names(self) -> tuple[str, ...]:
        """What each value is called, with its unit."""
        if self.objective is Objective.KNEE:
            return ("knee, requests/s",)
        return tuple(figure.title for figure in _FIGURES[self.objective])

    @property
    def higher_is_better(self) -> tuple[bool, ...]:
        """Of each value."""
        if self.objective is Objective.KNEE:
            return (True,)
        return tuple(figure.higher_is_better for figure in _FIGURES[self.objective])

    @property
    def words(self) -> str:
        """The whole of it for people."""
        what = " and ".join(self.names)
        if self.closed:
            return what
        where = f"at {self.at_rps:g} requests/s" if self.at_rps is not None else "at the knee"
        where = "" if self.objective is Objective.KNEE else f" {where}"
        return f"{what}{where}, with a TTFT p95 of at most {self.ttft_p95_s:g} s"

    def text(self, values: tuple[float, ...]) -> str:
        """Values for people."""
        if self.objective is Objective.KNEE:
            return f"{values[0]:g}"
        return " / ".join(each.text(value) for each, value in zip(_FIGURES[self.objective], values, strict=True))

    def point(self, result: BenchResult) -> Point | None:
        """The point at which the objective is read; None where it was not measured, or there is no knee."""
        at = self.at_rps if self.at_rps is not None else result.knee_rps
        return next((point for point in result.points if self.closed or point.offered_rps == at), None)

    def values(self, result: BenchResult) -> tuple[float, ...] | None:
        """What is to be made best; None where a figure of it was not measured."""
        if self.objective is Objective.KNEE:
            return (result.knee_rps or 0.0,)
        point = self.point(result)
        found = [figure.value_of(point) if point else None for figure in _FIGURES[self.objective]]
        known = tuple(value for value in found if value is not None)
        return known if len(known) == len(found) else None

    def missing(self, result: BenchResult) -> str:
        """Why there are no values."""
        point = self.point(result)
        if point is None:
            return "no rate was sustained" if self.at_rps is None else f"{self.at_rps:g} requests/s was not measured"
        of = next(figure for figure in _FIGURES[self.objective] if figure.value_of(point) is None)
        return f"{of.title} was not measured" + (f": {point.energy.reason}" if point.energy else "")

    def known_now(self, result: BenchResult) -> bool:
        """Whether higher rates tell nothing more: the knee has been found."""
        return self.at_rps is None and any(point.sustained is False for point in result.points)

    def held_rates(self, result: BenchResult) -> float:
        """How many of the rates it held so far, each as a share, so roughly that noise tells no two apart."""
        return round(sum(self.held(point) for point in result.points), _ROUGHLY)

    def held(self, point: Point) -> float:
        """How much of a rate it held, from 0 to 1.

        The share that was answered, of that the share within the window, and by how much TTFT is over the limit.
        """
        late = point.latency.ttft_from_schedule_s.p95 if point.latency else 0.0
        in_time = min(1.0, self.ttft_p95_s / late) if late > 0 else 1.0
        in_window = min(1.0, point.completion_ratio) if point.completion_ratio is not None else 1.0
        return round(point.success_share * in_window * in_time, _ROUGHLY)
