"""Test that a space file yields a finite set of points, and that its problems have line numbers."""

from pathlib import Path

import pytest

from orchestrator.core.errors import ProfileError
from orchestrator.core.validation import read_model
from orchestrator.experiments.sweep.space import (
    LayoutChoice,
    SearchSpace,
    SpaceFile,
    default_space,
    search_space_from_file,
)
from orchestrator.planner.planning import load


def space(tmp_path: Path, text: str) -> SearchSpace:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    return search_space_from_file(read_model(path, SpaceFile, "space.yaml"))


def test_lists_ranges_and_layouts_become_parameters(tmp_path: Path) -> None:
    space_ = space(
        tmp_path,
        """
layouts: [{tp: 8}, {tp: 4, dp: 2}]
flags:
  chunked-prefill-size: [2048, 8192, 32768]
  mem-fraction-static: {from: 0.8, to: 0.86, step: 0.02}
  schedule-policy: [lpm, fcfs, null]
env:
  SGLANG_OPT_USE_TOPK_V2: ["false", "true"]
""",
    )
    values = {
        parameter.key: [parameter.display(index) for index in range(len(parameter.values))]
        for parameter in space_.parameters
    }
    assert values == {
        "layout": ["TP8", "TP4×DP2"],
        "flags.chunked-prefill-size": ["2048", "8192", "32768"],
        "flags.mem-fraction-static": ["0.8", "0.82", "0.84", "0.86"],
        "flags.schedule-policy": ["lpm", "fcfs", "null"],
        "env.SGLANG_OPT_USE_TOPK_V2": ["false", "true"],
    }
    assert space_.size == 2 * 3 * 4 * 3 * 2 == len([*space_.points()])
    ordered = {parameter.key for parameter in space_.parameters if parameter.ordered}
    assert ordered == {"flags.chunked-prefill-size", "flags.mem-fraction-static"}


def test_point_is_expressed_as_set_overrides(tmp_path: Path) -> None:
    space_ = space(
        tmp_path, "layouts: [{tp: 4, dp: 2}]\nflags: {mem-fraction-static: [0.80], schedule-policy: [null]}\n"
    )
    [point] = space_.points()
    assert space_.overrides(point) == (
        "layout.tp=4",
        "layout.dp=2",
        "layout.ep=1",
        "layout.dp_attention=false",
        "flags.mem-fraction-static=0.8",
        "flags.schedule-policy=null",
    )
    plan = load("mi355x-tp8", overrides=space_.overrides(point)).plan
    assert (plan.layout.tp, plan.layout.dp) == (4, 2)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("flags:\n  a: {from: 1, to: 4}\n", 2, "`flags.a.step`"),
        ("flags:\n  a: {from: 4, to: 1, step: 1}\n", 2, "`from` below `to`"),
        ("flags:\n  a: {from: 1, to: 9000, step: 1}\n", 2, "more than 1000"),
        (f"flags:\n  a: {{from: 0, to: 9, step: 0.{'0' * 320}1}}\n", 2, "more than 1000"),
        ("flags:\n  a: {from: 1, to: 9, step: 1, by: 1}\n", 2, "unknown key `flags.a.by`"),
        ("flags:\n  a: 3\n", 2, "must be a list, found 3"),
        ("flags:\n  a: []\n", 2, "`flags.a`"),
        ("layouts:\n  - {tp: 0}\n", 2, "`layouts.0.tp`"),
        ("objective: kne\nflags: {a: [1]}\n", 1, "'knee'"),
        ("description: nothing\n", 1, "expected `layouts`, `flags` or `env`"),
        ("flags: {a: [1]}\nrequest_rates: [2, 1]\n", 1, "must be ascending"),
    ],
)
def test_space_file_problem_has_line_number(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(ProfileError) as error:
        space(tmp_path, text)
    [problem] = error.value.problems_or_self()
    assert message in problem.message
    assert problem.location == f"space.yaml:{line}"


def test_space_file_hint_uses_yaml_key_names(tmp_path: Path) -> None:
    with pytest.raises(ProfileError) as error:
        space(tmp_path, "flags:\n  a: {form: 1, from: 1, to: 9, step: 1}\n")
    [problem] = error.value.problems_or_self()
    assert problem.hint == "did you mean `from`?"


def test_point_of_the_profile_is_recognized(tmp_path: Path) -> None:
    profile = load("mi355x-tp8").profile
    space_ = space(tmp_path, "layouts: [{tp: 4, dp: 2}, {tp: 8}]\nflags: {max-running-requests: [8, 16, null]}\n")
    assert space_.point_of_profile(profile) == {"layout": 1, "flags.max-running-requests": 1}
    assert space(tmp_path, "flags: {max-running-requests: [8]}\n").point_of_profile(profile) is None
    unset = space(tmp_path, "flags: {schedule-policy: [lpm, null]}\nenv: {OMP_NUM_THREADS: [2, 1]}\n")
    assert unset.point_of_profile(load("cpu-tiny").profile) == {"flags.schedule-policy": 1, "env.OMP_NUM_THREADS": 1}
    off = space(tmp_path, "flags: {disable-radix-cache: [true, false], schedule-conservativeness: [0, 1]}\n")
    assert off.point_of_profile(profile) is None, "the profile has no value for this flag, which differs from 0"
    assert SearchSpace(parameters=off.parameters[:1]).point_of_profile(profile) == {"flags.disable-radix-cache": 1}


def test_default_space_surrounds_the_profile() -> None:
    loaded = load("mi355x-tp8")
    space_ = default_space(loaded.profile, tuple(loaded.table.flags))
    values = {parameter.key: parameter.values for parameter in space_.parameters}
    assert values["layout"] == tuple(LayoutChoice(tp=tp, dp=8 // tp) for tp in (8, 4, 2, 1))
    assert values["flags.max-running-requests"] == (8, 16, 32)
    assert space_.point_of_profile(loaded.profile) is not None
    one = load("mi355x-tp8", overrides=["flags.max-running-requests=1"])
    assert default_space(one.profile, tuple(one.table.flags)).point_of_profile(one.profile) is not None
    assert "layout" not in {parameter.key for parameter in default_space(load("cpu-tiny").profile, ()).parameters}


def test_draft_token_count_follows_speculative_steps(tmp_path: Path) -> None:
    """With top-k 1, sglang verifies steps + 1 tokens, so 1 step with the profile's 6 tokens could not be planned."""
    flags = {"speculative-num-steps": 5, "speculative-eagle-topk": 1, "speculative-num-draft-tokens": 6}
    path = tmp_path / "space.yaml"
    path.write_text("flags: {speculative-num-steps: [1, 3, null]}")
    space_ = search_space_from_file(read_model(path, SpaceFile, "space.yaml"), flags)
    assert space_.coupled == ("speculative-num-draft-tokens",)
    for index, tokens in ((0, "2"), (1, "4"), (2, "null")):
        overrides = space_.overrides({"flags.speculative-num-steps": index})
        assert f"flags.speculative-num-draft-tokens={tokens}" in overrides
        load("mi355x-tp4dp2", overrides=overrides)
    path.write_text("flags: {speculative-num-draft-tokens: [2, 4]}")
    reverse = search_space_from_file(read_model(path, SpaceFile, "space.yaml"), flags)
    assert "flags.speculative-num-steps=1" in reverse.overrides({"flags.speculative-num-draft-tokens": 0})
    tree = search_space_from_file(read_model(path, SpaceFile, "space.yaml"), {**flags, "speculative-eagle-topk": 4})
    assert tree.coupled == ()
