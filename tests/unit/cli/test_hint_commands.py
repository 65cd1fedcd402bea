"""Test that a command in a hint works as printed, with the path, `--set` and host from the command line."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from plan_samples import plan_of
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.cli.typer_app import has_option
from orchestrator.core.command_hints import expand_commands, set_invocation
from orchestrator.core.console import note, show_error
from orchestrator.core.errors import DeployError, Problem
from orchestrator.core.paths import Home
from orchestrator.core.record_version import RECORD_VERSION
from orchestrator.hosts.report import PreflightReport, fail
from orchestrator.runs.run_dir import note_request, open_run

SOURCES = Path(__file__).parents[3] / "orchestrator"


def commands(group: TyperGroup, *parents: str) -> Iterator[tuple[str, TyperCommand]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, *parents, name)
        elif isinstance(command, TyperCommand):
            yield " ".join((*parents, name)), command


@pytest.fixture(scope="module")
def all_commands() -> dict[str, TyperCommand]:
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    return dict(commands(root))


def test_host_is_added_only_to_supporting_commands() -> None:
    root = get_command(app)
    set_invocation(None, [], "ssh://node", partial(has_option, root))
    for words in ("logs owl", "prune", "kernels coverage mine", "patches check"):
        assert expand_commands(f"`deploy {words}`") == f"`deploy {words} --host ssh://node`"
    for words in ("render mine", "kernels check", "show", "nothing", "kernels nothing", "kernels"):
        assert expand_commands(f"`deploy {words}`") == f"`deploy {words}`"


def test_hints_are_expanded_with_profile_settings_and_host() -> None:
    set_invocation("./my own.yaml", ["layout.tp=2"], "ssh://me@node", lambda verb, _: verb in {"stage", "logs owl"})
    profile_args = "'./my own.yaml' --set layout.tp=2"
    assert (
        expand_commands("`deploy stage PROFILE`, or not")
        == f"`deploy stage {profile_args} --host ssh://me@node`, or not"
    )
    assert expand_commands("`deploy show PROFILE --explain`") == f"`deploy show {profile_args} --explain`"
    assert expand_commands("`deploy logs owl`") == "`deploy logs owl --host ssh://me@node`"
    assert expand_commands("`deploy stage PROFILE --host ssh://b`") == f"`deploy stage {profile_args} --host ssh://b`"
    assert expand_commands("`deploy kernels tune PROFILE`; PROFILE") == f"`deploy kernels tune {profile_args}`; PROFILE"


def test_hint_without_context_is_unchanged() -> None:
    set_invocation(None, [], None)
    assert expand_commands("`deploy up PROFILE` starts one") == "`deploy up PROFILE` starts one"


def test_every_message_field_is_expanded(capsys: pytest.CaptureFixture[str]) -> None:
    set_invocation("owl", [], None)
    note("`deploy show PROFILE`")
    problem = Problem("`deploy stage PROFILE`", hint="`deploy up PROFILE`")
    show_error(DeployError("x", hint="`deploy render PROFILE`", problems=[problem], details="`deploy build PROFILE`"))
    assert re.findall(r"`(.*?)`", capsys.readouterr().err) == [
        f"deploy {verb} owl" for verb in ("show", "stage", "up", "build", "render")
    ]


def test_hint_uses_request_recorded_for_the_server(tmp_path: Path) -> None:
    set_invocation(None, [], None)
    run = open_run(Home(tmp_path), "owl", plan_of("cpu-tiny"))
    run.save(
        "request.json", {"version": RECORD_VERSION, "request": {"profile": "/p/own.yaml", "overrides": ["layout.tp=2"]}}
    )
    note_request(run)
    assert expand_commands("`deploy stage PROFILE`") == "`deploy stage /p/own.yaml --set layout.tp=2`"


def test_command_line_is_recorded_for_hints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path))
    CliRunner().invoke(
        app, ["stage", "-p", "mi355x-tp8", "--set", "layout.tp=9", "--revision", "abc", "--host", "ssh://x"]
    )
    profile_args = "mi355x-tp8 --set layout.tp=9 --set model.checkpoint.revision=abc --host ssh://x"
    assert expand_commands("`deploy stage PROFILE`") == f"`deploy stage {profile_args}`"


def test_commands_in_messages_exist(all_commands: dict[str, TyperCommand]) -> None:
    """A hint may use `PROFILE`, which is filled in, and `NAME`, `DIR` or `FILE`, which only the user knows."""
    for path in SOURCES.rglob("*.py"):
        text = re.sub(r'"\n\s+f?"', "", path.read_text())  # strings of several parts
        messages = re.sub(r'"""(?:.|\n)*?"""|#.*', "", text)
        for words in re.findall(r"`deploy ([a-z][^`]*)`", messages):
            verbs = {" ".join(words.split()[:count]) for count in (1, 2)}
            assert verbs & {*all_commands, "kernels", "patches"}, (path, words)
            assert not re.search(r"…|--profile|\b(URL|BASE)\b", words), (path, words)
            # These write into files, which must not depend on the user's `--set`.
            if path.parent.name not in {"kubernetes", "render"} and path.parts[-2:] != ("slurm", "script.py"):
                assert not re.search(r"\{plan\.profile\}", words), (path, "lacks the `--set` of the user", words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("reproduce wafer-glm52 --dry-run --set model=glm-5.2-mxfp4-routed", "kernels tune mi355x-tp4dp2 --set model="),
        ("kernels coverage --set model=glm-5.2-mxfp4-routed", "kernels tune mi355x-tp4dp2-july --set model="),
        ("render mi355x-tp4dp2 --set model=glm-5.2-mxfp4-routed", "kernels build mi355x-tp4dp2 --set model="),
        (
            "kernels coverage mi355x-tp4dp2 --set engine.aiter_commit=null",
            "kernels coverage mi355x-tp4dp2 --set engine.",
        ),
    ],
)
def test_hint_uses_resolved_profile_without_explicit_one(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path))
    result = CliRunner().invoke(app, words.split())
    if isinstance(result.exception, DeployError):
        show_error(result.exception)
    output = " ".join((result.output + capsys.readouterr().err).split())
    assert message in output
    assert not re.search(r"`deploy [^`]*\bPROFILE\b", output)


def test_preflight_json_hints_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed_preflight(*_: object, **__: object) -> PreflightReport:
        return PreflightReport(profile="own", findings=(fail("x", "missing", "complete", "`deploy stage PROFILE`"),))

    monkeypatch.setattr("orchestrator.servers.start.host.preflight", failed_preflight)
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path))
    (tmp_path / "own.yaml").write_text("extends: cpu-tiny\n")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["preflight", "./own.yaml", "--json"])
    assert json.loads(result.stdout)["findings"][0]["hint"] == "`deploy stage ./own.yaml`"


def test_url_without_scheme_gets_a_hint() -> None:
    result = CliRunner().invoke(app, ["status", "127.0.0.1:30000"])
    assert "`http://127.0.0.1:30000`" in str(getattr(result.exception, "hint", "")) + result.output
