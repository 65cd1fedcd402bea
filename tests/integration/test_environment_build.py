"""Build environments with the real installer from a list of one small package."""

import json
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from orchestrator.checkpoints.generate import generate_model
from orchestrator.core.console import Progress
from orchestrator.core.errors import BuildError
from orchestrator.core.paths import Home
from orchestrator.hosts.venvs.installer import install
from orchestrator.hosts.venvs.venv import Venv, ensure_venv

BUILD = """
import sys
from pathlib import Path
from orchestrator.core.console import Progress
from orchestrator.hosts.venvs.venv import ensure_venv
from orchestrator.core.paths import Home
ensure_venv(Path(sys.argv[1], "small.txt"), home=Home(Path(sys.argv[2])), progress=Progress())
"""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Create a folder with one requirements file."""
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "small.txt").write_text("h11==0.16.0\n")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def build(images: Path, home: Home) -> Venv:
    return ensure_venv(images / "small.txt", home=home, progress=Progress())


def folders(home: Home) -> list[Path]:
    return [path for path in home.environments.iterdir() if path.is_dir()]


def test_environment_is_built_once_with_listed_packages(images: Path, home: Home) -> None:
    first, second = build(images, home), build(images, home)

    assert (first.built, second.built) == (True, False)
    assert first.python == second.python == home.environments / first.digest[:16] / "bin/python"
    version = [str(first.python), "-c", "import h11; print(h11.__version__)"]
    assert subprocess.run(version, capture_output=True, text=True, check=True).stdout == "0.16.0\n"


def test_environment_of_killed_build_is_rebuilt(images: Path, home: Home) -> None:
    argv = [sys.executable, "-c", BUILD, str(images), str(home.root)]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as builder:
        while not home.environments.is_dir() or not folders(home):
            assert builder.poll() is None
            time.sleep(0.02)
        builder.kill()
    (environment,) = folders(home)
    (environment / "half-written").write_text("")

    made = build(images, home)

    assert made.built
    assert made.python.parent.parent == environment
    assert not (environment / "half-written").exists()


def test_concurrent_builds_create_environment_once(images: Path, home: Home) -> None:
    made: list[Venv] = []
    threads = [threading.Thread(target=lambda: made.append(build(images, home))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(environment.built for environment in made) == [False, True]


def test_package_installation_is_announced(images: Path, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    build(images, home)

    assert "environment `small`: installing the pinned packages" in capsys.readouterr().err


def test_uv_failure_is_shown_and_cleaned_up(
    images: Path, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uv.toml").write_text("no TOML")
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "uv.toml"))

    with pytest.raises(BuildError, match="cannot build environment `small`: creating failed") as raised:
        build(images, home)

    assert "uv.toml" in raised.value.details
    assert folders(home) == []


def test_missing_uv_hints_at_install_command(images: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise FileNotFoundError

    monkeypatch.setattr("orchestrator.hosts.venvs.installer.find_uv_bin", missing)

    with pytest.raises(BuildError, match="no `uv` found") as raised:
        build(images, home)

    assert "pip install" in raised.value.hint


def test_ctrl_c_during_build_leaves_nothing(images: Path, home: Home) -> None:
    class Interrupting(Progress):
        def update(self, text: str, *, stage: str | None = None, transient: str = "") -> None:  # noqa: ARG002 - as in the class above
            if "installing" in text:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_venv(images / "small.txt", home=home, progress=Interrupting())
    assert folders(home) == []


def test_torch_is_installed_from_its_platform_index(tmp_path: Path) -> None:
    """uv installs only torch from this index, and does not query it for a wheel that it has cached."""
    index = tmp_path / "index"
    (index / "torch").mkdir(parents=True)
    wheel = index / "torch" / "torch-9.9+cpu-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch.py", "__version__ = '9.9+cpu'")
        archive.writestr("torch-9.9+cpu.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 9.9+cpu\n")
        archive.writestr(
            "torch-9.9+cpu.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("torch-9.9+cpu.dist-info/RECORD", "")
    (index / "torch" / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    requirements = tmp_path / "engine.txt"
    requirements.write_text("torch==9.9+cpu\nh11==0.16.0\n")

    install(tmp_path / "made", requirements, Progress(), torch="torch==9.9+cpu", torch_index=index.as_uri())

    argv = [str(tmp_path / "made/bin/python"), "-c", "import h11, torch; print(h11.__version__, torch.__version__)"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "0.16.0 9.9+cpu\n"


def test_failed_build_shows_uv_output_and_leaves_nothing(images: Path, home: Home) -> None:
    (images / "small.txt").write_text("h11==999\n")

    with pytest.raises(BuildError) as raised:
        build(images, home)

    assert "there is no version of h11==999" in raised.value.details
    assert raised.value.location == str(images / "small.txt")
    assert folders(home) == []


@pytest.mark.slow
@pytest.mark.engine
def test_model_is_regenerated_only_when_generator_changes(
    cpu_environment: Venv, tiny_model: Path, tmp_path: Path, home: Home
) -> None:
    from orchestrator.core.paths import data_root
    from orchestrator.planner.planning import load

    model = load("cpu-tiny").plan.model
    generator = tmp_path / model.checkpoint.path
    generator.write_bytes((data_root() / "images" / model.checkpoint.path).read_bytes())
    shutil.copytree(tiny_model, home.models / model.name)

    def made() -> dict[str, bytes]:
        folder = generate_model(model, generator, python=cpu_environment.python, home=home, progress=Progress())
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    first = {path.name: path.read_bytes() for path in tiny_model.iterdir()}
    (home.models / model.name / "config.json").write_text("{}")
    built = made()
    generator.write_text(generator.read_text() + "\n")
    again = made()

    assert built["config.json"] == b"{}"
    assert json.loads(first["config.json"])["hidden_size"] == 128
    assert {**again, ".generator": b""} == {**first, ".generator": b""}  # the same seed, the same bytes
