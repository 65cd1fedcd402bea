"""`bench --resume` over a result that somebody or something has changed: nothing measured is lost, and no traceback."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from scripted_server import Answer, Script, scripted

from orchestrator.bench.benchmark import BenchRequest, measure
from orchestrator.bench.result import RESULT_FILE, BenchResult, EndReason, Point, ServerProvenance
from orchestrator.bench.result_files import load_result
from orchestrator.bench.run import _previous_result
from orchestrator.bench.workload import load_workload
from orchestrator.core.errors import DeployError

ROUNDS = 80
WORKLOAD = load_workload("smoke-tiny").model_copy(
    update={"output_tokens": 4, "requests": 3, "request_rates": (40.0, 41.0), "num_prefixes": 1, "timeout_s": 5.0}
)
UNEXPECTED = (None, [], {}, -1, 1.5, True, "1", "", float("nan"), 10**400, [[]], {"a": 1}, 0, "complete", "interrupted")


@pytest.fixture(scope="module")
def request_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BenchRequest]:
    with scripted(Script(answer=lambda _: Answer(cached_tokens=300))) as server:
        yield BenchRequest(
            url=server.url,
            api="completions",
            key=None,
            workload_name="scripted",
            workload=WORKLOAD,
            overridden=(),
            command="deploy bench",
            provenance=ServerProvenance(gpus=8),
            kernel_gate=lambda: None,
            price=None,
            read_energy=None,
            directory=tmp_path_factory.mktemp("measured"),
            text="",
            previous=None,
        )


@pytest.fixture(scope="module")
def measured(request_of: BenchRequest) -> str:
    """A result of two points, as it is on disk."""
    measure(request_of, lambda _point, _far: None)
    return (request_of.directory / RESULT_FILE).read_text()


def paths(data: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every key and index in a document."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield (*at, key)
        yield from paths(value, (*at, key))


def damaged(text: str, dice: Random) -> str:
    """Another value, one that is missing, a point twice or in another place, or another text."""
    at, kind = dice.randrange(len(text)), dice.randrange(8)
    if kind == 0:
        return text[:at]
    if kind == 1:
        return text[:at] + dice.choice('{}[]",:0-e\x00\udc80x') + text[at + dice.randrange(2) :]
    data = json.loads(text)
    if kind == 2:
        dice.shuffle(data["points"])
        data["points"] += dice.choices(data["points"], k=dice.randrange(3))
        return json.dumps(data)
    # half of them in a point: that is what would be lost
    *way, last = dice.choice([keys for keys in paths(data) if kind < 5 or keys[0] == "points"])
    inside = data
    for step in way:
        inside = inside[step]
    if dice.random() < 0.3:
        del inside[last]
    else:
        inside[last] = dice.choice(UNEXPECTED)
    return json.dumps(data)


def finished(result: BenchResult) -> set[Point]:
    return {point for point in result.points if point.end_reason is EndReason.COMPLETE}


def test_damaged_result_is_resumed_or_rejected_without_loss(
    request_of: BenchRequest, measured: str, tmp_path: Path
) -> None:
    file, dice, ends = tmp_path / RESULT_FILE, Random(20261122), {"refused": 0, "gone on with": 0}
    for _ in range(ROUNDS):
        text = damaged(measured, dice)
        file.write_text(text, errors="surrogateescape")
        before = file.read_bytes()
        refused, earlier, result = None, None, None
        try:
            earlier = _previous_result(tmp_path, resume=True)
            result = measure(replace(request_of, directory=tmp_path, previous=earlier), lambda _point, _far: None)
        except DeployError as error:
            refused = error
        ends["refused" if refused else "gone on with"] += 1
        if refused:
            assert file.read_bytes() == before, refused.message
            assert refused.location == str(file) or refused.hint, refused.message
        if earlier and result:
            assert finished(earlier) <= finished(result), "a measured point is lost"
            assert {point.label for point in result.points} >= {"40", "41"}
            assert load_result(tmp_path) == result
    assert min(ends.values()) > ROUNDS / 10, ends
