"""Artifacts as files for `deploy render --output` and for run directories: JSON, shell scripts, build context."""

import dataclasses
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from orchestrator.core.text import printable
from orchestrator.engine.launch import HEAD_ADDRESS, NODE_RANK, key_file_words
from orchestrator.engine.options import Meaning
from orchestrator.plan.plan import EnvVar, Flag, Plan
from orchestrator.render.artifacts import Artifacts, RenderedFile

IMAGE_FOLDER: Final = "image"  # folder of the build context
_WIDTH: Final = 120  # columns of wrapped comments
_RANK: Final = "${NODE_RANK:?0 on the first node, 1 on the next}"
_HEAD: Final = "${HEAD_ADDRESS:?the address of the first node}"
SHELL_HOME: Final = (
    '"${DEPLOY_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/deploy}"'  # same rule as orchestrator.core.paths
)


def files(artifacts: Artifacts) -> tuple[RenderedFile, ...]:
    """Return the files of a plan: `plan.json`, the start script and the build context; runtimes add their own files.

    With replicas, the start script starts the gateway, and each replica has a folder with its files.
    """
    written = [text_file("plan.json", artifacts.plan.to_json())]
    if artifacts.replicas:
        written.append(script_file("gateway.sh", gateway_script(artifacts)))
    else:
        written.append(script_file("server.sh", server_script(artifacts)))
    for folder, replica in artifacts.named_replicas:
        written += [dataclasses.replace(file, path=f"{folder}/{file.path}") for file in files(replica)]
    if artifacts.build is not None:
        written += [dataclasses.replace(file, path=f"{IMAGE_FOLDER}/{file.path}") for file in artifacts.build.files]
    return tuple(written)


def text_file(path: str, text: str) -> RenderedFile:
    """Return a rendered file that is not executable."""
    return RenderedFile(path=path, content=text.encode(), executable=False)


def script_file(path: str, text: str) -> RenderedFile:
    """Return a rendered file that is executable."""
    return RenderedFile(path=path, content=text.encode(), executable=True)


def server_script(artifacts: Artifacts) -> str:
    """Return the shell script that starts a server; comments at its top name the origin of each setting."""
    plan = artifacts.plan
    lines = ["#!/bin/sh", _comment(f"{plan.profile}: {plan.description}"), "#"]
    settings: list[tuple[str, Flag | EnvVar]] = [(" ".join(flag.argv), flag) for flag in plan.flags]
    settings += [(f"{variable.name}={variable.value}", variable) for variable in plan.env]
    lines += [*_origins(settings), *warning_lines(plan), "set -eu"]
    if artifacts.command.runs_in_home:
        lines += [f"CDPATH= cd -- {SHELL_HOME}", "export PYTHONSAFEPATH=1  # nothing in that folder is imported"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in artifacts.command.env]
    lines += artifacts.command.script
    return per_node("\n".join([*lines, *_executed(artifacts)]))


def per_node(text: str) -> str:
    """Return a script that all nodes of a server can run, with shell variables for values that differ."""
    for word, variable in ((NODE_RANK, _RANK), (HEAD_ADDRESS, _HEAD)):
        text = re.sub(rf"'{re.escape(word)}([^']*)'", rf'"{variable}\1"', text)
    return text


def gateway_script(artifacts: Artifacts) -> str:
    """Return the shell script that starts the gateway, to be run when all replicas are ready.

    Comments at its top name the origin of each option.
    """
    plan = artifacts.plan
    options = plan.gateway.options if plan.gateway else ()
    description = f"{plan.profile}: the gateway of {plan.replicas} replicas; start it when all of them are ready"
    lines = [
        "#!/bin/sh",
        _comment(description),
        "#",
        *_origins([(" ".join(option.argv), option) for option in options]),
    ]
    lines += ["set -eu", 'CDPATH= cd -- "$(dirname -- "$0")"']
    lines += [f"export {name}={shlex.quote(value)}" for name, value in artifacts.command.env]
    text = "\n".join([*lines, *_executed(artifacts)])
    return text if plan.gateway is None or plan.gateway.one_node else _addressed(plan, text)


def _addressed(plan: Plan, text: str) -> str:
    """Replace the URL of each replica by a shell variable, because its node is unknown until the replica starts."""
    for number, replica in enumerate(plan.servers.values(), start=1):
        prompt = f"its URL, as http://NODE:{replica.server.port}"
        text = text.replace(f" {replica.server.url}", f' "${{REPLICA_{number}:?{prompt}}}"')
    return text


def _executed(artifacts: Artifacts) -> Iterator[str]:
    """Yield the last lines of a script. They require the API key file, because a server without a key is public."""
    command = wrap_argv(artifacts.command.argv)
    if artifacts.plan.server.api_key_env is not None:
        key = Meaning.API_KEY
        yield f': "${{API_KEY_FILE:?the absolute path of a .yaml file with the line {key}: KEY}}"'
        command += " \\\n  " + " ".join(key_file_words('"$API_KEY_FILE"'))
    yield f"exec {command}\n"


def _origins(settings: Sequence[tuple[str, Flag | EnvVar]]) -> Iterator[str]:
    """Yield one comment per setting: its origin, the setting, its source."""
    width = max((len(text) for text, _ in settings), default=0)
    for text, setting in settings:
        yield _comment(f"{setting.origin:<9}  {text:<{width}}  {setting.source}").rstrip()


def _comment(text: str) -> str:
    """Format text as a single-line shell comment, whatever it contains."""
    return f"# {' '.join(printable(text).splitlines())}"


def warning_lines(plan: Plan) -> Iterator[str]:
    """Yield the plan's warnings about known issues as comments."""
    for warning in plan.warnings:
        yield "#"
        for text in (f"warning {warning.id}: {warning.summary} ({warning.source})", f"hint: {warning.hint}"):
            yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ")


def wrap_argv(argv: Sequence[str]) -> str:
    """Quote an argv for a shell script, one option per line."""
    lines: list[str] = []
    for word in argv:
        quoted = shlex.quote(word)
        if word.startswith("--") or not lines:
            lines.append(quoted)
        else:
            lines[-1] += f" {quoted}"
    return " \\\n  ".join(lines)
