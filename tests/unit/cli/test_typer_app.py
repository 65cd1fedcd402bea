"""Test rules for every command: how arguments are parsed and how help is formatted."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer import Context
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from orchestrator.cli.commands import ALIASES, COMMANDS, HIDDEN, RENAMED, RENAMED_OPTIONS
from orchestrator.cli.main import app
from orchestrator.cli.options import complete_names, server_names
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home


def commands(group: TyperGroup, *parents: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, *parents, name)
        else:
            yield (*parents, name)


SECTIONS = ("Common", "Server", "Preparation", "Measurement", "Management")
MAX_WORDS = 10
ROOT = get_command(app)
assert isinstance(ROOT, TyperGroup)
ALL_COMMANDS = sorted(commands(ROOT))


def command(words: tuple[str, ...]) -> TyperCommand:
    current: object = ROOT
    for word in words:
        assert isinstance(current, TyperGroup)
        current = current.commands[word]
    assert isinstance(current, TyperCommand)
    return current


WITH_PROFILE = [words for words in ALL_COMMANDS if any(option.name == "profile" for option in command(words).params)]


def test_profile_commands_are_listed() -> None:
    assert [" ".join(words) for words in WITH_PROFILE] == [
        *(
            "build",
            "kernels build",
            "kernels coverage",
            "kernels tune",
            "lock",
            "preflight",
            "render",
            "show",
            "stage",
            "sweep",
            "up",
        )
    ]


@pytest.mark.parametrize("words", WITH_PROFILE, ids=" ".join)
@pytest.mark.parametrize(
    "message", ["night-owl", "--profile night-owl", "--profile=night-owl", "-p night-owl", "-pnight-owl"]
)
def test_profile_may_be_argument_or_option(words: tuple[str, ...], message: str) -> None:
    args = [*message.split(), "--set", "server.port=1"]

    context = command(words).make_context("deploy", args)

    assert context.params["profile"] == "night-owl"
    assert context.params["set_"] == ["server.port=1"]


def test_words_after_double_dash_are_unchanged() -> None:
    assert command(("up",)).make_context("deploy", ["--", "-p"]).params["profile"] == "-p"


@pytest.mark.parametrize("words", ALL_COMMANDS, ids=" ".join)
def test_command_help_is_well_formatted(words: tuple[str, ...]) -> None:
    help_text = CliRunner().invoke(app, [*words, "-h"]).output

    assert not re.search(r"[{}]|<(str|int|path|float)>|…\.\.\.", help_text)
    names = re.findall(r"^  (\S+)  ", help_text.partition("Arguments:")[2].partition("Options:")[0], re.MULTILINE)
    assert [name.upper() for name in names] == names
    assert max(map(len, help_text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("status --hots", "no such option: --hots", "did you mean `--host`?"),
        ("up --profle cpu-tiny", "no such option: --profle", "did you mean `--profile`?"),
        ("stat", "no such command `stat`", "did you mean `status`, "),
        ("top", "missing argument `NAME`", "`deploy top -h` shows arguments and options"),
        ("cache ls", "no such command `cache`", "did you mean `deploy prune --caches`?"),
        ("--install-completion", "no such option: --install-completion", "did you mean `--show-completion`?"),
        ("kernels foo", "no such command `foo`", "`deploy kernels -h` shows"),
        ("top a --interval 0.1", "invalid value for `--interval`: input should be greater than or equal to 0.5", ""),
        ("down a b", "got unexpected extra argument(s) (b)", "`deploy down -h` shows"),
    ],
)
def test_invalid_command_line_is_a_usage_error(line: str, message: str, hint: str) -> None:
    result = CliRunner().invoke(app, line.split(), prog_name="deploy")
    assert isinstance(result.exception, UsageError)
    assert result.exception.message == message
    assert hint in result.exception.hint


def test_help_lists_every_command_in_a_section() -> None:
    help_text = CliRunner().invoke(app, ["-h"]).output

    sections = re.findall(r"^(\w[\w ]*):$", help_text, re.MULTILINE)
    assert sections == ["Options", *(f"{section} commands" for section in SECTIONS)]
    listed = help_text.partition("Common commands:")[2]
    assert set(re.findall(r"^  ([a-z]+)  ", listed, re.MULTILINE)) == {words[0] for words in ALL_COMMANDS} - HIDDEN
    assert "..." not in listed


def test_alias_shows_help_of_its_command() -> None:
    for alias, words in ALIASES.items():
        help_text = CliRunner().invoke(app, [alias, "-h"], prog_name="deploy").output
        assert help_text == CliRunner().invoke(app, [words, "-h"], prog_name="deploy").output
        assert help_text.startswith(f"Usage: deploy {words} ")


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_renamed_command_suggests_new_name(old: str, new: str) -> None:
    result = CliRunner().invoke(app, [*old.split(), "more"], prog_name="deploy")
    assert isinstance(result.exception, UsageError)
    assert result.exception.message == f"no such command `{old.rsplit(maxsplit=1)[-1]}`"
    assert result.exception.hint == f"did you mean `deploy {new}`?"
    first = new.partition(" -")[0].replace(" VERSION", "")
    assert tuple(first.split()) in ALL_COMMANDS or first in {words[0] for words in ALL_COMMANDS}


@pytest.mark.parametrize(
    ("words", "old", "new"), [(words, *pair) for words, pairs in RENAMED_OPTIONS.items() for pair in pairs.items()]
)
def test_renamed_option_suggests_new_name(words: str, old: str, new: str) -> None:
    assert new.partition(" ")[0] in {name for option in command(tuple(words.split())).params for name in option.opts}
    result = CliRunner().invoke(app, [*words.split(), old, "value"], prog_name="deploy")
    assert isinstance(result.exception, UsageError)
    assert result.exception.message == f"no such option: {old}"
    assert result.exception.hint == f"did you mean `{new}`?"


@pytest.mark.parametrize("words", [(), *ALL_COMMANDS], ids=" ".join)
def test_option_help_has_at_most_ten_words(words: tuple[str, ...]) -> None:
    shown = command(words).params if words else ROOT.get_params(Context(ROOT))[:-1]  # the last is `--help`
    for option in shown:
        text = getattr(option, "help", None) or ""
        assert text, option.name
        assert len(text.split()) <= MAX_WORDS, text
        assert not text.endswith("."), text


def test_command_summary_has_at_most_ten_words() -> None:
    for text in (text for section in COMMANDS.values() for text in section.values()):
        assert len(text.split()) <= MAX_WORDS, text


def test_shell_completes_profiles_and_workloads() -> None:
    assert "cpu-tiny" in complete_names("PROFILE")("cpu")
    assert complete_names("PROFILE")("nothing-begins-so") == []
    assert "smoke-tiny" in complete_names("WORKLOAD")("smoke")


def test_shell_completes_names_for_every_option() -> None:
    for line, expected in {
        "smoke x --profile": "cpu-tiny",
        "bench x --gpu": "h200",
        "kernels coverage": "cpu-tiny",
        "compare x --published": "wafer-glm52",
    }.items():
        words = ["deploy", *line.split(), expected[:2]]
        env = {"_DEPLOY_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        completions = CliRunner().invoke(app, [], env=env, prog_name="deploy").stdout.split()
        assert expected in completions, line
    assert all(
        "may be repeated" in (option.help or "")  # type: ignore[attr-defined]
        for words in ALL_COMMANDS
        for option in command(words).params
        if getattr(option, "multiple", False)
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bench owl -w smoke-tiny --gpu h200 --layout tp8", "`--gpu` and `--layout` are for URLs"),
        ("bench http://127.0.0.1:9 -w smoke-tiny --host ssh://node", "`--host` is for servers that `deploy` started"),
        ("eval owl --suite gsm8k --api-key-env KEY", "`--api-key-env` is for URLs"),
        ("smoke owl --profile cpu-tiny", "`--profile` is for URLs"),
    ],
)
def test_option_irrelevant_to_target_is_rejected(line: str, message: str) -> None:
    assert message in str(CliRunner().invoke(app, line.split()).exception)


def test_shell_completes_servers_of_this_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path))
    Home(tmp_path).make_runs("owl")

    assert server_names("o") == ["owl"]
    assert server_names("cpu") == []


@pytest.mark.parametrize("name", ["$(reboot)", "`reboot`", "a b", "-x", "a;b", "\x1b[31m"])
def test_shell_completion_skips_unsafe_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path))
    (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "profiles").mkdir()
    (tmp_path / f"profiles/{name}.yaml").touch()

    assert name not in server_names("")
    assert name not in complete_names("PROFILE")("")


def test_render_json_matches_written_files(tmp_path: Path) -> None:
    output = json.loads(CliRunner().invoke(app, ["render", "cpu-tiny", "--json"]).stdout)
    assert {file["path"] for file in output["files"]} == {"plan.json", "server.sh"}
    assert output["digest"]
    written = CliRunner().invoke(app, ["render", "cpu-tiny", "--json", "--output", str(tmp_path)])
    for file in json.loads(written.stdout)["files"]:
        assert Path(file["path"]).read_text() == file["content"]
        assert os.access(file["path"], os.X_OK) == file["executable"]


def test_commands_without_json_are_listed() -> None:
    """These commands print a log, an answer or a file unchanged."""
    without_json = {
        words for words in ALL_COMMANDS if not any(option.name == "json" for option in command(words).params)
    }
    assert {" ".join(words) for words in without_json} == {
        *("ask", "kernels tune", "logs", "schema"),
    }
