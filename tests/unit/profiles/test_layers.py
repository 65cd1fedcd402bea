"""Merging of the layers hardware, model, engine, profile and `--set`."""

import pytest

from orchestrator.core.errors import ProfileError, UsageError
from orchestrator.core.yaml_document import Document, read_document
from orchestrator.profiles.layers import MergedProfile, Override, merge_layers, select_entries

HARDWARE = read_document("gpus: 8\nflags:\n  a: {value: 1, origin: recipe, source: x}\n  b: {value: 1}\n", "hw.yaml")
MODEL = read_document("layers: 2\n", "model.yaml")
ENGINE = "version: 0.5.14\n"
ENGINE_WITH_IMAGE = "version: 1\nimage: x/sglang:v1\nimage_digest: sha256:1\naiter_commit: abc\nsource: a list\n"


def merge(profile: str, *overrides: str, engine: str = ENGINE) -> MergedProfile:
    layers = [read_document("hardware: hw\nmodel: m\nengine: e\n", "base.yaml"), read_document(profile, "p.yaml")]
    parsed = [Override.parse(text) for text in overrides]
    choices = select_entries(layers, parsed)
    files = {"hardware": HARDWARE, "model": MODEL, "engine": read_document(engine, "engine.yaml")}
    return merge_layers(
        choices,
        entries={entry_key: file for entry_key, file in files.items() if choices[entry_key].file},
        names={"hardware": "hw", "model": "m", "engine": "e"},
        profiles=layers,
        overrides=parsed,
    )


def test_entry_facts_are_nested_and_flags_top_level() -> None:
    result = merge("hardware: hw\nmodel: m\nengine: e\n")
    assert result.data["hardware"] == {"gpus": 8}
    assert result.location(("hardware", "gpus")) == "hw.yaml:1"
    assert result.location(("flags", "a")) == "hw.yaml:3"


def test_setting_is_replaced_together_with_its_origin() -> None:
    result = merge("flags:\n  a: {value: 2}\n")
    assert result.data["flags"] == {"a": {"value": 2}, "b": {"value": 1}}
    assert result.location(("flags", "a", "value")) == "p.yaml:2"


def test_null_removes_a_setting() -> None:
    assert merge("flags: {a: null}\n").data["flags"] == {"b": {"value": 1}}
    assert merge("flags: {}\n", "flags.a=null").data["flags"] == {"b": {"value": 1}}


@pytest.mark.parametrize(
    ("profile", "overrides"),
    [("layout: {decode: {flags: {a: null}}}\n", ()), ("", ("layout.decode.flags.a=null",))],
    ids=["profile", "set"],
)
def test_null_among_the_flags_of_a_role_omits_a_shared_flag(profile: str, overrides: tuple[str, ...]) -> None:
    result = merge(profile, *overrides)
    assert result.data["layout"] == {"decode": {"flags": {"a": None}}}
    assert result.location(("layout", "decode", "flags", "a")) == (
        "--set layout.decode.flags.a" if overrides else "p.yaml:1"
    )


def test_set_overrides_profile_with_user_origin() -> None:
    result = merge("flags: {a: {value: 2}}\n", "flags.a=3", "engine.version=0.5.16", "list=[a, 2]")
    assert result.data["flags"] == {
        "a": {"value": 3, "origin": "user", "source": "--set flags.a"},
        "b": {"value": 1},
    }
    assert result.data["engine"] == {"version": "0.5.16"}
    assert result.data["list"] == ["a", 2]
    assert result.location(("flags", "a")) == "--set flags.a"


def test_merging_does_not_modify_lower_layers() -> None:
    before = dict(HARDWARE.data)
    merge("flags: {a: {value: 9}}\n", "hardware.gpus=1")
    assert HARDWARE.data == before
    assert HARDWARE.data["gpus"] == 8


@pytest.mark.parametrize("text", ["", "a", "=1", ".a=1", "a..b=1"])
def test_override_without_key_and_value_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="has no key and value"):
        Override.parse(text)


def test_missing_entries_are_reported_together() -> None:
    with pytest.raises(ProfileError) as caught:
        select_entries([Document("p.yaml", {"hardware": 3}, {("hardware",): 1})], [])
    assert [problem.message for problem in caught.value.problems] == [
        "`hardware` must name a file, found `3`",
        "`model` must name a file, found nothing",
        "`engine` must name a file, found nothing",
    ]


def test_profile_overrides_single_values_of_an_entry() -> None:
    result = merge("engine:\n  use: e\n  version: 0.5.16\n  flags: {c: 1}\nflags: {a: 5}\n")
    assert result.data["engine"] == {"version": "0.5.16"}
    assert result.location(("engine", "version")) == "p.yaml:3"
    assert result.location(("flags", "c")) == "p.yaml:4"
    assert result.data["flags"] == {"a": 5, "b": {"value": 1}, "c": 1}


def test_values_without_use_override_inherited_entry() -> None:
    result = merge("model: {layers: 3, moe: {experts: 4}}\n", "model.moe.experts=5")
    assert result.data["model"] == {"layers": 3, "moe": {"experts": 5}}


def test_entry_may_be_written_inside_profile() -> None:
    choice = select_entries([read_document("hardware: {gpus: 1}\nmodel: m\nengine: ./e.yaml\n", "p.yaml")], [])
    assert [choice[entry_key].file for entry_key in ("hardware", "model", "engine")] == [None, "m", "./e.yaml"]
    assert [document.name for document in choice["hardware"].over] == ["p.yaml"]


def test_new_entry_name_discards_earlier_values() -> None:
    assert merge("engine: {version: 2}\n", "engine=other").data["engine"] == {"version": "0.5.14"}
    assert merge("engine: {version: 2}\n", "engine.use=other").data["engine"] == {"version": 2}


@pytest.mark.parametrize(
    ("profile", "overrides"),
    [("", ["engine.image=z/sglang:v1"]), ("engine: {image: 'z/sglang:v1'}\n", [])],
    ids=["set", "profile"],
)
def test_changed_image_discards_facts_of_old_image(profile: str, overrides: list[str]) -> None:
    result = merge(profile, *overrides, engine=ENGINE_WITH_IMAGE)
    assert result.data["engine"] == {"version": 1, "image": "z/sglang:v1", "source": "a list"}
    assert result.names["engine"] == "z/sglang:v1"
    assert result.location(("engine", "aiter_commit")) == result.location(("engine",))


def test_facts_set_with_changed_image_are_kept() -> None:
    result = merge("", "engine.image=z/sglang:v1", "engine.aiter_commit=abc", engine=ENGINE_WITH_IMAGE)
    assert result.data["engine"] == {
        "version": 1,
        "image": "z/sglang:v1",
        "aiter_commit": "abc",
        "source": "a list",
    }
    same = merge("", "engine.image=x/sglang:v1", engine=ENGINE_WITH_IMAGE)
    assert same.names["engine"] == "e"
    assert "image_digest" in str(same.data["engine"])
