"""The table of commands: what it says of each is so, and no command is imported to list or complete them."""

import ast
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.cli.commands import COMMANDS, group_text
from orchestrator.cli.main import app
from orchestrator.cli.typer_app import load_command

FOLDER = Path(str(cli.__file__)).parent
EVERY = [words for section in COMMANDS.values() for words in section]
GROUPS = ("add", "kernels", "patches")
SINGLE = [words for words in EVERY if group_text(words) is None]


@pytest.mark.parametrize("words", EVERY)
def test_command_summary_is_first_sentence_of_help(words: str) -> None:
    text = next(section[words] for section in COMMANDS.values() if words in section)
    assert load_command(words).get_short_help_str(limit=1000) == f"{text}."


def test_every_command_module_is_in_the_table() -> None:
    found = [path for path in FOLDER.rglob("*.py") if "\ndef command(" in path.read_text()]
    assert {" ".join(path.relative_to(FOLDER).with_suffix("").parts) for path in found} == {*SINGLE}


def test_command_groups_match_the_table() -> None:
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    assert [*root.commands] == [words for words in EVERY if " " not in words]
    assert set(EVERY) == {*SINGLE, *GROUPS}


MODULES = {f"orchestrator.cli.{words.replace(' ', '.')}" for words in SINGLE}


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules of commands that the command line has asked for."""
    asked: list[str] = []

    def note(module: str) -> ModuleType:
        asked.append(module)
        return import_module(module)

    monkeypatch.setattr("orchestrator.cli.typer_app.import_module", note)
    return asked


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        ("--help", []),
        ("kernels --help", []),
        ("schema --help", ["orchestrator.cli.schema"]),
        ("kernels check --help", ["orchestrator.cli.kernels.check"]),
        ("statsu", []),
    ],
)
def test_command_line_imports_only_its_command(words: str, modules: list[str], imported: list[str]) -> None:
    assert CliRunner().invoke(app, words.split()).exit_code == (words == "statsu")
    assert imported == modules


def test_shell_completion_imports_no_command(imported: list[str]) -> None:
    line = {"_DEPLOY_COMPLETE": "complete_bash", "COMP_WORDS": "deploy re", "COMP_CWORD": "1"}
    shown = CliRunner().invoke(app, [], env=line, prog_name="deploy").stdout.split()
    assert shown == ["restart", "render", "reproduce", "report"]
    assert imported == []


def test_command_modules_are_never_imported() -> None:
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
                assert not names & MODULES, path
