"""Test the output for people and for programs."""

import io
import json
import re

import pytest

from orchestrator.core.console import Progress, info, muted, note, print_json, table, terminal_width, warn
from orchestrator.core.secrets import Secret
from orchestrator.planner.explain import explained, explained_text
from orchestrator.planner.planning import load

ROWS = [("a", "one long cell that goes on and on"), ("b", "/a/path/that/has/no/space/at/all/in/it"), ("c", "short")]


@pytest.mark.parametrize(("terminal", "width"), [(True, 30), (False, None)])
def test_width_is_known_only_for_terminals(monkeypatch: pytest.MonkeyPatch, terminal: bool, width: int | None) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)

    assert terminal_width(stream) == width


def test_table_for_pipe_is_not_wrapped() -> None:
    assert [len(line) for line in table(("name", "what"), ROWS).splitlines()] == [10, 39, 44, 11]


def test_table_for_terminal_wraps_between_words() -> None:
    assert table(("name", "what"), [ROWS[0], ROWS[2]], width=30).splitlines() == [
        "name  what",
        "a     one long cell that goes",
        "      on and on",
        "c     short",
    ]


def test_table_with_long_words_becomes_paragraphs() -> None:
    """A name or a path that is split over two lines cannot be copied."""
    rows = [("mi355x-tp8", "docker", ""), ("cpu", "process", "the embedded default")]
    assert table(("profile", "runtime", "about"), rows, width=24).splitlines() == [
        "profile:",
        "mi355x-tp8",
        "    runtime: docker",
        "cpu",
        "    runtime: process,",
        "    about: the embedded",
        "    default",
    ]
    assert ROWS[1][1] in table(("name", "what"), ROWS, width=20)


def test_explanation_fits_narrow_terminals() -> None:
    narrow = explained_text(explained(load("mi355x-tp8")), width=80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert re.search(
        r"layout\.tp = 8\n    profiles/mi355x-tp8\.yaml:\d+: published; wafer\.ai/blog/glm52-amd\n", narrow
    )


def test_json_stays_valid_when_secrets_are_redacted(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("null", "true", "name", "12345678"):
        Secret(word)

    print_json({"name": None, "healthy": True, "port": 12345678, "text": "the name is null"})

    output = json.loads(capsys.readouterr().out)
    assert output == {"name": None, "healthy": True, "port": 12345678, "text": "the [REDACTED] is [REDACTED]"}


def test_muted_block_collects_warnings_without_printing(capsys: pytest.CaptureFixture[str]) -> None:
    with muted() as warnings:
        info("one")
        note("two")
        warn("three", hint="do that")
        Progress().update("four")
    assert warnings == [("three", "do that")]
    assert capsys.readouterr().err == ""
    info("five")
    assert capsys.readouterr().err == "five\n"
