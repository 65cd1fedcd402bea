"""The wheel contains all data: installed outside the repository, `deploy` renders the same artifacts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from config_samples import write_public

from orchestrator.core.paths import data_root
from orchestrator.planner.planning import load, render_artifacts, rendered_files


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and unpack it into an empty folder."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=data_root(), check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    site = folder / "site"
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(site)], check=True, capture_output=True)
    return site


def deploy(site: Path, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
    program = f"import sys; sys.path.insert(0, {str(site)!r}); from orchestrator.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=site.parent,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        check=False,
    )


def test_wheel_renders_same_artifacts_as_repository(installed: Path, tmp_path: Path) -> None:
    done = deploy(installed, "render", "--profile", "mi355x-tp4dp2", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == {
        file.path: file.content for file in rendered_files(render_artifacts(load("mi355x-tp4dp2").plan))
    }


def test_installed_wheel_contains_only_package_data(installed: Path) -> None:
    profiles = installed / "orchestrator" / "_data" / "profiles"
    for name in ("cpu-tiny.yaml", "engines/flags/generate.py"):
        assert (profiles / name).is_file()
    assert not (installed / "tests").exists()
    done = deploy(installed, "show", "no-such-profile")
    assert (done.returncode, "no profile `no-such-profile` found" in done.stderr) == (3, True)


def test_wheel_contains_every_referenced_schema(installed: Path) -> None:
    profiles = installed / "orchestrator" / "_data" / "profiles"
    named = [path for path in profiles.rglob("*.yaml") if "$schema=" in path.read_text().partition("\n")[0]]
    assert len(named) > 40
    for path in named:
        schema = (path.parent / path.read_text().partition("\n")[0].partition("$schema=")[2]).resolve()
        kind = schema.name.removesuffix(".schema.json")
        assert json.loads(schema.read_text())["title"] == f"deploy: {kind}"


def test_installed_wheel_adds_a_model(installed: Path, tmp_path: Path) -> None:
    checkpoint, home = write_public(tmp_path / "gpt-oss-120b", "gpt-oss-120b"), str(tmp_path / "home")
    done = deploy(installed, "add", "model", str(checkpoint), DEPLOY_HOME=home)
    assert done.stderr.splitlines()[-1] == "next: `deploy add profile --model gpt-oss-120b --hardware HARDWARE`"
    assert Path(home, "profiles/models/gpt-oss-120b.yaml").is_file()
