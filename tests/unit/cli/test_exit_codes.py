"""Test that each error class has its exit code in every command."""

import errno
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.exit_codes import run_and_exit
from orchestrator.cli.main import app
from orchestrator.cli.preflight import command as preflight
from orchestrator.core.errors import DeployError, HostError, UsageError
from orchestrator.hosts.report import PreflightReport, fail

USAGE, PROFILE, HOST, START, KERNELS, BENCH = 2, 3, 4, 6, 9, 10
PLANNING = ("up", "render", "show", "preflight", "stage", "build", "kernels coverage", "kernels build", "kernels tune")
WITH_SERVER = (
    *("ask {} hi", "logs {}", "smoke {}", "down {}", "status {}", "top {}", "restart {}", "rollback {}", "watch {}"),
    "bench {} -w smoke-tiny",
)

WITH_JSON = re.compile("(?!ask|logs|schema|kernels tune)")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("orchestrator.servers.servers.REGISTRY", {})  # no server runs, and Docker is not queried
    (tmp_path / "broken.yaml").write_text("a: [\n")
    (tmp_path / "damaged.json").write_text("{")
    monkeypatch.chdir(tmp_path)


def code_of(line: str) -> int:
    result = CliRunner().invoke(app, line.split())
    error = result.exception
    if isinstance(error, DeployError):
        assert error.message
        return error.exit_code
    assert error is None or isinstance(error, SystemExit), error
    return result.exit_code


CASES = {
    **{f"{command} --no-such-option": USAGE for command in (*PLANNING, "profiles", "down", "report", "patches ls")},
    **{f"{command} cpu-tiny --set nothing": USAGE for command in PLANNING},
    **{f"{command} no-such-profile": PROFILE for command in PLANNING},
    **{f"{command} broken.yaml": PROFILE for command in PLANNING},
    **{f"{command} cpu-tiny --set no.such=key": PROFILE for command in PLANNING},
    **{f"{command} cpu-tiny --set flags.no-such-flag=1": PROFILE for command in PLANNING},
    **{command.format("nobody"): START for command in WITH_SERVER},
    **{command.format("No/Name"): USAGE for command in WITH_SERVER if not command.startswith("bench")},
    "up": USAGE,
    "up cpu-tiny --name No/Name": USAGE,
    "up cpu-tiny --host nonsense": USAGE,
    "bench http://127.0.0.1:9 -w no-such-workload": USAGE,
    "bench http://127.0.0.1:9 -w broken.yaml": PROFILE,
    "bench http://127.0.0.1:9 -w smoke-tiny --request-rate fast": USAGE,
    "bench http://127.0.0.1:9 -w smoke-tiny --api telepathy": USAGE,
    "smoke http://127.0.0.1:9 --strict-kernels": USAGE,
    "smoke nobody --profile cpu-tiny": USAGE,
    "diff cpu-tiny": USAGE,
    "diff cpu-tiny nothing-of-ours": USAGE,
    "diff cpu-tiny damaged.json": BENCH,
    "diff cpu-tiny broken.yaml": PROFILE,
    "diff cpu-tiny mi355x-tp8": 0,
    "up --from nobody": USAGE,
    "up cpu-tiny --from nobody": USAGE,
    "watch": USAGE,
    "watch nobody --output unit.service": USAGE,
    "watch nobody --webhook nonsense": USAGE,
    "watch nobody --exec '": USAGE,
    "watch nobody --install": START,
    "history": 0,
    "history nobody": START,
    "history No/Name": USAGE,
    "prune": 0,
    "prune nobody": START,
    "prune No/Name": USAGE,
    "prune --older-than soon": USAGE,
    "prune --keep 0": USAGE,
    "diagnose nobody": USAGE,
    "diagnose no-such.log": USAGE,
    "diagnose /no/such.log": USAGE,
    "kernels check no-such.log": USAGE,
    "report no-such-directory": USAGE,
    "compare no-such.json": USAGE,
    "compare damaged.json": BENCH,
    "reproduce no-such-figures": USAGE,
    "add model no-such-directory": USAGE,
    "add model .": HOST,
    "add model . --name tiny": USAGE,
    "add model . --set nothing": USAGE,
    "add profile --model tiny": USAGE,
    "add profile --model tiny --hardware cpu --max-context 0": USAGE,
    "add profile --model tiny --hardware cpu": USAGE,
    "add profile --model no-such-model --hardware cpu": PROFILE,
    "add profile --model tiny --hardware cpu --name own --base broken.yaml": PROFILE,
    "add profile --model glm-5.2-fp8 --hardware h200": PROFILE,
    "add profile --model tiny --hardware cpu --name own": 0,
    "schema no-such-kind": USAGE,
    "add engine not-a-version --flags-only": USAGE,
    "patches check --wheel *": USAGE,
    "render cpu-tiny --input nothing": USAGE,
    "render cpu-tiny --output /proc/nowhere": HOST,
    "down": USAGE,
    "kernels build cpu-tiny": KERNELS,
    "profiles": 0,
    "status": 0,
    "--version": 0,
}


