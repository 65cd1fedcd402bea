"""Warnings of a plan, which `up`, its dry run and `render` print alike."""

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.images.config import ImageConfig
from orchestrator.planner.plan_warnings import plan_warnings, report_warnings, warn_unpinned
from orchestrator.planner.planning import load

PUBLIC_WITHOUT_KEY = ("--set", "server.host=0.0.0.0", "--set", "server.allow_unauthenticated=true")
GREEDY_WARNING = "requests are decoded greedily during speculative decoding"
NO_KEY = "`{}` listens on 0.0.0.0 without an API key; anyone who can reach it can use it"


@pytest.fixture(autouse=True)
def no_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("plan_warnings", "estimate"):
        monkeypatch.setattr(f"orchestrator.planner.{module}.local_config", lambda _: None)


def invoke(home: Path, *words: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, list(words), env={"DEPLOY_HOME": str(home)})
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


@pytest.mark.parametrize("verb", [("render",), ("up", "--dry-run"), ("up", "--dry-run", "--name", "owl")])
def test_dry_run_and_render_print_same_warnings(tmp_path: Path, verb: tuple[str, ...]) -> None:
    _, stderr = invoke(tmp_path, *verb, "--profile", "mi355x-tp8", *PUBLIC_WITHOUT_KEY)
    assert f"warning: {NO_KEY.format('owl' if 'owl' in verb else 'mi355x-tp8')}\nhint: `--set server.api_key" in stderr
    assert stderr.count(f"warning: {GREEDY_WARNING}") == 1
    assert stderr.count("warning: not pinned") == 1


def test_image_warnings_follow_plan_warnings() -> None:
    plan = load("mi355x-tp8", overrides=["env.ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=1"]).plan
    image = ImageConfig(reference="image", digest="", env={"ROCM_QUICK_REDUCE_QUANTIZATION": "INT8"}, labels={})
    assert [warning.id for warning in plan_warnings(plan, image=image)] == [
        *(warning.id for warning in plan.warnings),
        "quick-reduce-cast",
    ]


def test_warnings_of_previous_plan_are_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    before = load("mi355x-tp8").plan
    after = load("mi355x-tp8", overrides=["flags.max-running-requests=512"]).plan
    report_warnings(after, before=before)
    stderr = capsys.readouterr().err
    assert (GREEDY_WARNING in stderr, "512 concurrent requests" in stderr) == (False, True)


@pytest.mark.parametrize(
    ("profile", "overrides", "unpinned"),
    [
        ("mi355x-tp8", (), "image `lmsysorg/sglang-rocm:v0.5.16-rocm720-mi35x-20260728`"),
        (
            "mi355x-tp8-july",
            ("model.checkpoint.revision=main",),
            "image `lmsysorg/sglang-rocm:v0.5.14-rocm720-mi35x-20260626`, checkpoint `amd/GLM-5.2-MXFP4`",
        ),
        ("b200-tp8", (), ""),
        ("mi325x-tp8", (), ""),
        ("cpu-tiny", (), ""),
        ("mi355x-tp8", ("runtime=process", "engine.python=python3"), ""),
        ("mi355x-tp8", (f"engine.image_digest=sha256:{'0' * 64}",), ""),
    ],
)
def test_unpinned_inputs_are_reported_in_one_warning(
    profile: str, overrides: tuple[str, ...], unpinned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_unpinned(load(profile, overrides=overrides).plan)
    stderr = capsys.readouterr().err
    assert stderr.count("warning:") == bool(unpinned)
    assert unpinned in stderr
    assert ("`deploy lock PROFILE` pins them from registry and hub" in stderr) == bool(unpinned)


@pytest.mark.parametrize("name", Catalog.shipped().names(EntryKind.MODEL))
def test_shipped_hub_checkpoints_are_pinned_to_a_commit(name: str) -> None:
    path = Catalog.shipped().path(EntryKind.MODEL, name)
    checkpoint = yaml.safe_load(path.read_text())["checkpoint"]
    pinned = checkpoint["source"] != "hub" or re.fullmatch("[0-9a-f]{8,40}", checkpoint.get("revision", ""))
    assert pinned or "# No run names its revision: " in path.read_text()
