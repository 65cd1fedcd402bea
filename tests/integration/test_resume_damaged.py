"""Tests of `bench --resume` with a damaged result: no measured point is lost, and there is no traceback."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from scripted_server import Answer, Script, scripted

from orchestrator.bench.benchmark import BenchRequest, BenchTarget, measure
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
            target=BenchTarget(
                url=server.url,
                key=None,
                provenance=ServerProvenance(gpus=8),
                warnings=(),
                kernel_gate=lambda: None,
            ),
            api="completions",
            workload_name="scripted",
            workload=WORKLOAD,
            overridden=(),
            command="deploy bench",
            price=None,
            read_energy=None,
            directory=tmp_path_factory.mktemp("measured"),
            text="",
            previous=None,
        )


@pytest.fixture(scope="module")
def result_text(request_of: BenchRequest) -> str:
    """Return the saved text of a result with two points."""
    measure(request_of, lambda *_: None)
    return (request_of.directory / RESULT_FILE).read_text()


def paths(data: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every key and index in a document."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield (*at, key)
        yield from paths(value, (*at, key))


def damaged(text: str, rng: Random) -> str:
    """Cut the text, change a character, shuffle or repeat points, or change or delete a value."""
    at, kind = rng.randrange(len(text)), rng.randrange(8)
    if kind == 0:
        return text[:at]
    if kind == 1:
        return text[:at] + rng.choice('{}[]",:0-e\x00\udc80x') + text[at + rng.randrange(2) :]
    data = json.loads(text)
    if kind == 2:
        rng.shuffle(data["points"])
        data["points"] += rng.choices(data["points"], k=rng.randrange(3))
        return json.dumps(data)
    # half of these changes are in a point, which could be lost
    *path, last = rng.choice([keys for keys in paths(data) if kind < 5 or keys[0] == "points"])
    parent = data
    for key in path:
        parent = parent[key]
    if rng.random() < 0.3:
        del parent[last]
    else:
        parent[last] = rng.choice(UNEXPECTED)
    return json.dumps(data)


def finished(result: BenchResult) -> set[Point]:
    return {point for point in result.points if point.end_reason is EndReason.COMPLETE}


def test_damaged_result_is_resumed_or_rejected_without_loss(
    request_of: BenchRequest, result_text: str, tmp_path: Path
) -> None:
    file, rng, outcomes = tmp_path / RESULT_FILE, Random(20261122), {"rejected": 0, "resumed": 0}
    for _ in range(ROUNDS):
        text = damaged(result_text, rng)
        file.write_text(text, errors="surrogateescape")
        before = file.read_bytes()
        error, earlier, result = None, None, None
        try:
            earlier = _previous_result(tmp_path, resume=True)
            result = measure(replace(request_of, directory=tmp_path, previous=earlier), lambda *_: None)
        except DeployError as raised:
            error = raised
        outcomes["rejected" if error else "resumed"] += 1
        if error:
            assert file.read_bytes() == before, error.message
            assert error.location == str(file) or error.hint, error.message
        if earlier and result:
            assert finished(earlier) <= finished(result), "a measured point is lost"
            assert {point.label for point in result.points} >= {"40", "41"}
            assert load_result(tmp_path) == result
    assert min(outcomes.values()) > ROUNDS / 10, outcomes
