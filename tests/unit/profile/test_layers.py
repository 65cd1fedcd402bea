"""Layers: hardware, model, engine, profile, --set."""

import pytest

from orchestrator.core.document import Document, read_document
from orchestrator.core.errors import ProfileError, UsageError
from orchestrator.profile.layers import Composed, Override, compose, part_names

HARDWARE = read_document("gpus: 8\nflags:\n  a: {value: 1, origin: recipe, source: x}\n  b: {value: 1}\n", "hw.yaml")
MODEL = read_document("layers: 2\n", "model.yaml")
ENGINE = read_document("version: 0.5.14\n", "engine.yaml")


def composed(profile: str, *overrides: str) -> Composed:
    return compose(
        {"hardware": HARDWARE, "model": MODEL, "engine": ENGINE},
        names={"hardware": "hw", "model": "m", "engine": "e"},
        profiles=[read_document(profile, "p.yaml")],
        overrides=[Override.parse(text) for text in overrides],
    )


def test_facts_of_a_part_stand_below_its_name_and_flags_at_the_top() -> None:
    result = composed("hardware: hw\nmodel: m\nengine: e\n")
    assert result.data["hardware"] == {"gpus": 8}
    assert result.place(("hardware", "gpus")) == "hw.yaml:1"
    assert result.place(("flags", "a")) == "hw.yaml:3"


def test_a_setting_is_replaced_whole_so_its_origin_cannot_outlive_its_value() -> None:
    result = composed("flags:\n  a: {value: 2}\n")
    assert result.data["flags"] == {"a": {"value": 2}, "b": {"value": 1}}
    assert result.place(("flags", "a", "value")) == "p.yaml:2"


def test_null_removes() -> None:
    assert composed("flags: {a: null}\n").data["flags"] == {"b": {"value": 1}}
    assert composed("flags: {}\n", "flags.a=null").data["flags"] == {"b": {"value": 1}}


def test_set_comes_last_and_says_so() -> None:
    result = composed("flags: {a: {value: 2}}\n", "flags.a=3", "engine.version=0.5.16", "list=[a, 2]")
    assert result.data["flags"] == {
        "a": {"value": 3, "origin": "user", "source": "--set flags.a"},
        "b": {"value": 1},
    }
    assert result.data["engine"] == {"version": "0.5.16"}
    assert result.data["list"] == ["a", 2]
    assert result.place(("flags", "a")) == "--set flags.a"


def test_a_layer_is_not_changed_by_those_above_it() -> None:
    before = dict(HARDWARE.data)
    composed("flags: {a: {value: 9}}\n", "hardware.gpus=1")
    assert HARDWARE.data == before
    assert HARDWARE.data["gpus"] == 8


@pytest.mark.parametrize("text", ["", "a", "=1", ".a=1", "a..b=1"])
def test_an_override_has_a_key_and_a_value(text: str) -> None:
    with pytest.raises(UsageError, match="has no key and value"):
        Override.parse(text)


def test_missing_parts_are_named_together() -> None:
    with pytest.raises(ProfileError) as caught:
        part_names([Document("p.yaml", {"hardware": 3}, {("hardware",): 1})], [])
    assert [problem.message for problem in caught.value.problems] == [
        "`hardware` must name a file, found `3`",
        "`model` must name a file, found nothing",
        "`engine` must name a file, found nothing",
    ]
