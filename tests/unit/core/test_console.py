"""What is printed, for people and for programs."""

import io

import pytest

from orchestrator.core.console import fitted


@pytest.mark.parametrize(("terminal", "shown"), [(True, "a line th…\nshort"), (False, "a line that goes on\nshort")])
def test_a_table_fits_a_terminal_and_is_whole_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: str
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)

    assert fitted("a line that goes on\nshort", stream) == shown
