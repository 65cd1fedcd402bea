"""The argument check of the engine: errors, caching, and skipped checks; its output is that of sglang 0.5.14."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.core.errors import HostError, ProfileError
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.planner.planning import load, read_profile, render_artifacts
from orchestrator.runtimes.base import EnginePython, HostRef
from orchestrator.servers.start.argument_check import engine_files, require_accepted

ACCEPTED = {"accepted": "validated"}
NO_EPLB = {
    "rejected": {
        "kind": "AssertionError",
        "message": "AssertionError",
        "location": "server_args.py:5383",
        "line": "assert self.ep_size > 1",
        "options": ["enable-eplb"],
    }
}
SETTINGS = ("flags.enable-eplb=true",)


class FakePython:
    """The Python of an engine, which prints the given verdicts and records its questions."""

    def __init__(self, *verdicts: Mapping[str, object], code: int = 0, stderr: str = "") -> None:
        self.questions: list[dict[str, object]] = []
        self.printed = json.dumps({"sglang": "0.5.14", "verdicts": verdicts}) if code == 0 else ""
        self.code, self.stderr = code, stderr

    def engine(self, identity: str | None = "an engine") -> EnginePython:
        return EnginePython(identity=identity, run=self._run)

    def _run(self, _program: str, question: str) -> CompletedProgram:
        self.questions.append(json.loads(question))
        return CompletedProgram(argv=(), code=self.code, stdout=self.printed, stderr=self.stderr)


def check(
    python: FakePython, home: Path, *, identity: str | None = "an engine", settings: tuple[str, ...] = SETTINGS
) -> None:
    locate = read_profile("cpu-tiny", overrides=settings).composed.location
    artifacts = render_artifacts(load("cpu-tiny", overrides=settings).plan)
    require_accepted(artifacts, python.engine(identity), Home(home), {"config.json": "{}"}, locate)


def test_rejected_arguments_are_a_located_profile_error(tmp_path: Path) -> None:
    with pytest.raises(ProfileError) as caught:
        check(FakePython(NO_EPLB), tmp_path)
    assert caught.value.exit_code == 3
    assert caught.value.message == "sglang 0.5.14 rejects arguments of `cpu-tiny`"
    [problem] = caught.value.problems_or_self()
    assert (problem.message, problem.location) == (
        "`assert self.ep_size > 1` (server_args.py:5383)",
        "--set flags.enable-eplb",
    )


@pytest.mark.parametrize(
    ("message", "location"),
    [
        ("argument --tp-size/--tensor-parallel-size: invalid int value: 'x'", "layout.tp"),
        ("argument --attention-backend: invalid choice: 'y'", "profiles/hardware/cpu.yaml:"),
    ],
)
def test_rejection_is_located_where_setting_was_written(tmp_path: Path, message: str, location: str) -> None:
    rejection = {"kind": "argparse", "message": message, "location": "", "line": "", "options": []}
    with pytest.raises(ProfileError) as caught:
        check(FakePython({"rejected": rejection}), tmp_path, settings=("layout.tp=1",))
    [problem] = caught.value.problems_or_self()
    assert problem.message == message
    assert location in problem.location


def test_rejection_without_option_has_a_hint(tmp_path: Path) -> None:
    rejection = {
        "kind": "ValueError",
        "message": "ValueError: no",
        "location": "a.py:1",
        "line": "raise",
        "options": [],
    }
    with pytest.raises(ProfileError) as caught:
        check(FakePython({"rejected": rejection}), tmp_path)
    [problem] = caught.value.problems_or_self()
    assert (problem.message, problem.location) == ("ValueError: no (a.py:1)", "")
    assert "`deploy show cpu-tiny`" in problem.hint


@pytest.mark.parametrize("verdict", [ACCEPTED, NO_EPLB])
def test_verdict_is_cached_per_engine(tmp_path: Path, verdict: Mapping[str, object]) -> None:
    python = FakePython(verdict)
    messages = []
    for _ in range(2):
        try:
            check(python, tmp_path)
            messages.append("")
        except ProfileError as error:
            messages.append(error.problems_or_self()[0].message)
    assert messages[0] == messages[1]
    assert len(python.questions) == 1
    check(FakePython(ACCEPTED), tmp_path, identity="another engine")
    assert len(list((tmp_path / "argument-checks").iterdir())) == 2


@pytest.mark.parametrize(
    ("python", "message"),
    [
        (
            FakePython({"unchecked": "OSError: no draft model"}),
            "arguments not checked by sglang: OSError: no draft model",
        ),
        (
            FakePython(code=1, stderr="Traceback\nImportError: no name"),
            "arguments not checked by sglang: ImportError: no name",
        ),
    ],
)
def test_failed_argument_check_is_reported_and_not_cached(
    tmp_path: Path, python: FakePython, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(python, tmp_path)
    check(python, tmp_path)
    assert capsys.readouterr().err.count(message) == 2
    assert len(python.questions) == 2
    assert not (tmp_path / "argument-checks").exists()


def test_missing_interpreter_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(_program: str, _question: str) -> CompletedProgram:
        raise HostError("no program `/shared/python` found on this host")

    artifacts = render_artifacts(load("cpu-tiny").plan)
    require_accepted(artifacts, EnginePython(identity=None, run=missing), Home(tmp_path), None, lambda _: "")
    assert "arguments not checked by sglang: no program" in capsys.readouterr().err


def test_mutable_engine_is_checked_each_time(tmp_path: Path) -> None:
    python = FakePython(ACCEPTED)
    check(python, tmp_path, identity=None)
    check(python, tmp_path, identity=None)
    assert len(python.questions) == 2


def test_rejection_shared_by_replicas_is_reported_once(tmp_path: Path) -> None:
    python = FakePython(NO_EPLB, NO_EPLB)
    with pytest.raises(ProfileError) as caught:
        check(python, tmp_path, settings=(*SETTINGS, "replicas=2"))
    assert len(python.questions[0]["argv"]) == 2  # type: ignore[arg-type]
    assert len(caught.value.problems_or_self()) == 1


def test_missing_validation_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(FakePython({"accepted": "parsed"}), tmp_path)
    assert "did not validate them: no config.json of `tiny`" in capsys.readouterr().err


def test_argument_check_uses_config_and_code_files(tmp_path: Path) -> None:
    host_ref, plan = HostRef(home=Home(tmp_path)), load("cpu-tiny").plan
    assert engine_files(plan, host_ref, fetch=True) is None  # the model is generated: no hub has it
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    for name in ("config.json", "modeling_own.py", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    assert engine_files(plan, host_ref, fetch=True) == {"config.json": "{}", "modeling_own.py": "{}"}
