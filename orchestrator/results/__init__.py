"""What was measured and scored, as it is kept in files: a measurement, its figures, an evaluation. Pure.

`figures` is the table that every picture of a measurement is drawn from.
"""

from orchestrator.results import figures
from orchestrator.results.figures import Figure, result_text
from orchestrator.results.noise import Change, Estimate, change, estimate
from orchestrator.results.outcomes import (
    BASELINE_FOLDER,
    OUTCOME_SCHEMA,
    Item,
    Outcome,
    outcome_file,
    outcome_from_json,
    outcome_to_json,
)
from orchestrator.results.requests import RequestTimes, read_requests, requests_file
from orchestrator.results.result import (
    MOST_AMOUNT,
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
    Interval,
    Judgement,
    detectable_difference,
    judge_independent,
    judge_outcomes,
    pass_interval,
    score_interval,
)

__all__ = [
    "BASELINE_FOLDER",
    "MOST_AMOUNT",
    "OUTCOME_SCHEMA",
    "RESULT_FILE",
    "RESULT_SCHEMA",
    "BenchEnding",
    "BenchResult",
    "CacheHits",
    "Change",
    "EndpointFacts",
    "Energy",
    "Estimate",
    "FailureCount",
    "Figure",
    "Interval",
    "Item",
    "Judgement",
    "Latency",
    "Mark",
    "MarkKind",
    "Outcome",
    "Point",
    "Price",
    "RequestTimes",
    "Run",
    "ServerCounts",
    "ServerProvenance",
    "Spread",
    "Throughput",
    "change",
    "detectable_difference",
    "estimate",
    "figures",
    "judge_independent",
    "judge_outcomes",
    "outcome_file",
    "outcome_from_json",
    "outcome_to_json",
    "pass_interval",
    "read_requests",
    "requests_file",
    "result_text",
    "score_interval",
]
