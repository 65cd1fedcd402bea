"""A command with arguments or options that a message quotes has all that it requires."""

import ast
import re
import shlex
from collections.abc import Iterator

import pytest
import typer

from orchestrator.cli.main import app
from orchestrator.core.paths import data_root

ROOT = data_root()
VALUE = "1"  # stands for each value that is known only when the message is printed


def quoted_commands() -> Iterator[tuple[str, str]]:
    """Yield each module with a command of its messages, in backquotes and with more than its name."""
    for path in sorted((ROOT / "orchestrator").rglob("*.py")):
        tree = ast.parse(path.read_text())
        docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in set(ast.walk(tree)) - docstrings:
            for command in re.findall(r"`(deploy [a-z]+ [^`\n]+)`", text_of(node)):
                yield path.relative_to(ROOT).as_posix(), command


def text_of(node: ast.AST) -> str:
    """Return the text of a string with `VALUE` for each expression; empty for another node."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


QUOTED = sorted(set(quoted_commands()))


def test_messages_quote_commands() -> None:
    assert len(QUOTED) > 40


@pytest.mark.parametrize(("module", "line"), QUOTED)
def test_quoted_command_is_complete(module: str, line: str) -> None:
    command, words = typer.main.get_command(app), shlex.split(line)[1:]
    context = command.make_context("deploy", [], resilient_parsing=True)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
        context = command.make_context(command.name, [], parent=context, resilient_parsing=True)
    if not words:
        return  # only the name of a command
    values, rest, _ = command.make_parser(context).parse_args(list(words))
    assert not rest, f"{module}: unknown arguments `{' '.join(rest)}`"
    missing = [option.name for option in command.params if option.required and values.get(option.name) is None]
    assert not missing, f"{module}: `{line}` lacks {missing}"
