"""Test that untrusted text cannot move the cursor, set a title or change direction in a terminal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.console import Progress, info, note, print_data, print_json, show_error, table, warn
from orchestrator.core.errors import DeployError, Problem
from orchestrator.core.text import first_control_char, printable, printable_json

ATTACKS = [
    "\x1b]0;title\x07",
    "\x1b[2J",
    "\x1b[8m",
    "\x9b2J",
    "\r",
    "\x08",
    "\x7f",
    "\u202e",
    "\u2066",
    "\u2028",
    "\ud800",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_all_output_is_free_of_control_characters(attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    text_ = f"a{attack}b"
    info(text_)
    print_data(text_)
    print_data(text_, colors=True)
    print_data(text_, end="")
    print_data(table(["name"], [[text_]]))
    note(text_)
    warn(text_, hint=text_)
    problem = Problem(text_, location=text_, hint=text_)
    show_error(DeployError(text_, location=text_, hint=text_, details=text_, problems=[problem]))
    progress = Progress()
    progress.update(text_, transient=text_)
    progress.done()
    captured = capsys.readouterr()
    assert first_control_char(captured.out + captured.err, lines=True) is None
    assert (captured.out + captured.err).count(printable(text_)) == 16


@pytest.mark.parametrize("attack", ATTACKS)
def test_json_output_round_trips_without_control_characters(attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_json({attack: attack})
    output = capsys.readouterr().out
    assert first_control_char(output, lines=True) is None
    assert json.loads(output) == {attack: attack}


def test_a_log_keeps_its_colors() -> None:
    line = "\x1b[32mINFO\x1b[0m \x1b[38;5;9;1mred\x1b[m"
    assert printable(line, colors=True) == line
    assert printable(line) == line.replace("\x1b", "\\x1b")
    assert printable("\x1b[1A\x1b[0;8m\x1b[32m", colors=True) == "\\x1b[1A\\x1b[0;8m\x1b[32m"


@given(st.text())
def test_printable_preserves_ordinary_text(text: str) -> None:
    assert first_control_char(printable(text), lines=True) is None
    assert first_control_char(text, lines=True) is not None or printable(text) == text
    assert json.loads(printable_json(json.dumps(text, ensure_ascii=False))) == text
