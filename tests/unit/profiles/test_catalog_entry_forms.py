"""Forms of a catalog entry in a profile: a name, a path, overridden values, or an inline entry."""

import json
from pathlib import Path

import pytest

from orchestrator.cli.schema import json_schema
from orchestrator.core.errors import ProfileError
from orchestrator.core.paths import data_root
from orchestrator.planner.explain import explained
from orchestrator.planner.planning import load

ENGINE = (data_root() / "profiles/engines/sglang-0.5.14-cpu.yaml").read_text()
HEAD = "hardware: cpu\nmodel: tiny\nruntime: process\nlayout: {tp: 1}\n"


def profile(folder: Path, text: str) -> str:
    (folder / "mine.yaml").write_text(HEAD + text)
    return str(folder / "mine.yaml")


def test_entry_path_is_relative_to_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "ours.yaml").write_text(ENGINE)
    loaded = load(profile(tmp_path, "engine: engines/ours.yaml\n"))
    assert loaded.plan.engine.name == "ours"
    assert loaded.composed.location(("engine", "version")) == f"{tmp_path}/engines/ours.yaml:3"
    monkeypatch.chdir(tmp_path / "engines")
    assert load("cpu-tiny", overrides=["engine=./ours.yaml"]).plan.engine.name == "ours"
    (tmp_path / "engines" / "no name.yaml").write_text(ENGINE)
    with pytest.raises(ProfileError) as caught:
        load(profile(tmp_path, "engine: ./no.yaml\n"))
    assert caught.value.problems[0].message == f"no file `{tmp_path}/no.yaml` found"
    assert caught.value.problems[0].location.endswith("mine.yaml:5")
    with pytest.raises(ProfileError) as caught:
        load(profile(tmp_path, "engine: engines/no name.yaml\n"))
    assert caught.value.problems[0].message == "invalid name `no name` of a catalog entry"


def test_inline_entry_is_named_after_profile(tmp_path: Path) -> None:
    indented = "".join(f"  {line}\n" for line in ENGINE.splitlines())
    loaded = load(profile(tmp_path, f"engine:\n{indented}  source: our own list\n"))
    assert loaded.plan.engine.name == "mine"
    rows = {row.key: row for row in explained(loaded)}
    assert (rows["engine.version"].source, rows["engine.version"].origin) == ("our own list", "")
    assert rows["engine.version"].location.endswith("mine.yaml:8")


def test_overridden_entry_values_have_user_origin(tmp_path: Path) -> None:
    text = "engine: {use: sglang-0.5.14-cpu, dockerfile: sglang-cpu, flags: {log-level: info}}\n"
    rows = {row.key: row for row in explained(load(profile(tmp_path, text)))}
    assert (rows["engine.dockerfile"].origin, rows["engine.dockerfile"].source) == ("user", "")
    assert (rows["engine.version"].origin, rows["engine.version"].location) == (
        "",
        "profiles/engines/sglang-0.5.14-cpu.yaml:3",
    )
    assert rows["flags.log-level"].origin == "user"


def test_unknown_key_is_reported_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ProfileError) as caught:
        load(profile(tmp_path, "engine:\n  use: sglang-0.5.14-cpu\n  imag: x\n"))
    (problem,) = caught.value.problems
    assert (problem.message, problem.hint) == ("unknown key `engine.imag`", "did you mean `image`?")
    assert problem.location.endswith("mine.yaml:7")


def test_json_schema_accepts_every_form() -> None:
    """An entry is text or a mapping of known keys, none of which is required: its file may set the others."""
    schema = json.loads(json_schema("profile"))
    name, keys = schema["properties"]["model"]["anyOf"]
    assert name["type"] == "string"
    assert keys["additionalProperties"] is False
    assert {"use", "layers", "flags"} <= set(keys["properties"])
    assert "required" not in keys
    assert "required" not in schema["$defs"]["CheckpointSection"]
