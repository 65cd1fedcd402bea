"""What was measured and scored, as it is kept in files: a measurement, its figures, an evaluation. Pure.

`figures` is the table that every picture of a measurement is drawn from.
"""

from orchestrator.results import figures
from orchestrator.results.figures import Figure, result_text
from orchestrator.results.result import (
    RESULT_FILE,
    RESULT_SCHEMA,
    BenchEnding,
    BenchResult,
    CacheHits,
    EndpointFacts,
    Energy,
    FailureCount,
    Latency,
    Mark,
    MarkKind,
    Point,
    Price,
    Run,
    ServerCounts,
    ServerProvenance,
    Spread,
    Throughput,
)
from orchestrator.results.scores import (
    OUTCOME_SCHEMA,
    Item,
    Judgement,
    Outcome,
    judge_independent,
    judge_outcomes,
    outcome_file,
    outcome_from_json,
    outcome_to_json,
)

__all__ = [
    "OUTCOME_SCHEMA",
    "RESULT_FILE",
    "RESULT_SCHEMA",
    "BenchEnding",
    "BenchResult",
    "CacheHits",
    "EndpointFacts",
    "Energy",
    "FailureCount",
    "Figure",
    "Item",
    "Judgement",
    "Latency",
    "Mark",
    "MarkKind",
    "Outcome",
    "Point",
    "Price",
    "Run",
    "ServerCounts",
    "ServerProvenance",
    "Spread",
    "Throughput",
    "figures",
    "judge_independent",
    "judge_outcomes",
    "outcome_file",
    "outcome_from_json",
    "outcome_to_json",
    "result_text",
]
