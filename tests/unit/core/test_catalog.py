"""Test the catalog entries in a user's home, and how they override shipped files."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from user_profiles import OWN

from orchestrator.bench.workload import load_workload
from orchestrator.cli.main import main
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import ProfileError
from orchestrator.core.paths import Home, data_root
from orchestrator.patches.ledger import read_diffs, read_ledger
from orchestrator.planner.listing import catalog_listing
from orchestrator.planner.planning import load, profile_names

SHIPPED = data_root()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home with a user's profile, hardware, model, engine, workload and patch."""
    copies = {
        "profiles/cpu-tiny.yaml": "profiles/mine.yaml",
        "profiles/hardware/cpu.yaml": "profiles/hardware/desk.yaml",
        "profiles/models/tiny.yaml": "profiles/models/small.yaml",
        "profiles/engines/sglang-0.5.14-cpu.yaml": "profiles/engines/own.yaml",
        "profiles/workloads/smoke-tiny.yaml": "profiles/workloads/brief.yaml",
        "patches/dsa-topk-v2-off/patch.yaml": "patches/my-patch/patch.yaml",
    }
    for source, target in copies.items():
        path = tmp_path / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((SHIPPED / source).read_text())
    profile = tmp_path / "profiles/mine.yaml"
    text = profile.read_text().replace("hardware: cpu", "hardware: desk").replace("model: tiny", "model: small")
    profile.write_text(text.replace("engine: sglang-0.5.14-cpu", "engine: own"))
    patch = tmp_path / "patches/my-patch/patch.yaml"
    patch.write_text(patch.read_text().replace("id: dsa-topk-v2-off", "id: my-patch"))
    return tmp_path


def test_user_entries_are_found_with_shipped_ones(home: Path) -> None:
    catalog = Catalog.of(Home(home))
    plan = load("mine", catalog=catalog).plan
    assert (plan.hardware.name, plan.model.name, plan.engine.name) == ("desk", "small", "own")
    assert load("cpu-tiny", catalog=catalog).plan.hardware.name == "cpu"
    assert set(profile_names(catalog)) == {"mine", *profile_names(Catalog.shipped())}
    assert load_workload("brief", catalog=catalog) == load_workload("smoke-tiny", catalog=catalog)
    assert "my-patch" in {patch.id for patch in read_ledger(catalog)}


def test_home_comes_from_environment_variable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(home))
    assert load("mine").plan.profile == "mine"
    assert "my-patch" in {patch.id for patch in read_ledger()}


def test_overriding_shipped_file_prints_a_note(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user_file, shipped_file = home / "profiles/hardware/cpu.yaml", SHIPPED / "profiles/hardware/cpu.yaml"
    user_file.write_text(shipped_file.read_text().replace("compute_units: 0", "compute_units: 7"))
    catalog = Catalog.of(Home(home))
    for _ in range(2):
        assert load("cpu-tiny", catalog=catalog).plan.hardware.compute_units == 7
    assert capsys.readouterr().err.count(f"note: using `{user_file}` instead of `{shipped_file}`") == 1


def make_link(path: Path) -> None:
    path.symlink_to("/nonexistent/cpu.yaml")


def make_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 8 << 30)


MALFORMED_ENTRIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "dangling link": (make_link, "is not a file"),
    "FIFO": (os.mkfifo, "is not a file"),
    "directory": (Path.mkdir, "is not a file"),
    "socket": (lambda path: os.mknod(path, stat.S_IFSOCK), "is not a file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is not a file"),
    "sparse file of 8 GiB": (make_sparse, "has 8,589,934,592 bytes, more than 4,194,304"),
}


@pytest.mark.parametrize(("make", "message"), MALFORMED_ENTRIES.values(), ids=MALFORMED_ENTRIES)
@pytest.mark.parametrize("name", ["cpu-tiny.yaml", "hardware/cpu.yaml", "engines/flags/0.5.14.json"])
def test_invalid_user_entry_is_an_error_without_fallback(
    name: str, make: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "profiles" / name
    path.parent.mkdir(parents=True)
    make(path)
    with pytest.raises(ProfileError) as error:
        load("cpu-tiny", catalog=Catalog.of(Home(tmp_path)))
    (problem,) = error.value.problems_or_self()
    assert problem.message == f"`{path}` {message}"
    assert problem.hint == "remove it to use the built-in entry, or replace it with a file"


def test_profiles_path_must_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "profiles").symlink_to(tmp_path / "missing")
    with pytest.raises(ProfileError, match="is not a directory"):
        load("cpu-tiny", catalog=Catalog.of(Home(tmp_path)))


