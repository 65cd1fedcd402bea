"""In a directory of packages, the sources of aiter count only next to those of sglang."""

from pathlib import Path

import pytest

from orchestrator.images.patch_check import SourceChecker


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Create `site` with sglang and an aiter that reads a tuned table, and `alone` with sglang only."""
    for module in ("site/sglang/srt/__init__.py", "alone/sglang/srt/__init__.py", "site/aiter/__init__.py"):
        (tmp_path / module).parent.mkdir(parents=True)
        (tmp_path / module).touch()
    (tmp_path / "site/aiter/jit").mkdir()
    (tmp_path / "site/aiter/jit/core.py").write_text('AITER_CONFIG_FMOE = os.getenv("AITER_CONFIG_FMOE", default)\n')
    return tmp_path


@pytest.mark.parametrize(("package", "state"), [("site/sglang", "needed"), ("alone/sglang", "not applicable")])
def test_kernel_table_patch_is_needed_only_next_to_aiter(packages: Path, package: str, state: str) -> None:
    states = {patch.id: patch.state for patch in SourceChecker.of_ledger().check_directory(packages / package)}

    assert states["aiter-fp4-moe-table"] == state
