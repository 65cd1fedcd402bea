"""Validate all JSON that commands print in tests against the schemas of `deploy schema COMMAND`."""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from orchestrator.cli.multi_host import is_multi_host, split_hosts
from orchestrator.cli.schema import json_outputs
from orchestrator.core.json_output import JsonOutput


def check_all_outputs() -> None:
    """Validate each value that this process prints from now on."""
    of_value = JsonOutput.data

    def data(self: JsonOutput[Any], value: object) -> object:
        plain = of_value(self, value)
        _check(self, json.loads(json.dumps(plain, default=str)))
        return plain

    JsonOutput.data = data  # type: ignore[method-assign]


def check_stdout(words: Sequence[str], stdout: str) -> None:
    """Validate the JSON on stdout of a command; skip an incomplete last line."""
    command = next((name for name in _by_length() if [*words[: name.count(" ") + 1]] == name.split()), None)
    if command is None or "--json" not in words or not stdout:
        return
    output = json_outputs()[command]
    if output.lines:
        documents = [json.loads(line) for line in stdout.splitlines(keepends=True) if line.endswith("\n")]
    elif is_multi_host(split_hosts(words)[0]):
        documents = [load for load in json.loads(stdout).values() if load is not None]
    else:
        documents = [json.loads(stdout)]
    for document in documents:
        _check(output, document)


@cache
def _by_length() -> list[str]:
    return sorted(json_outputs(), key=len, reverse=True)


def _check(output: JsonOutput[Any], document: object) -> None:
    _validator(output).validate(document)


@cache
def _validator(output: JsonOutput[Any]) -> Draft202012Validator:
    return Draft202012Validator(dict(_closed(output.schema)))


def _closed(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the items of a schema that forbids unknown fields."""
    for key, value in schema.items():
        yield key, {name: dict(_closed(item)) for name, item in value.items()} if key == "$defs" else value
    if "properties" in schema:
        yield "additionalProperties", False
