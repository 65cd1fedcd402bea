"""Environments of engines: nothing is begun that the disk cannot hold."""

from pathlib import Path

import pytest

from orchestrator.core.console import Progress
from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home, data_root
from orchestrator.hosts.venvs.venv import ensure_venv


def test_an_environment_that_the_disk_cannot_hold_is_refused_before_it_is_begun(tmp_path: Path) -> None:
    requirements = tmp_path / "engine-1.txt"
    requirements.write_text("# Installed size: 900,000,000 MB (an engine of tomorrow)\npackaging==26.0\n")
    home = Home(tmp_path / "home")
    with pytest.raises(HostError, match=r"not enough disk space: 900000\.0 GB needed, [\d.]+ GB free") as refused:
        ensure_venv(requirements, home=home, progress=Progress())
    assert "DEPLOY_HOME" in refused.value.hint
    assert [path.suffix for path in home.environments.iterdir()] == [".lock"]


@pytest.mark.parametrize("engine", ["sglang-cpu-0.5.14", "sglang-cuda-0.5.16", "lm-eval-0.4.13", "smg-1.13.0"])
def test_a_shipped_requirement_file_names_its_size(engine: str) -> None:
    assert "\n# Installed size: " in (data_root() / "images" / f"{engine}.txt").read_text()
