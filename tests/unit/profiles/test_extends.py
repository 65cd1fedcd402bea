"""`extends`: a profile that sets only its differences from another profile."""

from pathlib import Path

import pytest
from plan_flags import flag_of

from orchestrator.core.errors import ProfileError
from orchestrator.planner.planning import load, read_profile


def write(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.yaml").write_text(text)
    return str(folder / f"{name}.yaml")


def test_extended_profile_inherits_values_and_locations(tmp_path: Path) -> None:
    own = write(
        tmp_path,
        "mine",
        "extends: mi355x-tp8\nengine: sglang-0.5.14-rocm\n"
        "flags:\n  mem-fraction-static: {value: 0.7, origin: inferred}\n",
    )
    mine, other = load(own), load("mi355x-tp8")
    assert (mine.plan.profile, mine.plan.engine.name) == ("mine", "sglang-0.5.14-rocm")
    assert mine.plan.layout == other.plan.layout
    assert [flag.name for flag in mine.plan.flags] == [flag.name for flag in other.plan.flags]
    assert flag_of(mine.plan, "mem-fraction-static") == "0.7"
    assert mine.composed.location(("flags", "mem-fraction-static")) == f"{own}:4"
    assert mine.composed.location(("flags", "kv-cache-dtype")) == "profiles/mi355x-tp8.yaml:11"
    assert mine.composed.location(("engine",)) == f"{own}:2"
    assert mine.composed.location(("model",)) == "profiles/mi355x-tp8.yaml:6"


def test_july_profiles_differ_only_in_engine() -> None:
    for name in ("mi355x-tp8", "mi355x-tp4dp2"):
        july, now = load(f"{name}-july").plan, load(name).plan
        assert (july.engine.name, now.engine.name) == ("sglang-0.5.14-rocm", "sglang-0.5.16-rocm")
        assert (july.flags, july.layout, july.model) == (now.flags, now.layout, now.model)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("extends: mi355x-tp9\n", "no profile `mi355x-tp9` found to extend", "mi355x-tp8"),
        ("extends: [a]\n", "`extends` does not contain a name", "`extends: NAME`"),
    ],
)
def test_extending_missing_profile_is_rejected(text: str, message: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=message) as caught:
        read_profile(write(tmp_path, "mine", text))
    assert caught.value.location == f"{tmp_path}/mine.yaml:1"
    assert hint in caught.value.hint


def test_circular_extends_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profiles").mkdir()
    write(tmp_path / "profiles", "a", "extends: b\n")
    write(tmp_path / "profiles", "b", "extends: a\n")
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path))
    with pytest.raises(ProfileError, match="extends itself"):
        read_profile("a")
