"""A missing program is an error with a hint, or a result with exit code 127."""

import pytest

from orchestrator.core import subprocesses
from orchestrator.core.errors import HostError


def missing(*_: object, **__: object) -> None:
    raise FileNotFoundError(2, "No such file or directory")


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_missing_program_is_a_host_error(monkeypatch: pytest.MonkeyPatch, error: type[OSError]) -> None:
    def reject(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("subprocess.run", reject)
    monkeypatch.setattr("subprocess.Popen", reject)
    for run in (lambda: subprocesses.run(["amd-smi"]), lambda: subprocesses.follow(["amd-smi"], print)):
        with pytest.raises(HostError, match="no program `amd-smi` found"):
            run()


def test_run_or_127_returns_127_for_missing_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", missing)
    assert subprocesses.run_or_127(["amd-smi", "version"], timeout=1).code == 127
