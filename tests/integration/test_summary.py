"""Tests of the summary of a test run, and of the order of the test files."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import summary
from kubernetes_runs import last_run
from schedule import GROUPS, SLOWEST_FILES, group_of
from summary import excuse_for

ROOT = Path(__file__).parents[2]
# Tests and fixtures that take `server`: the fixture of the session, unless their file defines its own.
SHARED = {
    "real server": re.compile(
        r"^(?:def test_\w+|@pytest\.fixture[^\n]*\ndef \w+)\([^)]*\bserver: CpuServer", re.MULTILINE
    ),
    "Kubernetes": re.compile(r"\b(?:cluster_engine|cluster_of_tests|cluster_without_node)\b"),
}
RUN = """
import pytest

def test_runs():
    pass

@pytest.mark.skip(reason="this machine has no NVIDIA GPU")
@pytest.mark.parametrize("number", range(3))
def test_excused(number):
    pass
"""
NEEDLESS = """
@pytest.mark.skip(reason="for no reason")
def test_skipped_without_an_excuse():
    pass
"""


def run(folder: Path, text: str, *options: str) -> tuple[int, str]:
    """Run these tests with this project's conftest; return exit code and output."""
    (folder / "test_it.py").write_text(text)
    (folder / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests/support")}
    argv = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-q", *options]
    argv += [
        f"--rootdir={folder}",
        f"--basetemp={folder / 'base'}",
        "-o",
        f"cache_dir={folder / 'cache'}",
        str(folder / "test_it.py"),
    ]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_excused_skips_are_grouped_by_reason(tmp_path: Path) -> None:
    code, output = run(tmp_path, RUN, "--numprocesses", "2", "--fail-on-needless-skips")
    assert code == 0, output
    assert "1 tests run, 0 failed, 3 skipped" in output
    assert output.count("this machine has no NVIDIA GPU") == 1
    assert "skipped 3 (no NVIDIA GPU): this machine has no NVIDIA GPU" in output
    assert "0 real servers started" in output
    assert last_run() not in output
    assert "test_it.py" in next(line for line in output.splitlines() if line.startswith("slowest"))
    assert [*json.loads((tmp_path / "cache/v/tests/seconds").read_text())] == ["test_it.py"]


def test_unexcused_skip_fails_the_run(tmp_path: Path) -> None:
    code, output = run(tmp_path, RUN + NEEDLESS, "--fail-on-needless-skips")
    assert code == 1, output
    assert "skipped 1 (COULD HAVE RUN): for no reason" in output
    assert "FAILED: skipped, but could have run on this machine: " in output
    assert run(tmp_path, RUN + NEEDLESS)[0] == 0, "the run failed without --fail-on-needless-skips"


def test_missing_package_excuses_skip_only_if_not_installable(monkeypatch: pytest.MonkeyPatch) -> None:
    for installs, excused in ((False, True), (True, False)):
        monkeypatch.setattr(summary, "_installs_packages", lambda installs=installs: installs)
        for reason in (
            "docker-registry is not installed",
            "only root can give a file away",
            "no Docker daemon answers",
            "a real Kubernetes needs etcd",
        ):
            assert (excuse_for(reason) is not None) == excused, reason
        assert excuse_for("no wheel of sglang 0.5.14: the index does not answer") is not None


ON_KUBERNETES = """
import pytest

@pytest.mark.real_kubernetes
@pytest.mark.parametrize("number", range(2))
def test_on_a_cluster(number):
    assert number < {passing}
"""


def test_kubernetes_run_is_recorded_only_if_all_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "record.json"
    monkeypatch.setenv("KUBERNETES_RUN", str(record))
    assert run(tmp_path, ON_KUBERNETES.format(passing=1))[0] == 1
    assert last_run(record) == "real Kubernetes: its tests have never run"
    assert run(tmp_path, ON_KUBERNETES.format(passing=2), "--numprocesses", "2")[0] == 0
    assert re.fullmatch(r"real Kubernetes: 2 tests last passed on 20\d\d-\d\d-\d\d, at commit \S+", last_run(record))


def test_missing_kubernetes_build_shows_last_recorded_run(tmp_path: Path) -> None:
    skipped = '@pytest.mark.skip(reason="a real Kubernetes needs etcd")\ndef test_on_a_cluster():\n    pass\n'
    assert last_run() in run(tmp_path, "import pytest\n\n" + skipped)[1]


def test_every_scheduled_file_exists() -> None:
    names = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(SLOWEST_FILES) <= names


def test_files_sharing_real_server_run_on_one_worker() -> None:
    groups = {group_of(f"tests/integration/{name}::test") for name in ("test_real_smoke.py", "test_replicas.py")}
    assert groups == {"real server"}
    assert group_of("tests/unit/test_one.py::test[a::b]") == "tests/unit/test_one.py"


@pytest.mark.parametrize("group", GROUPS)
def test_files_using_shared_fixture_are_in_its_group(group: str) -> None:
    folder = ROOT / "tests/integration"
    files = {path.name for path in folder.glob("test_*.py") if SHARED[group].search(path.read_text())}
    assert files - {Path(__file__).name} <= {*GROUPS[group]}


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("a real Kubernetes needs kubelet: `make kubernetes` builds them", "no Kubernetes built"),
        ("tp2-fp8 needs 2 NVIDIA GPUs, this machine has 0", "no NVIDIA GPU"),
        ("real Quark, 1.5 GB and some minutes: `make quark` runs this", "not asked for"),
        ("not judged: this machine kept a program from its core for 12 ms", "the machine was busy"),
        ("hadolint cannot be had from the package index", "not in the package index"),
        ("a pod of a Deployment is always started again: another test follows one", "does not apply"),
    ],
)
def test_missing_host_feature_excuses_skip(reason: str, kind: str) -> None:
    excuse = excuse_for(reason)
    assert excuse is not None
    assert excuse.kind == kind
