"""The strict YAML parser."""

import pytest

from orchestrator.core.errors import ProfileError
from orchestrator.core.yaml_document import read_document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"), ("yes", "yes"), ("on", "on"), ("Off", "Off"), ("012", "012"), ("0x10", "0x10"), ("1e3", "1e3"),
        ("22:30", "22:30"), ("2026-07-03", "2026-07-03"), ("0.5.14", "0.5.14"), ("~", "~"), (".inf", ".inf"),
        ("true", True), ("false", False), ("null", None), ("", None), ("12", 12), ("-3", -3), ("0.85", 0.85),
        ('"12"', "12"), ("'true'", "true"), ("0", 0), ("1_000", 1000),
    ],
)  # fmt: skip
def test_scalars_are_parsed_strictly(text: str, value: object) -> None:
    assert read_document(f"key: {text}", "f.yaml").data == {"key": value}


def test_every_key_has_its_line() -> None:
    document = read_document("a: 1\nb:\n  c: [1, 2]\n  d:\n    e: x\n", "f.yaml")
    assert document.location(("a",)) == "f.yaml:1"
    assert document.location(("b", "c", 1)) == "f.yaml:3"
    assert document.location(("b", "d", "e")) == "f.yaml:5"
    assert document.location(("b", "d", "missing")) == "f.yaml:4"


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ProfileError) as caught:
        read_document("a: 1\na: 2\nb: &x 3\nc: *x\nd: !!set {}\n", "f.yaml")
    problems = {problem.location: problem.message for problem in caught.value.problems}
    assert problems == {
        "f.yaml:2": "duplicate key `a`",
        "f.yaml:3": "anchors and aliases are not supported",
        "f.yaml:4": "anchors and aliases are not supported",
        "f.yaml:5": "the tag `tag:yaml.org,2002:set` is not allowed",
    }


@pytest.mark.parametrize("text", ["a: [1,\n", "a: b: c", "\tx: 1", "- 1\n- 2\n", "just text"])
def test_text_without_mapping_is_rejected_with_its_line(text: str) -> None:
    with pytest.raises(ProfileError) as caught:
        read_document(text, "f.yaml")
    locations = [caught.value.location, *(problem.location for problem in caught.value.problems)]
    assert any(location.startswith("f.yaml:") for location in locations)


def test_control_bytes_are_rejected() -> None:
    with pytest.raises(ProfileError, match="not text"):
        read_document("a: \x00", "f.yaml")


def test_each_line_is_reported_once() -> None:
    with pytest.raises(ProfileError) as caught:
        read_document("layout: &x [*x]\n", "f.yaml")
    assert [problem.location for problem in caught.value.problems] == ["f.yaml:1"]
