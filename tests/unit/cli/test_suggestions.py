"""Test the suggestions for wrong options and values."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.core.command_hints import expand_commands
from orchestrator.core.errors import DeployError, ProfileError


def error_of(*argv: str) -> DeployError:
    with pytest.raises(DeployError) as caught:
        CliRunner().invoke(app, [*argv], catch_exceptions=False)
    return caught.value


@pytest.mark.parametrize(
    ("option", "key"), [("--port", "server.port"), ("--tp", "layout.tp"), ("--workload", "workload")]
)
def test_option_matching_profile_key_suggests_set(option: str, key: str) -> None:
    assert error_of("up", "cpu-tiny", option, "1").hint == f"`--set {key}=VALUE`"


def test_command_without_set_option_names_profile_key() -> None:
    """The suggestion for `bench --port` was once `--host`."""
    hint = "`--set server.port=VALUE`, for commands with `--set`"
    assert error_of("bench", "cpu-tiny", "--port", "1").hint == hint
    assert error_of("stage", "cpu-tiny", "--prallel", "1").hint == "did you mean `--parallel`?"
    assert "--set" not in error_of("show", "cpu-tiny", "--revision", "1").hint  # resembles `--replicas`


def test_short_option_is_not_taken_for_a_misspelling() -> None:
    assert error_of("watch", "a", "--on", "docker").hint == "`deploy watch -h` shows arguments and options"


def test_fraction_and_tab_are_explained(tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    (problem,) = error_of("show", "cpu-tiny", "--set", "layout.tp=1.5").problems_or_self()
    assert (problem.message, problem.hint) == ("`layout.tp` must be a whole number, found 1.5", "")
    profile.write_text("extends: cpu-tiny\nlayout:\n\ttp: 1\n")
    error = error_of("show", str(profile))
    assert (error.message.partition(":")[0], error.location) == ("invalid YAML", f"{profile}:3")


@pytest.mark.parametrize("option", [("--runtime", "dockr"), ("--set", "runtime=dockr")])
def test_error_location_is_the_typed_option(option: tuple[str, str]) -> None:
    error = error_of("show", "cpu-tiny", *option)
    assert [problem.location for problem in error.problems_or_self()] == [
        "--runtime" if option[0] == "--runtime" else "--set runtime"
    ]


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--prot", "`--set server.port=VALUE`"),
        ("--replicas", "`--set replicas=VALUE`"),  # once the suggestion was `--max-replicas`
        ("--repicas", "`--set replicas=VALUE`"),
        ("--max-replica", "did you mean `--max-replicas`?"),
        ("--hots", "did you mean `--host`?"),
        ("--zz", "`deploy up -h` shows"),
    ],
)
def test_nearest_option_or_profile_key_is_suggested(option: str, hint: str) -> None:
    assert (error_of("up", "cpu-tiny", option, "3").hint or "").startswith(hint)


def test_name_without_similar_match_hints_at_list() -> None:
    """The hint once listed 38 names."""
    assert error_of("show", "zzz").hint == "`deploy profiles` lists them"
    assert (error_of("show", "cpu-tinny").hint or "").startswith("did you mean `cpu-tiny`")


def test_empty_model_argument_is_rejected() -> None:
    """`--model "$MODEL"` with an empty variable once used the working directory."""
    assert error_of("add", "model", "").message == "`` is neither a directory nor the name of a repository"


def test_coverage_without_applicable_kernels_exits_zero() -> None:
    result = CliRunner().invoke(app, ["kernels", "coverage", "cpu-tiny"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "not applicable" in result.stderr


@pytest.mark.parametrize("more", [["cpu-tiny"], ["--locked"], ["--from", "cpu-tiny/1"]])
def test_model_option_excludes_profile_run_and_lockfile(more: list[str]) -> None:
    assert error_of("up", "--model", "OWNER/NAME", *more).message == "`--model` takes no profile, run or lockfile"
    assert error_of("up", "cpu-tiny", "--gpus", "2").message == "`--gpus` needs `--model`"


def test_hint_after_model_option_names_resolved_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile has another name than the checkpoint; the hint once said `deploy lock PROFILE`."""

    def fail(*_: object, **__: object) -> None:
        raise ProfileError("stop here")

    monkeypatch.setattr("orchestrator.cli.up.profile_of_model", lambda *_, **__: "mi355x-own")
    monkeypatch.setattr("orchestrator.cli.up.preview", fail)
    assert error_of("up", "--model", "OWNER/NAME", "--set", "layout.ep=1", "--dry-run").message == "stop here"
    assert expand_commands("`deploy lock PROFILE`") == "`deploy lock mi355x-own --set layout.ep=1`"