@pytest.mark.parametrize(("line", "code"), CASES.items(), ids=CASES)
def test_exit_code_follows_error_class(line: str, code: int) -> None:
    assert code_of(line) == code


@pytest.mark.parametrize("host", [None, "ssh://node"])
def test_preflight_error_does_not_blame_local_host(monkeypatch: pytest.MonkeyPatch, host: str | None) -> None:
    report = PreflightReport(
        profile="mi355x-tp8", findings=(fail("gpus", "none", needed="8 x gfx950", hint="look for them"),)
    )
    monkeypatch.setattr("orchestrator.cli.preflight.preflight_host", lambda *_: report)
    monkeypatch.setenv("DOCKER_HOST", "unix:///var/run/docker.sock")
    with pytest.raises(HostError, match=r"^the host is not ready for `mi355x-tp8`: 1 check failed"):
        preflight(profile="mi355x-tp8", host=host)
    with pytest.raises(HostError, match=r"^the host is not ready for `mi355x-tp8`"):
        report.require()


@pytest.mark.parametrize("line", ["kernels coverage --image", "patches check --image", "build cpu-tiny --tag"])
@pytest.mark.parametrize("image", ["UPPER/Repo:tag", "a/../b"])
def test_invalid_image_option_is_rejected_before_calling_docker(line: str, image: str) -> None:
    result = CliRunner().invoke(app, [*line.split(), image])
    assert isinstance(result.exception, UsageError)
    assert result.exception.message.startswith(f"`{image}` is not the name of an image")


def test_full_disk_error_names_file_and_variables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "file"))

    with pytest.raises(SystemExit) as exit_info:
        run_and_exit(command)
    assert exit_info.value.code == HOST
    stderr = capsys.readouterr().err
    assert "error: cannot use a file: No space left on device" in stderr
    assert str(tmp_path / "file") in stderr
    assert "DEPLOY_HOME or TMPDIR" in stderr


def raise_chained() -> None:
    raise RuntimeError("cannot import") from KeyboardInterrupt()


def raise_with_interrupt_in_text() -> None:
    """pydantic-core wraps an interrupt like this while it builds a model."""
    raise ValueError("Error building `literal` serializer:\n  KeyboardInterrupt: ")


@pytest.mark.parametrize("command", [raise_chained, raise_with_interrupt_in_text])
def test_wrapped_keyboard_interrupt_exits_with_130(command: Callable[[], None]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        run_and_exit(command)
    assert exit_info.value.code == 130


@pytest.mark.parametrize("line", [line for line in CASES if CASES[line] and WITH_JSON.match(line)])
def test_error_with_json_option_is_one_json_document(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        run_and_exit(lambda: app([*line.split(), "--json"], standalone_mode=False))
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_code"] == exit_info.value.code == CASES[line]
    assert error["message"]