def test_problem_in_user_file_shows_absolute_path(home: Path) -> None:
    path = home / "profiles/hardware/desk.yaml"
    path.write_text(path.read_text() + "gpu: 1\n")
    with pytest.raises(ProfileError) as caught:
        load("mine", catalog=Catalog.of(Home(home)))
    assert caught.value.problems[0].location.startswith(f"{path}:")


def test_patch_diff_is_read_from_patch_directory(home: Path) -> None:
    ledger = read_ledger(Catalog.shipped())
    assert read_diffs(ledger, Catalog.of(Home(home))) == read_diffs(ledger, Catalog.shipped())


@pytest.mark.parametrize("name", ["../hardware/cpu", "/etc/passwd", "", ".", "a" * 300, "cpu\0", "cpu.yaml/.."])
def test_entry_name_cannot_escape_its_directory(name: str) -> None:
    assert Catalog.shipped().find(EntryKind.HARDWARE, name) is None


def test_invalid_profile_is_listed_with_its_problem(home: Path) -> None:
    (home / "profiles/broken.yaml").write_text("hardware: cpu\nmodel: tiny\n")
    (home / "profiles/hardware/broken.yaml").write_text("vendor: amd\n")
    listing = catalog_listing(Catalog.of(Home(home)))
    by_name = {entry.name: entry for entry in listing.profiles}
    assert "`engine` must name a file" in str(by_name["broken"])
    assert "runtime='process'" in str(by_name["cpu-tiny"])
    assert {"desk", "broken", "mi355x"} <= {entry.name for entry in listing.hardware}
    assert {"small", "glm-5.2-mxfp4"} <= {entry.name for entry in listing.models}
    assert {"own", "sglang-0.5.14-rocm"} <= {entry.name for entry in listing.engines}


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_invalid_profile_does_not_abort_listing(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    (home / "profiles/broken.yaml").write_text("hardware: cpu\nmodel: tiny\n")
    monkeypatch.setenv("DEPLOY_HOME", str(home))
    monkeypatch.setattr("orchestrator.cli.exit_codes.signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["deploy", "profiles", *options])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert not exit_info.value.code
    captured = capsys.readouterr().out
    if options:
        assert set(json.loads(captured)) == {"profiles", "hardware", "models", "engines"}
    else:
        assert "invalid: `engine` must name a file" in captured
        assert "mi355x-tp8" in captured


def test_listing_explains_why_no_profile_is_usable(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault in the ledger affects every profile; the profiles were once listed by name only."""
    shutil.copytree(SHIPPED / "patches/dsa-topk-v2-off", home / "patches/copied")
    monkeypatch.setenv("DEPLOY_HOME", str(home))
    monkeypatch.setattr("orchestrator.cli.exit_codes.signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["deploy", "profiles"])
    with pytest.raises(SystemExit):
        main()
    assert "invalid: patch `dsa-topk-v2-off` is in a folder" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["profiles", "--format", "github-matrix"], ["kernels", "coverage", "--json"]])
def test_commands_over_all_profiles_skip_invalid_ones(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """One invalid file in the home once ended every command over all profiles, including that of the images' CI."""
    (home / "profiles/broken.yaml").write_text("hardware: cpu\nmodel: tiny\n")
    monkeypatch.setenv("DEPLOY_HOME", str(home))
    monkeypatch.setattr("orchestrator.cli.exit_codes.signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["deploy", *command])
    with suppress(SystemExit):
        main()
    captured = capsys.readouterr()
    assert "mi355x-tp8" in captured.out
    assert "warning: skipped profile `broken`: `engine` must name a file" in captured.err


def test_missing_file_error_names_its_kind(home: Path) -> None:
    with pytest.raises(ProfileError, match=r"no image file `small_model\.py` found"):
        Catalog.of(Home(home)).path(EntryKind.IMAGE_FILE, "small_model.py")


@pytest.mark.parametrize("name", sorted(path.stem for path in OWN.glob("*.yaml")))
def test_profiles_used_by_tests_do_not_ship(name: str) -> None:
    assert load(name).plan.profile == name
    assert name not in profile_names(Catalog.shipped())
