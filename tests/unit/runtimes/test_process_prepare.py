"""What a process is started with, and what it goes without."""

from pathlib import Path

import pytest
from plan_samples import plan_of

from orchestrator.core.paths import Home
from orchestrator.runtimes import Place
from orchestrator.runtimes.process.prepare import prepare, rendered


def test_patches_that_only_an_image_carries_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A process has the sources of its interpreter: a server without its fixes used to start in silence."""
    plan = plan_of("mi355x-tp4dp2-july", "runtime=process", "engine.python=python3")
    prepare(rendered(plan, {}), Place(home=Home(tmp_path)))
    said = capsys.readouterr().err
    assert "patch `rocm-cuda-runtime-guard` is not applied" in said
    assert "patch `aiter-fp4-moe-table` is not applied" in said
    assert "mtp-shared-expert-exclude" not in said  # an overlay of the checkpoint: it acts in a process, too
