"""What an hour and a token cost. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.core.errors import UsageError
from orchestrator.report.published import Prices


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
        for book in self.published:
            if (price := book.of(name)) is not None:
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


def usd_per_million_tokens(usd_per_hour: float | None, tok_per_s: float | None) -> float | None:
    """USD per million tokens at a price for the whole node and hour; None where either is unknown."""
    if usd_per_hour is None or not tok_per_s:
        return None
    return usd_per_hour / 3600 / tok_per_s * 1e6
