"""What `deploy render --output` writes and every run directory holds: the artifacts as files a person can run."""

import dataclasses
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from orchestrator.core.text import printable
from orchestrator.plan import EnvVar, Flag, Plan
from orchestrator.render.artifacts import Artifacts, ContextFile

IMAGE_FOLDER: Final = "image"  # the build context
_WIDTH: Final = 120
SHELL_HOME: Final = (
    '"${DEPLOY_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/deploy}"'  # as orchestrator.core.paths finds it
)


def files(artifacts: Artifacts) -> tuple[ContextFile, ...]:
    """The plan, the server's command, and the build context; each runtime adds what is its own."""
    written = [text_file("plan.json", artifacts.plan.to_json()), script_file("server.sh", server_script(artifacts))]
    if artifacts.build is not None:
        written += [dataclasses.replace(file, path=f"{IMAGE_FOLDER}/{file.path}") for file in artifacts.build.files]
    return tuple(written)


def text_file(path: str, text: str) -> ContextFile:
    """A file that is read."""
    return ContextFile(path=path, content=text.encode(), executable=False)


def script_file(path: str, text: str) -> ContextFile:
    """A file that is run."""
    return ContextFile(path=path, content=text.encode(), executable=True)


def server_script(artifacts: Artifacts) -> str:
    """The server's command as a shell script, each setting with its origin above it."""
    plan = artifacts.plan
    lines = ["#!/bin/sh", _comment(f"{plan.profile}: {plan.description}"), "#"]
    lines += [*origin_lines(plan), *hazard_lines(plan), "set -eu"]
    if artifacts.command.in_home:
        lines += [f"CDPATH= cd -- {SHELL_HOME}", "export PYTHONSAFEPATH=1  # nothing in that folder is imported"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in artifacts.command.env]
    lines += artifacts.command.script
    command = wrapped(artifacts.command.argv)
    if plan.server.api_key_env is not None:  # without it the server would answer everyone who reaches it
        lines.append(': "${API_KEY_FILE:?the absolute path of a .yaml file with the line api-key: KEY}"')
        command += ' \\\n  --config "$API_KEY_FILE"'
    return "\n".join(lines) + f"\nexec {command}\n"


def origin_lines(plan: Plan) -> Iterator[str]:
    """One comment a setting: its origin, the setting, who says so."""
    settings: list[tuple[str, Flag | EnvVar]] = [
        *((" ".join(flag.argv), flag) for flag in plan.flags),
        *((f"{variable.name}={variable.value}", variable) for variable in plan.env),
    ]
    width = max((len(text) for text, _ in settings), default=0)
    for text, setting in settings:
        yield _comment(f"{setting.origin:<9}  {text:<{width}}  {setting.source}").rstrip()


def _comment(text: str) -> str:
    """A comment, which ends with its line whatever stands in it."""
    return f"# {' '.join(printable(text).splitlines())}"


def hazard_lines(plan: Plan) -> Iterator[str]:
    """What was reported of plans like this one, as comments."""
    for hazard in plan.hazards:
        yield "#"
        for text in (f"hazard {hazard.id}: {hazard.what} ({hazard.source})", f"hint: {hazard.hint}"):
            yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ")


def wrapped(argv: Sequence[str]) -> str:
    """An argv as shell text, one option a line."""
    lines: list[str] = []
    for word in argv:
        quoted = shlex.quote(word)
        if word.startswith("--") or not lines:
            lines.append(quoted)
        else:
            lines[-1] += f" {quoted}"
    return " \\\n  ".join(lines)
