"""A profile is composed, validated and decided once, whatever its image is given."""

from pathlib import Path

import pytest

from orchestrator.core.paths import Home
from orchestrator.kernels.disk.store import Store
from orchestrator.planner import planning


def test_planned_decides_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("compose", "checked", "decide", "read_ledger", "read_flags"):
        original = getattr(planning, name)

        def counted(*args: object, _name: str = name, _original: object = original, **named: object) -> object:
            calls.append(_name)
            return _original(*args, **named)  # type: ignore[operator]

        monkeypatch.setattr(planning, name, counted)
    plan, _ = planning.planned("mi355x-tp8", (), Home(tmp_path))
    once = ["checked", "checked", "compose", "decide", "read_flags", "read_ledger"]  # the profile, and its load
    assert sorted(calls) == once

    calls.clear()
    table = tmp_path / "table.csv"
    table.write_text("")
    planning.planned("mi355x-tp8", (), Home(tmp_path), given={"moe-table": table})
    assert sorted(calls) == once

    calls.clear()
    built = Store.of(Home(tmp_path), plan).table(plan)
    built.parent.mkdir(parents=True)
    built.write_text("built")
    _, inputs = planning.planned("mi355x-tp8", (), Home(tmp_path))
    assert sorted(calls) == once
    assert inputs == {"moe-table": b"built"}
