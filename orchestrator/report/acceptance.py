"""The acceptance length of speculative decoding, measured and from references. Pure.

The speed of a speculating server cannot be judged without it.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from orchestrator.bench.published import Reference
from orchestrator.bench.result import Point
from orchestrator.engine.serving import recorded_facts
from orchestrator.report.compare import Comparison

_UNIT: Final = "accepted tokens a step"  # prefix of the unit of a reference with acceptance lengths


def accepted_text(comparison: Comparison, references: Sequence[Reference]) -> str:
    """Return `, 3.4 tokens a verification (others: 3.61 with 5 drafts)`; empty for a server without speculation."""
    point = _telling(comparison)
    if point is None or point.server is None or point.server.accept_length is None:
        return ""
    others = "; ".join(_others(references, f"{_steps(comparison)} drafts"))
    return f", {point.server.accept_length:.3g} tokens a verification" + (f" (others: {others})" if others else "")


def _telling(comparison: Comparison) -> Point | None:
    """Return the point used for the verdict: the single stream, else the knee; None without one."""
    points, best = comparison.result.points, comparison.best
    if comparison.single_stream_tok_s is not None:
        return next((point for point in points if point.concurrency == 1), None)
    return next((point for point in points if best is not None and point.offered_rps == best.rate_rps), None)


def _others(references: Sequence[Reference], column: str) -> Iterator[str]:
    """Yield the acceptance lengths of references in `column`; of all columns if a reference lacks it."""
    for reference in references:
        if not reference.unit.startswith(_UNIT):
            continue
        wanted = [column] if column in reference.columns else reference.columns
        for row in reference.rows:
            yield from (
                f"{value:g} with {name}"
                for name, value in zip(reference.columns, row.values, strict=False)
                if name in wanted
            )


def _steps(comparison: Comparison) -> str:
    """Return the number of drafts per step from the plan of the result; empty if the plan has none."""
    facts = recorded_facts(comparison.result.run.provenance.plan or {})
    return str(facts.drafts.steps) if facts is not None and facts.drafts is not None else ""
