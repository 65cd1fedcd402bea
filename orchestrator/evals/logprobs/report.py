"""The report of a comparison of log-probabilities, as a table and as JSON data."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.core.console import table
from orchestrator.core.errors import Problem, SmokeError
from orchestrator.evals.logprobs.divergence import BANDS, Divergence

_MIN_POSITIONS: Final = 16


@dataclass(frozen=True, kw_only=True)
class LogprobRow:
    """A comparison of one text of `length` tokens, on the rank or replica `rank_label` ("" for the only one).

    `limit` is the maximum mean difference in nats; None for no verdict. `above_limit` are the bands above the limit.
    """

    compared_with: str
    rank_label: str
    length: int
    overall: Divergence
    bands: tuple[Divergence, ...]
    limit: float | None = None
    above_limit: tuple[Divergence, ...] = ()

    def with_limit(self, limit: float | None) -> "LogprobRow":
        """Return the row with a limit: large enough bands above the limit, else the whole text."""
        above_limit: tuple[Divergence, ...] = ()
        if limit is not None:
            bands = (band for band in self.bands if band.positions >= _MIN_POSITIONS)
            above_limit = tuple(band for band in bands if band.mean > limit)
            above_limit = above_limit or ((self.overall,) if self.overall.mean > limit else ())
        return replace(self, limit=limit, above_limit=above_limit)

    @property
    def title(self) -> str:
        """The name of the comparison, with the rank or replica."""
        return f"{self.rank_label}: {self.compared_with}" if self.rank_label else self.compared_with


@dataclass(frozen=True, kw_only=True)
class LogprobReport:
    """The complete comparison of one server."""

    ok: bool  # every difference is within its limit
    url: str
    served_name: str
    reference: str | None  # name of the reference; None: compared only with itself
    differences: tuple[str, ...]  # different settings of server and reference, as text
    basis: str  # the source of the limits, as text
    rows: tuple[LogprobRow, ...]

    def to_table(self, *, width: int | None = None) -> str:
        """Return the report as a table of mean differences by band of position, with the source of the limits."""
        bands = [band for band in range(len(BANDS) - 1) if any(_in_band(row, band) for row in self.rows)]
        columns = ("compared with", "tokens", "mean |Δ|", "largest", "KL", "same top")
        header = (*columns, *(f"{BANDS[band]}+" for band in bands), "verdict")
        rows = [(*_cells(row), *(_in_band(row, band) for band in bands), _verdict(row)) for row in self.rows]
        lines = [table(header, rows, width=width)] if rows else []
        return "\n\n".join([*lines, *self.differences, self.basis])

    def require(self) -> None:
        """Raise SmokeError, with each difference above its limit."""
        if not self.ok:
            raise SmokeError(
                f"`{self.served_name}` failed the log-probability comparison",
                problems=[Problem(text) for row in self.rows for text in _describe_above_limit(row)],
                hint="to narrow down the cause, run `deploy logprobs` with another engine or attention backend",
            )


def _cells(row: LogprobRow) -> tuple[str, ...]:
    overall = row.overall
    nats = map(_nats, (overall.mean, overall.maximum, overall.kl))
    return row.title, str(row.length), *nats, f"{overall.top1_agreement:.1%}"


def _verdict(row: LogprobRow) -> str:
    if row.limit is None:
        return "shown"
    return f"above {_nats(row.limit)}" if row.above_limit else "within"


def _describe_above_limit(row: LogprobRow) -> Iterator[str]:
    for band in row.above_limit:
        position = f"{row.title}, {row.length} tokens, positions {band.first} to {band.last}"
        yield f"{position}: mean difference {_nats(band.mean)} where at most {_nats(row.limit or 0)} is expected"


def _in_band(row: LogprobRow, band: int) -> str:
    return next((_nats(item.mean) for item in row.bands if BANDS[band] <= item.first < BANDS[band + 1]), "")


def _nats(value: float) -> str:
    return f"{value:.2g}" if value else "0"
