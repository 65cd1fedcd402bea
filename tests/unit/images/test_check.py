"""Test which sources `deploy patches check` examines, and its output and exit code."""

from pathlib import Path

import pytest

from orchestrator.cli.patches.check import command as check_patches
from orchestrator.core.errors import PatchError, UsageError
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.images.patch_check import PatchState, SourceChecker, fetch_wheel, package_in, sibling_aiter


def make(root: Path, *packages: str) -> None:
    for package in packages:
        (root / package / "srt").mkdir(parents=True)
        (root / package / "__init__.py").touch()


@pytest.mark.parametrize(
    ("sglang", "sibling", "source"),
    [
        ("site-packages/sglang", "site-packages/aiter", "site-packages"),
        ("site-packages/sglang", "site-packages/aiter", "site-packages/sglang"),
        ("sgl-workspace/sglang/python/sglang", "sgl-workspace/aiter/aiter", "sgl-workspace"),
        ("sgl-workspace/sglang/python/sglang", "sgl-workspace/aiter/aiter", "sgl-workspace/sglang"),
        ("sgl-workspace/sglang/python/sglang", "sgl-workspace/aiter/aiter", "sgl-workspace/sglang/python/sglang"),
    ],
)
def test_aiter_is_found_next_to_sglang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sglang: str, sibling: str, source: str
) -> None:
    make(tmp_path, sglang, sibling)

    assert package_in(tmp_path / source) == tmp_path / sglang
    assert sibling_aiter(tmp_path / sglang, tmp_path / source) == tmp_path / sibling
    monkeypatch.chdir(tmp_path / source)
    assert sibling_aiter(package_in(Path()), Path()) == tmp_path / sibling


def test_missing_aiter_has_no_substitute(tmp_path: Path) -> None:
    make(tmp_path, "sglang")

    assert not sibling_aiter(tmp_path / "sglang", tmp_path).exists()


@pytest.mark.parametrize("version", ["*", "0.5.*", "newest", "0.5.14 --index-url http://nowhere"])
def test_invalid_sglang_version_is_rejected(tmp_path: Path, version: str) -> None:
    (tmp_path / "sglang-0.5.14-py3-none-any.whl").touch()

    with pytest.raises(UsageError, match="is not a version of sglang"):
        fetch_wheel(version, tmp_path)
    assert fetch_wheel("v0.5.14", tmp_path).name == "sglang-0.5.14-py3-none-any.whl"


def test_failed_download_shows_output_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = "ERROR: Could not find a version that satisfies the requirement sglang==0.5.11 (from versions: 0.5.9)"
    monkeypatch.setattr(
        "orchestrator.images.patch_check.run",
        lambda _, **__: CompletedProgram(argv=(), code=1, stdout="", stderr=stderr),
    )
    with pytest.raises(UsageError, match=r"cannot download a wheel of sglang 0\.5\.11") as error:
        fetch_wheel("0.5.11", tmp_path)
    assert error.value.details == stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [("none.whl", "cannot read `none.whl`: No such file or directory"), ("a.whl", "`a.whl` is not a wheel")],
)
def test_invalid_wheel_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    """The message was once `[Errno 2] No such file or directory: 'none.whl'`."""
    monkeypatch.chdir(tmp_path)
    Path("a.whl").write_text("no archive")
    with pytest.raises(UsageError) as caught:
        SourceChecker.of_ledger().check_wheel(Path(name))
    assert caught.value.message == message
    assert "a wheel file" in caught.value.hint


@pytest.mark.parametrize("json", [False, True])
def test_conflict_is_shown_and_exits_with_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], json: bool
) -> None:
    states = tuple(
        PatchState(id=name, state=state, evidence=("a.py:1: x\n  found there:",))
        for name, state in (("one", "needed"), ("two", "conflict"))
    )
    monkeypatch.setattr(SourceChecker, "check_directory", lambda *_: states)

    with pytest.raises(PatchError, match="`two`") as caught:
        check_patches(source=Path(), json=json)
    assert caught.value.exit_code == 5
    output = capsys.readouterr().out
    assert '"state": "conflict"' in output if json else "two    conflict  a.py:1: x" in output
