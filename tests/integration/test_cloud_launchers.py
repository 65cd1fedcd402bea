"""The validators of SkyPilot and dstack accept the rendered files."""

import subprocess
from pathlib import Path

import pytest
import uv
from typer.testing import CliRunner
from waits import TIMEOUT

from orchestrator.cli.main import app
from orchestrator.planner.planning import load, profile_names

pytestmark = pytest.mark.slow

CACHE = Path.home() / ".cache/deploy-tests/brokers"
SKYPILOT = """
import sys, sky
for path in sys.argv[1:]:
    task = sky.Task.from_yaml(path)
    print(task.name, *task.resources, task.service is not None)
"""
DSTACK = """
import sys, yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
for path in sys.argv[1:]:
    run = parse_apply_configuration(yaml.safe_load(open(path)))
    print(run.name, run.type, run.resources.gpu.name, run.resources.gpu.count.max)
"""
LAUNCHERS = {"skypilot": ("skypilot==0.14.1", SKYPILOT), "dstack": ("dstack==0.22.5", DSTACK)}


def interpreter(package: str) -> Path:
    """Return the Python of an environment with this package, built once; skip the test without a package index."""
    python = CACHE / package / "bin/python"
    if not (done := CACHE / package / "done").exists():
        for command in (
            ["venv", "--quiet", "--clear", "--python", "3.11", CACHE / package],
            ["pip", "install", "--quiet", "--python", python, package],
        ):
            installed = subprocess.run(
                [uv.find_uv_bin(), *map(str, command)], capture_output=True, text=True, check=False
            )
            if installed.returncode:
                pytest.skip(f"no {package}: {installed.stderr.strip()[-200:]}")
        done.touch()
    return python


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launcher_accepts_rendered_files_of_every_profile(launcher: str, tmp_path: Path) -> None:
    package, script = LAUNCHERS[launcher]
    python = interpreter(package)
    plans = {profile: load(profile).plan for profile in profile_names()}
    rented = [name for name, plan in plans.items() if plan.gateway is None and plan.model.checkpoint.source != "local"]
    wheel = tmp_path / "deploy_sglang-9-py3-none-any.whl"
    wheel.touch()
    for profile in rented:
        words = ["render", profile, "--runtime", launcher, "--package", str(wheel), "--output", str(tmp_path / profile)]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    files = sorted(map(str, tmp_path.rglob("*.y*ml")))
    result = subprocess.run(
        [python, "-c", script, *files], capture_output=True, text=True, check=False, timeout=TIMEOUT
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert len(result.stdout.splitlines()) == len(files) == {"skypilot": 2, "dstack": 3}[launcher] * len(rented)
    assert "MI355X" in result.stdout

    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(Path(files[0]).read_text().replace("name:", "nome:", 1))
    rejected = subprocess.run([python, "-c", script, str(wrong)], capture_output=True, text=True, check=False)
    assert rejected.returncode != 0  # the script really validates
