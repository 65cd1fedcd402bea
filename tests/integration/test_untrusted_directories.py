"""Tests that commands trust neither the current directory nor their home, which may contain an attacker's modules."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_server import CpuEngine
from waits import TIMEOUT

from orchestrator.core.console import Progress
from orchestrator.core.errors import BuildError
from orchestrator.core.paths import Home
from orchestrator.hosts.venvs.venv import ensure_venv
from orchestrator.runtimes.base import Status
from orchestrator.runtimes.process.runtime import ProcessRuntime
from orchestrator.runtimes.supervisor.record import read_record

SHADOWED = (
    "pip",
    "venv",
    "uv",
    "json",
    "typing",
    "sglang",
    "orchestrator",
    "pydantic",
    "ensurepip",
    "runpy",
    "warnings",
)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder whose modules write a file when they are imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in SHADOWED:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'a').write({name!r} + ' ')\n")
    monkeypatch.chdir(folder)
    return folder


def test_no_module_is_imported_from_current_directory(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The modules are in the current directory of a failing build with uv, and in the home of a server."""
    for name in ("PIP_NO_INDEX", "UV_OFFLINE", "UV_NO_INDEX"):
        monkeypatch.setenv(name, "1")
    pinned, home = tmp_path / "pinned.txt", Home(tmp_path / "home")
    pinned.write_text("no-such-package-of-anyone==1.0\n")
    with pytest.raises(BuildError, match="installing the pinned packages failed"):
        ensure_venv(pinned, home=home, progress=Progress())
    shutil.copytree(hostile, home.root, dirs_exist_ok=True)
    engine = CpuEngine(home=home, python=Path(sys.executable))
    server = engine.start("a", artifacts=engine.artifacts(argv=(sys.executable, "-c", "import json; print('clean')")))
    assert list(server.runtime.logs(server.handle, follow=True)) == ["clean"]
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("name", ["a b", "a\nb", "é, \"x\" 'y' $(z)", "-rf", "a\\nb"])
def test_server_starts_in_home_with_unusual_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    engine = CpuEngine(home=Home(tmp_path / name), python=Path(sys.executable))
    server = engine.start("a", artifacts=engine.artifacts(argv=("sh", "-c", "pwd; sleep 600")))
    runtime = ProcessRuntime(engine.home)
    assert runtime.find("a") == (server.handle,)
    assert runtime.state(server.handle).status is Status.RUNNING
    runtime.stop(server.handle, grace=0)
    assert "".join(f"{line}\n" for line in runtime.logs(server.handle, follow=False)) == f"{tmp_path / name}\n"
    record = read_record(Path(server.handle.run_dir))
    assert record is not None
    assert record.stopped


def test_created_files_are_not_writable_by_others(tmp_path: Path) -> None:
    """With a umask of 0, the folders of models and environments used to be writable by everyone."""
    home, out, python = tmp_path / "deeper/home", tmp_path / "out", tmp_path / "python"
    versions = {"torch": "2.9.1", "cuda": None, "hip": None, "sglang": "0.5.14"}
    python.write_text(f"#!/bin/sh\n[ \"$1\" = -c ] && echo '{json.dumps(versions)}'\n")  # generates no model
    python.chmod(0o755)
    for words in (
        ["up", "--profile", "cpu-tiny", "--set", f"engine.python={python}"],
        ["render", "--profile", "cpu-tiny", "--output", str(out)],
    ):
        argv = [sys.executable, "-P", "-m", "orchestrator", *words]
        environ = {**os.environ, "DEPLOY_HOME": str(home)}
        subprocess.run(argv, env=environ, umask=0, capture_output=True, timeout=TIMEOUT, check=False)
    paths = [path for folder in (tmp_path / "deeper", out) for path in (folder, *folder.rglob("*"))]
    assert {home / "models", home / "runs", out} <= set(paths)
    assert [str(path) for path in paths if path.lstat().st_mode & 0o022] == []
