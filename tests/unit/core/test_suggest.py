"""Test the hint for an unknown name."""

from orchestrator.core.suggest import did_you_mean


def test_hint_lists_each_known_name_once() -> None:
    assert did_you_mean("nosuch", ["owl", "fox", "owl"]) == "known: `fox`, `owl`"


def test_hint_names_the_most_similar_name() -> None:
    assert did_you_mean("owls", ["owl", "fox", "owl"]) == "did you mean `owl`?"
