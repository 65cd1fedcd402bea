"""What an environment is keyed by, and when it counts as built. Nothing is installed here."""

from pathlib import Path

import pytest

from orchestrator.core.console import Progress
from orchestrator.core.errors import BuildError
from orchestrator.core.paths import Home, data_root
from orchestrator.hosts.venvs.installer import hint
from orchestrator.hosts.venvs.venv import _Recipe, ensure_venv

CPU = "torch==2.13.0+cpu\nsglang==0.5.14\n"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A requirement file and a shim."""
    (tmp_path / "cpu_shim").mkdir()
    (tmp_path / "cpu_shim/shim.py").write_text("")
    (tmp_path / "engine.txt").write_text(CPU)
    return tmp_path


def test_shipped_list_pins_every_package_and_asks_for_the_cpu_build_of_torch() -> None:
    lines = (data_root() / "images/sglang-cpu-0.5.14.txt").read_text().splitlines()
    packages = [line for line in lines if line and not line.startswith("#")]

    assert "torch==2.13.0+cpu" in packages
    assert "sglang==0.5.14" in packages
    assert all(package.count("==") == 1 for package in packages)


def test_key_changes_with_the_list_and_with_the_shim(images: Path) -> None:
    first = _Recipe.read(images / "engine.txt", images / "cpu_shim").digest
    (images / "cpu_shim/shim.py").write_text("changed")
    second = _Recipe.read(images / "engine.txt", images / "cpu_shim").digest
    (images / "engine.txt").write_text(CPU + "h11==0.16.0\n")
    third = _Recipe.read(images / "engine.txt", images / "cpu_shim").digest

    assert len({first, second, third}) == 3


def test_shim_belongs_to_a_cpu_torch_only(images: Path) -> None:
    (images / "engine.txt").write_text("torch==2.13.0+cu130\n")

    assert _Recipe.read(images / "engine.txt", images / "cpu_shim").shim == ()


def test_finished_environment_is_reused(images: Path, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    folder = home.environments / _Recipe.read(images / "engine.txt", images / "cpu_shim").digest[:16]
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").write_text("")
    (folder / "environment.json").write_text("{}")

    environment = ensure_venv(images / "engine.txt", home=home, progress=Progress(), shim=images / "cpu_shim")

    assert (environment.python, environment.built) == (folder / "bin/python", False)


def test_list_that_is_not_there_is_named(images: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"no requirement file `other\.txt`"):
        ensure_venv(images / "other.txt", home=Home(tmp_path), progress=Progress())


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Because there is no version of torch==2.13.0+cpu and you require torch==2.13.0+cpu", "PIP_FIND_LINKS"),
        ("Caused by: No space left on device (os error 28)", "DEPLOY_HOME"),
        ("Because there is no version of orjson==3 and you require orjson==3", "PIP_INDEX_URL"),
    ],
)
def test_hint_follows_from_what_uv_said(said: str, advice: str) -> None:
    assert advice in hint(said)
