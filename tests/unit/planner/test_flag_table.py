"""`deploy add engine --flags-only`: a table is written completely or not at all."""

import errno
import os
import zipfile
from pathlib import Path

import pytest

from orchestrator.core.errors import BuildError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.planner import flag_tables

GOOD = '{"sglang": "0.5.17", "flags": {"port": {"takes_value": true}}}\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    wheel = tmp_path / "sglang-0.5.17-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sglang/__init__.py", "")
    monkeypatch.setattr(flag_tables, "fetch_wheel", lambda *_: wheel)
    return Home(tmp_path / "home")


def fake_generator(monkeypatch: pytest.MonkeyPatch, stdout: str, code: int = 0) -> None:
    result = CompletedProgram(argv=(), code=code, stdout=stdout, stderr="ImportError: no torch")
    monkeypatch.setattr(flag_tables, "run", lambda _: result)


def tables(home: Home) -> list[str]:
    return sorted(path.name for path in home.root.rglob("*") if path.is_file())


def test_flag_table_is_written_to_home(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_generator(monkeypatch, GOOD)
    path = flag_tables.write_flag_table("0.5.17", home, python=Path("python3"))
    assert path == home.root / "profiles/engines/flags/0.5.17.json"
    assert path.read_text() == GOOD


@pytest.mark.parametrize(("stdout", "code"), [("", 1), (GOOD, 1), ("", 0), ("noise", 0), ('{"sglang": "0.5.16"}', 0)])
def test_failed_generator_leaves_no_table(home: Home, monkeypatch: pytest.MonkeyPatch, stdout: str, code: int) -> None:
    fake_generator(monkeypatch, stdout, code)
    with pytest.raises(BuildError) as caught:
        flag_tables.write_flag_table("0.5.17", home, python=Path("python3"))
    assert "ImportError" in caught.value.details
    assert tables(home) == []


def test_failed_write_keeps_old_table(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(path: Path, _target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    fake_generator(monkeypatch, GOOD)
    path = flag_tables.write_flag_table("0.5.17", home, python=Path("python3"))
    fake_generator(monkeypatch, GOOD.replace("port", "host"))
    monkeypatch.setattr(Path, "replace", disk_full)
    with pytest.raises(OSError, match="No space left"):
        flag_tables.write_flag_table("0.5.17", home, python=Path("python3"))
    assert path.read_text() == GOOD
    assert tables(home) == ["0.5.17.json"]


def test_invalid_wheel_is_rejected(home: Home, tmp_path: Path) -> None:
    (tmp_path / "some.whl").write_text("no zip")
    for name in ("some.whl", "none.whl"):
        with pytest.raises(UsageError, match=r"is not a wheel|cannot read"):
            flag_tables.write_flag_table("0.5.17", home, wheel=tmp_path / name, python=Path("python3"))
    assert tables(home) == []


@pytest.mark.parametrize("version", ["*", "../x", "main", "0.5"])
def test_invalid_version_is_rejected(home: Home, version: str) -> None:
    with pytest.raises(UsageError, match="is not a version"):
        flag_tables.write_flag_table(version, home, python=Path("python3"))


def test_generator_script_is_packaged() -> None:
    assert flag_tables.GENERATOR.is_file()
