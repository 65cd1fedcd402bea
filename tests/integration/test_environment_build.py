"""Environments, built with the real installer from a list of one small package."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from orchestrator.core.console import Progress
from orchestrator.core.errors import BuildError
from orchestrator.core.paths import Home
from orchestrator.runtimes.process.environment import Environment, ensure, generate_model

BUILD = """
import sys
from pathlib import Path
from orchestrator.core.console import Progress
from orchestrator.runtimes.process.environment import ensure
from orchestrator.core.paths import Home
ensure("small.txt", images_root=Path(sys.argv[1]), home=Home(Path(sys.argv[2])), progress=Progress())
"""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with one requirement file."""
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "small.txt").write_text("h11==0.16.0\n")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def build(images: Path, home: Home) -> Environment:
    return ensure("small.txt", images_root=images, home=home, progress=Progress())


def folders(home: Home) -> list[Path]:
    return [path for path in home.environments.iterdir() if path.is_dir()]


def test_environment_is_built_once_and_holds_what_is_listed(images: Path, home: Home) -> None:
    first, second = build(images, home), build(images, home)

    assert (first.built, second.built) == (True, False)
    assert first.python == second.python == home.environments / first.digest[:16] / "bin/python"
    version = [str(first.python), "-c", "import h11; print(h11.__version__)"]
    assert subprocess.run(version, capture_output=True, text=True, check=True).stdout == "0.16.0\n"


def test_what_a_killed_build_left_is_built_anew(images: Path, home: Home) -> None:
    builder = subprocess.Popen([sys.executable, "-c", BUILD, str(images), str(home.root)], stderr=subprocess.DEVNULL)
    while not home.environments.is_dir() or not folders(home):
        time.sleep(0.02)
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    (left,) = folders(home)
    (left / "half-written").write_text("")

    made = build(images, home)

    assert made.built
    assert made.python.parent.parent == left
    assert not (left / "half-written").exists()


def test_of_two_builders_one_builds_and_the_other_waits(images: Path, home: Home) -> None:
    made: list[Environment] = []
    threads = [threading.Thread(target=lambda: made.append(build(images, home))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(environment.built for environment in made) == [False, True]


def test_build_that_fails_shows_what_pip_said_and_leaves_nothing(images: Path, home: Home) -> None:
    (images / "small.txt").write_text("h11==999\n")

    with pytest.raises(BuildError) as raised:
        build(images, home)

    assert "No matching distribution found for h11==999" in raised.value.details
    assert raised.value.where == str(images / "small.txt")
    assert folders(home) == []


@pytest.mark.engine
def test_model_is_made_again_only_when_its_generator_changed(
    cpu_environment: Environment, tmp_path: Path, home: Home
) -> None:
    from orchestrator.commands.planning import load
    from orchestrator.core.paths import data_root

    model = load("cpu-tiny").plan.model
    generator = tmp_path / model.source.location
    generator.write_bytes((data_root() / "images" / model.source.location).read_bytes())

    def made() -> dict[str, bytes]:
        folder = generate_model(
            model, python=cpu_environment.python, images_root=tmp_path, home=home, progress=Progress()
        )
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    first = made()
    (home.models / "tiny" / "config.json").write_text("{}")
    kept = made()
    generator.write_text(generator.read_text() + "\n")
    again = made()

    assert kept["config.json"] == b"{}"
    assert json.loads(first["config.json"])["hidden_size"] == 128
    assert {**again, ".generator": b""} == {**first, ".generator": b""}  # the same seed, the same bytes
