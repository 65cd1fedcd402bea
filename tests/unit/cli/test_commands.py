"""Test that the command table matches the commands, and that listing or completion imports none of them."""

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
ALL_COMMANDS = [words for section in COMMANDS.values() for words in section]
GROUPS = ("add", "kernels", "patches")
WITHOUT_GROUPS = [words for words in ALL_COMMANDS if group_text(words) is None]


@pytest.mark.parametrize("words", ALL_COMMANDS)
def test_command_summary_is_first_sentence_of_help(words: str) -> None:
    text = next(section[words] for section in COMMANDS.values() if words in section)
    assert load_command(words).get_short_help_str(limit=1000) == f"{text}."


def test_every_command_module_is_in_the_table() -> None:
    paths = [path for path in FOLDER.rglob("*.py") if "\ndef command(" in path.read_text()]
    assert {" ".join(path.relative_to(FOLDER).with_suffix("").parts) for path in paths} == {*WITHOUT_GROUPS}


def test_command_groups_match_the_table() -> None:
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    assert [*root.commands] == [words for words in ALL_COMMANDS if " " not in words]
    assert set(ALL_COMMANDS) == {*WITHOUT_GROUPS, *GROUPS}


MODULES = {f"orchestrator.cli.{words.replace(' ', '.')}" for words in WITHOUT_GROUPS}


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of command modules that the command line imports."""
    modules: list[str] = []

    def record(module: str) -> ModuleType:
        modules.append(module)
        return import_module(module)

    monkeypatch.setattr("orchestrator.cli.typer_app.import_module", record)
    return modules


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
    completions = CliRunner().invoke(app, [], env=line, prog_name="deploy").stdout.split()
    assert completions == ["restart", "render", "reproduce", "report"]
    assert imported == []


def test_command_modules_are_never_imported() -> None:
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
                assert not names & MODULES, path
