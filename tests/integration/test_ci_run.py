"""`.ci/run` repeats failed tests alone; any other failure ends the run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.core.paths import data_root

TESTS = data_root() / "tests"
FAILING = """
def test_fails():
    assert False

def test_passes():
    pass
"""


def ci_run(tmp_path: Path, *, full: str, rerun: str = "exit 9") -> subprocess.CompletedProcess[str]:
    """Run a copy of the script with a `make` whose targets are these shell lines."""
    (tmp_path / ".ci").mkdir()
    shutil.copy2(data_root() / ".ci" / "run", tmp_path / ".ci" / "run")
    programs = {
        tmp_path / ".ci" / "packages": "exit 0",
        tmp_path / "bin" / "make": f"case $1 in test-all) {full};; test-failed) {rerun};; *) exit 8;; esac",
    }
    for path, line in programs.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run([tmp_path / ".ci" / "run"], capture_output=True, text=True, env=environ, check=False)


FAILED = """mkdir -p .pytest_cache/v/tests; echo '["one::test"]' >.pytest_cache/v/tests/failed; exit 2"""


@pytest.mark.parametrize(
    ("full", "rerun", "code", "last"),
    [
        ("exit 0", "exit 9", 0, ""),
        ("exit 2", "exit 0", 2, ""),
        (FAILED, "exit 0", 0, 'FLAKY, failed in the whole run and passed alone: ["one::test"]'),
        (FAILED, "exit 2", 1, 'FAILED twice, in the whole run and alone; the whole run: ["one::test"]'),
    ],
    ids=["passed", "no test failed", "flaky", "failed twice"],
)
def test_only_failed_tests_are_rerun(tmp_path: Path, full: str, rerun: str, code: int, last: str) -> None:
    result = ci_run(tmp_path, full=full, rerun=rerun)
    assert (result.returncode, result.stdout.strip()) == (code, last)


def test_failed_list_of_earlier_run_is_ignored(tmp_path: Path) -> None:
    failed = tmp_path / ".pytest_cache" / "v" / "tests" / "failed"
    failed.parent.mkdir(parents=True)
    failed.write_text("[]")
    assert ci_run(tmp_path, full="exit 2", rerun="exit 0").returncode == 2


def test_run_records_failed_tests(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(FAILING)
    argv = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", os.devnull, "--rootdir", str(tmp_path)]
    argv += ["-o", f"cache_dir={tmp_path / 'cache'}", "--numprocesses", "2", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS / 'support'}"}
    result = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stdout + result.stderr
    assert json.loads((tmp_path / "cache" / "v" / "tests" / "failed").read_text()) == ["test_one.py::test_fails"]
