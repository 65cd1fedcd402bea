"""Test the last line after Ctrl-C: what was stopped, and what is left running on purpose."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.core.errors import Interrupted


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def interrupted(*words: str) -> Interrupted:
    with pytest.raises(Interrupted) as caught:
        CliRunner().invoke(app, words, catch_exceptions=False)
    return caught.value


@pytest.mark.parametrize(
    ("location", "words", "message", "hint"),
    [
        ("up.up", ["up", "cpu-tiny"], "interrupted; no server was started", "nothing is left running; the same"),
        (
            "build.plan_to_build",
            ["build", "cpu-tiny"],
            "interrupted; the build was stopped",
            "nothing is left running;",
        ),
        (
            "bench.server_target",
            ["bench", "owl"],
            "interrupted",
            "`owl` is left running; `deploy down owl` stops it",
        ),
        (
            "bench.url_target",
            ["bench", "http://owl:1"],
            "interrupted",
            "`http://owl:1` is left running",
        ),
        (
            "eval.forecast_eval",
            ["eval", "owl", "--suite", "gsm8k"],
            "interrupted",
            "`owl` is left running; `deploy down owl` stops it",
        ),
        ("sweep.plan_sweep", ["sweep", "cpu-tiny"], "interrupted", "nothing is left running"),
        ("down.down_all", ["down", "--all"], "interrupted", "`deploy status` shows what runs"),
        ("smoke.smoke_url", ["smoke", "http://owl:1"], "interrupted", "`http://owl:1` is left running"),
        ("add.model.add_model", ["add", "model", "OWNER/NAME"], "interrupted", "nothing is left running"),
    ],
)
def test_interrupt_before_start_reports_nothing_running(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, location: str, words: list[str], message: str, hint: str
) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path))
    monkeypatch.setattr(f"orchestrator.cli.{location}", interrupt)
    for command in ("bench", "smoke"):
        monkeypatch.setattr(f"orchestrator.cli.{command}.resolve_server_name", lambda target, *_: target)
    error = interrupted(*words)
    assert error.message == message
    assert error.hint.startswith(hint)
