"""Test the JSON schemas of `deploy schema COMMAND`.

`support/json_schemas.py` validates the output of each command that a test runs.
"""

import json

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from orchestrator.cli.commands import COMMANDS
from orchestrator.cli.main import app
from orchestrator.cli.schema import json_outputs
from orchestrator.cli.typer_app import load_command
from orchestrator.core.console import ErrorOutput
from orchestrator.core.errors import UsageError
from orchestrator.servers.watch.events import EventKind, WatchEvent

WITH_JSON = sorted(
    words
    for section in COMMANDS.values()
    for words in section
    if any(parameter.name == "json" for parameter in load_command(words).params)
)


def test_each_command_with_json_has_a_schema() -> None:
    assert sorted(json_outputs()) == WITH_JSON


@pytest.mark.parametrize("words", WITH_JSON)
def test_schema_is_valid_and_includes_errors(words: str) -> None:
    result = CliRunner().invoke(app, ["schema", *words.split()])
    assert result.exit_code == 0
    schema = json.loads(result.stdout)
    Draft202012Validator.check_schema(schema)
    assert schema["title"].startswith(f"deploy {words} --json")
    assert schema["anyOf"][-1] == {"$ref": "#/$defs/ErrorOutput"}


def test_every_schema_class_has_a_description() -> None:
    """The generated descriptions of dataclasses and pydantic do not count."""
    for words, output in json_outputs().items():
        for name, definition in output.schema["$defs"].items():
            if "properties" in definition:
                assert not definition["description"].startswith(f"{name}("), (words, name)


def test_error_output_has_message_and_exit_code() -> None:
    error = ErrorOutput.of(UsageError("no server named", hint="`deploy status` lists them")).error
    assert (error.message, error.exit_code, error.problems) == ("no server named", 2, ())


@pytest.mark.parametrize("seconds", [None, 1.5])
def test_watch_events_match_their_schema(seconds: float | None) -> None:
    """`watch` prints events without a serializer, which would occupy memory as long as the watcher runs."""
    event = WatchEvent(
        time="2026-11-27T03:00:00+00:00",
        name="tiny",
        event=EventKind.DIED,
        detail="killed by SIGKILL",
        run="",
        alert=True,
        seconds=seconds,
    )
    assert json_outputs()["watch"].data(event) == event.to_dict()
