"""What a user means by a wrong option or value is in the hint."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.core.command_hints import expand_commands
from orchestrator.core.errors import DeployError, ProfileError


def refused(*argv: str) -> DeployError:
    with pytest.raises(DeployError) as caught:
        CliRunner().invoke(app, [*argv], catch_exceptions=False)
    return caught.value


@pytest.mark.parametrize(
    ("option", "key"), [("--port", "server.port"), ("--tp", "layout.tp"), ("--workload", "workload")]
)
def test_an_option_that_is_a_key_of_the_profile_names_the_key(option: str, key: str) -> None:
    assert refused("up", "cpu-tiny", option, "1").hint == f"`--set {key}=VALUE`"


def test_a_command_without_set_names_the_key_and_advises_no_set() -> None:
    """The nearest option of `bench --port` was `--host`."""
    hint = "`server.port` of the profile sets it, when the server starts"
    assert refused("down", "cpu-tiny", "--port", "1").hint == hint
    assert "http://127.0.0.1:30000" in refused("bench", "cpu-tiny", "--port", "1").hint
    assert (
        refused("bench", "cpu-tiny", "--tp", "1").hint == "`layout.tp` of the profile sets it, when the server starts"
    )
    assert refused("stage", "cpu-tiny", "--prallel", "1").hint == "did you mean `--parallel`?"
    assert "--set" not in refused("show", "cpu-tiny", "--revision", "1").hint  # it was like `--replicas`


def test_a_number_in_quotes_and_a_tab_are_named(tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text('extends: cpu-tiny\nlayout:\n  tp: "1"\n')
    error = refused("show", str(profile))
    assert isinstance(error, ProfileError)
    assert [problem.hint for problem in error.problems_or_self()] == ["without quotes it is a number"]
    error = refused("show", "cpu-tiny", "--set", "layout.tp='1'")
    assert [problem.hint for problem in error.problems_or_self()] == ["without quotes it is a number"]
    (problem,) = refused("show", "cpu-tiny", "--set", "layout.tp=1.5").problems_or_self()
    assert (problem.message, problem.hint) == ("`layout.tp` must be a whole number, found 1.5", "")
    profile.write_text("extends: cpu-tiny\nlayout:\n\ttp: 1\n")
    error = refused("show", str(profile))
    assert (error.message, error.location) == ("invalid YAML: a tab where YAML needs spaces", f"{profile}:3:1")


@pytest.mark.parametrize("given", [("--runtime", "dockr"), ("--set", "runtime=dockr")])
def test_a_location_names_the_option_that_was_typed(given: tuple[str, str]) -> None:
    error = refused("show", "cpu-tiny", *given)
    assert [each.location for each in error.problems_or_self()] == [
        "--runtime" if given[0] == "--runtime" else "--set runtime"
    ]


@pytest.mark.parametrize(
    ("option", "hint"),
    [("--prot", "`--set server.port=VALUE`"), ("--hots", "did you mean `--host`?"), ("--zz", "`deploy up -h` shows")],
)
def test_the_nearest_option_or_key_of_the_profile_is_named(option: str, hint: str) -> None:
    assert (refused("up", "cpu-tiny", option, "3").hint or "").startswith(hint)


def test_the_remedy_of_a_node_with_one_gpu_is_no_larger_layout() -> None:
    for command in (("show", "mi355x-tp8", "--set", "layout.tp=1"), ("add", "profile", "--model", "glm-5.2-mxfp4")):
        of_node = ("--hardware", "mi355x", "--gpus", "1") if command[0] == "add" else ("--set", "hardware.gpus=1")
        hints = {each.message.partition(":")[0]: each.hint for each in refused(*command, *of_node).problems_or_self()}
        expected = "choose a smaller quantization, or hardware with more memory"
        assert hints["the weights leave no room for a cache"] == expected


def test_a_name_like_none_of_many_leads_to_their_list() -> None:
    """The hint listed 38 names."""
    assert refused("show", "zzz").hint == "`deploy profiles` lists them"
    assert (refused("show", "cpu-tinny").hint or "").startswith("did you mean `cpu-tiny`")


def test_a_variable_without_a_value_is_no_checkpoint() -> None:
    """`--model "$MODEL"` took the working directory."""
    assert refused("add", "model", "").message == "`` is neither a directory nor the name of a repository"


def test_coverage_of_a_model_without_such_kernels_is_no_failure() -> None:
    done = CliRunner().invoke(app, ["kernels", "coverage", "cpu-tiny"])
    assert (done.exit_code, done.stdout) == (0, "")
    assert "not applicable" in done.stderr


@pytest.mark.parametrize("more", [["cpu-tiny"], ["--locked"], ["--from", "cpu-tiny/1"]])
def test_a_model_is_the_only_source_of_its_server(more: list[str]) -> None:
    assert refused("up", "--model", "OWNER/NAME", *more).message == "`--model` takes no profile, run or lockfile"
    assert refused("up", "cpu-tiny", "--gpus", "2").message == "`--gpus` needs `--model`"


def test_a_hint_after_model_names_the_profile_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile has another name than the checkpoint; the hint said `deploy lock PROFILE`."""

    def end(*_: object, **__: object) -> None:
        raise ProfileError("ended here")

    monkeypatch.setattr("orchestrator.cli.up.profile_of_model", lambda *_, **__: "mi355x-own")
    monkeypatch.setattr("orchestrator.cli.up.preview", end)
    assert refused("up", "--model", "OWNER/NAME", "--set", "layout.ep=1", "--dry-run").message == "ended here"
    assert expand_commands("`deploy lock PROFILE`") == "`deploy lock mi355x-own --set layout.ep=1`"
