"""A profile and the catalog are read once, however many plans are built from them."""

from pathlib import Path

import pytest

from orchestrator.core.errors import ProfileError
from orchestrator.core.paths import Home
from orchestrator.kernels.disk.store import Store
from orchestrator.plan.facts import Facts
from orchestrator.planner import planning
from orchestrator.planner.source import profile_source


def test_profile_is_read_once_for_all_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("merge_layers", "validate", "build_plan", "read_ledger", "read_flags"):
        original = getattr(planning, name)

        def counted(*args: object, _name: str = name, _original: object = original, **named: object) -> object:
            calls.append(_name)
            return _original(*args, **named)  # type: ignore[operator]

        monkeypatch.setattr(planning, name, counted)
    source = profile_source("mi355x-tp8", (), Home(tmp_path))
    plan = source.build(Facts())
    # the profile and its workload are validated
    once = ["build_plan", "merge_layers", "read_flags", "read_ledger", "validate", "validate"]
    assert sorted(calls) == once
    built = Store.of(Home(tmp_path), plan).table(plan)
    built.parent.mkdir(parents=True)
    built.write_text("built")
    again, files = source.planned()
    assert sorted(calls) == sorted([*once, "build_plan"])
    assert files == {"moe-table": b"built"}
    assert again.digest != plan.digest


def test_given_table_replaces_built_table(tmp_path: Path) -> None:
    plan = planning.load("mi355x-tp8").plan
    built = Store.of(Home(tmp_path), plan).table(plan)
    built.parent.mkdir(parents=True)
    built.write_text("built")
    table = tmp_path / "table.csv"
    table.write_text("given")
    assert profile_source("mi355x-tp8", (), Home(tmp_path), inputs={"moe-table": table}).files() == {
        "moe-table": b"given"
    }


@pytest.mark.parametrize("image", [None, "mine:1"])
def test_unknown_runtime_is_rejected_at_its_location(tmp_path: Path, image: str | None) -> None:
    with pytest.raises(ProfileError, match="cannot plan profile") as caught:
        _ = profile_source("mi355x-tp8", ("runtime=dockr",), Home(tmp_path), image=image).runtime
    (problem,) = caught.value.problems
    assert (problem.message, problem.location) == ("no runtime `dockr`", "--set runtime")
