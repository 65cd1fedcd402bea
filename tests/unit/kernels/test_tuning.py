"""Test the container name of a tuning."""

from pathlib import Path

from plan_samples import plan_of

from orchestrator.core.paths import Home
from orchestrator.kernels.plan_coverage import RowSources
from orchestrator.kernels.tuning import prepare_tuning


def test_tuning_container_names_are_unique_despite_equal_pids(tmp_path: Path) -> None:
    """Two users in separate PID namespaces, on one Docker daemon, once ended each other's containers."""
    plan, sources = plan_of("mi355x-tp8"), RowSources()
    names = {
        prepare_tuning(plan, sources, Home(tmp_path), hours=1, retune_derived=False, tokens=(8,)).container
        for _ in range(2)
    }
    assert len(names) == 2
