"""Each `deploy` command in the README and the how-to guides is one that the command line takes.

Those that need no hardware, hub or server are carried out, with `--dry-run` where they have it.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.core.paths import data_root

ROOT = data_root()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
DIGEST = "0" * 64
STAND_FOR = {
    "NAME": "cpu-tiny",
    "PROFILE": "cpu-tiny",
    "RUN": "20260101T000000Z-00000000",
    "OTHER": "http://127.0.0.1:9",
}
PURE = {
    "show",
    "render",
    "schema",
    "profiles",
    "diff",
    "patches ls",
}  # of shipped profiles: nothing but the catalog
DRY = {"up", "reproduce"}
MADE_BEFORE = (
    "whole",
    "glm-4.7",
    "GLM-4.7",  # from the hub
    "dist/",
    "--from",
    "--image",
    "NAME",
    "RUN",
    "rack",
    "mine",
    "--locked",
)  # on the page, or by the reader


def fenced(page: Path) -> Iterator[str]:
    """The commands of a page, a line each, comments left out."""
    for block in re.findall(r"^```(?:console|sh)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield from re.findall(r"(?:^|\$ |&& )(deploy .*?)(?= && |$)", re.sub(r"\s+#(?! exits).*| > .*", "", line))


COMMANDS = sorted({(page.relative_to(ROOT).as_posix(), line) for page in PAGES for line in fenced(page)})


def words_of(line: str) -> list[str]:
    words = shlex.split(line.replace("…", DIGEST), comments=True)[1:]
    return [
        re.sub("|".join(rf"\b{name}\b" for name in STAND_FOR), lambda match: STAND_FOR[match[0]], word)
        for word in words
    ]


def test_documentation_contains_commands() -> None:
    assert len(COMMANDS) > 80
    assert {page for page, _ in COMMANDS} >= {"README.md", "docs/how-to/docker.md", "docs/how-to/measure.md"}


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_documented_command_is_accepted(page: str, line: str) -> None:
    command, words = typer.main.get_command(app), words_of(line)
    context = command.make_context("deploy", [], resilient_parsing=True)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
        context = command.make_context(command.name, [], parent=context, resilient_parsing=True)
    given, left, _ = command.make_parser(context).parse_args(list(words))
    assert not left, f"{page}: `{' '.join(left)}` is not taken"
    lacking = [each.name for each in command.params if each.required and given.get(each.name) is None]
    assert not [name for name in lacking if name != "profile" or "--profile" not in words], f"{page}: {line}"


def verb_of(line: str) -> str:
    words = words_of(line)
    return " ".join(words[:2]) if words[0] in {"patches", "kernels", "add"} else words[0]


ALONE = [
    (page, line)
    for page, line in COMMANDS
    if verb_of(line) in PURE | DRY and not any(word in line for word in MADE_BEFORE)
]


@pytest.mark.parametrize(("page", "line"), ALONE)
def test_self_contained_command_exits_as_documented(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path / "home"))
    words = words_of(line)
    more = ["--dry-run"] if verb_of(line) in DRY and "--dry-run" not in words else []
    done = CliRunner().invoke(app, [*words, *more])
    code = getattr(done.exception, "exit_code", done.exit_code)
    assert code == (3 if "# exits with 3" in line else 0), f"{page}: {line}\n{done.output}"
