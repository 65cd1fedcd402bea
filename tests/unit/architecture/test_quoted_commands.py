"""A command with arguments or options that a message quotes has all that it requires."""

import ast
import re
import shlex
from collections.abc import Iterator

import typer
from sources import nodes_of

from orchestrator.cli.main import app
from orchestrator.core.paths import data_root

ROOT = data_root()
VALUE = "1"  # stands for each value that is known only when the message is printed


def quoted_commands() -> Iterator[tuple[str, str]]:
    """Yield each module with a command of its messages, in backquotes and with more than its name."""
    for path in sorted((ROOT / "orchestrator").rglob("*.py")):
        nodes = nodes_of(path)
        docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
        for node in set(nodes) - docstrings:
            for command in re.findall(r"`(deploy [a-z]+ [^`\n]+)`", text_of(node)):
                yield path.relative_to(ROOT).as_posix(), command


def text_of(node: ast.AST) -> str:
    """Return the text of a string with `VALUE` for each expression; empty for another node."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def problem_of(line: str) -> str:
    """Return what is wrong with a command; empty if nothing is."""
    command, words = typer.main.get_command(app), shlex.split(line)[1:]
    context = command.make_context("deploy", [], resilient_parsing=True)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
        context = command.make_context(command.name, [], parent=context, resilient_parsing=True)
    if not words:
        return ""  # only the name of a command
    values, rest, _ = command.make_parser(context).parse_args(list(words))
    missing = [option.name for option in command.params if option.required and values.get(option.name) is None]
    return f"unknown arguments {rest}" if rest else f"lacks {missing}" if missing else ""


def test_quoted_commands_are_complete() -> None:
    quoted = sorted(set(quoted_commands()))
    assert len(quoted) > 40
    assert [f"{module}: `{line}` {problem}" for module, line in quoted if (problem := problem_of(line))] == []
