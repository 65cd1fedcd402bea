"""Replicas of one server, some of which a later run has replaced."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from orchestrator.core.errors import NameTakenError
from orchestrator.planner.planning import load
from orchestrator.runtimes.base import Runtime, Unit
from orchestrator.runtimes.replicas import require_name_free
from orchestrator.servers.group import Server, join_replicas, merge_updates, run_dirs

UNIT = Unit(runtime="process", name="pair", profile="p", plan_digest="", url="", run_dir="", runtime_id="")
BLANK = Server.of(UNIT, cast("Runtime", None))


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return tmp_path / "20260101T000000Z-aaaaaaaa"


@pytest.fixture
def later(tmp_path: Path) -> Path:
    folder = tmp_path / "20260102T000000Z-bbbbbbbb"
    folder.mkdir()
    (folder / "plan.json").write_text(load("cpu-tiny").plan.to_json())
    return folder


def replica(run: Path, number: int) -> Server:
    return replace(BLANK, run_dir=str(run / f"replica-{number}"), runtime_id=f"{run.name}/{number}")


def gateway(run: Path, *numbers: int) -> Server:
    own = replace(BLANK, run_dir=str(run), runtime_id="gateway", url="http://127.0.0.1:1", plan_digest="of the first")
    return join_replicas(own, [replica(run, number) for number in numbers])


def test_replicas_of_one_run_belong_to_it(first: Path) -> None:
    pair = gateway(first, 1, 2)
    assert (pair.run_dir, pair.log_dir, pair.plan_digest) == (str(first), str(first), "of the first")
    assert merge_updates([pair]) == [pair]


def test_newest_replicas_join_gateway_of_first_run(first: Path, later: Path) -> None:
    [pair] = merge_updates([gateway(first, 1, 2), join_replicas(None, [replica(later, 2)])])
    assert [server.run_dir for server in pair.replicas] == [str(first / "replica-1"), str(later / "replica-2")]
    assert (pair.run_dir, pair.log_dir, pair.url) == (str(later), str(first), "http://127.0.0.1:1")
    assert pair.plan_digest == load("cpu-tiny").plan.digest, "of the last run"
    assert [unit.run_dir for unit in pair.units] == [str(first), *(server.run_dir for server in pair.replicas)]
    assert run_dirs([pair]) == [first, later]


def test_run_that_removed_replicas_hides_no_replica(first: Path, later: Path) -> None:
    last = later.with_name("20260103T000000Z-cccccccc")
    last.mkdir()
    (last / "smoke.json").write_text("{}")
    [pair] = merge_updates([gateway(first, 1, 2), join_replicas(None, [replica(later, 2)])])
    assert [server.run_dir for server in pair.replicas] == [str(first / "replica-1"), str(later / "replica-2")]
    assert (pair.run_dir, pair.log_dir) == (str(last), str(first))


def test_replicas_without_gateway_are_an_incomplete_start(later: Path) -> None:
    incomplete = join_replicas(None, [replica(later, 1)])
    assert merge_updates([incomplete]) == [incomplete]
    assert incomplete.runtime_id == ""


def test_replica_may_join_only_gateway_of_same_server(first: Path, later: Path, tmp_path: Path) -> None:
    pair, incomplete = gateway(first, 1, 2).units, (replica(first, 1).unit,)
    require_name_free(later / "replica-1", pair)
    require_name_free(first / "replica-2", incomplete)  # the next replica of the same run
    for run_dir, existing in (
        (later, pair),  # another gateway
        (later / "replica-1", incomplete),
        (tmp_path / "elsewhere/20260102T000000Z-bbbbbbbb/replica-1", pair),
    ):
        with pytest.raises(NameTakenError):
            require_name_free(run_dir, existing)
