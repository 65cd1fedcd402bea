"""Tests that frequent commands import no slow package that they do not need."""

import subprocess
import sys

import pytest

LISTING = "import orchestrator.cli.status, orchestrator.runtimes as r; [*map(r.runtime_class, r.REGISTRY)]"


@pytest.mark.parametrize(
    ("imports", "slow"),
    [
        ("import orchestrator.cli.main", {"orchestrator.plan.plan", "pydantic.main", "yaml"}),
        (LISTING, {"docker", "requests", "httpx", "jinja2", "orchestrator.profiles.schema", "orchestrator.plan.rules"}),
        (
            "import orchestrator.cli.render, orchestrator.runtimes.docker.spec",
            {"docker", "requests", "jinja2", "orchestrator.servers.start.up"},
        ),
    ],
)
def test_slow_packages_are_imported_lazily(imports: str, slow: set[str]) -> None:
    argv = [sys.executable, "-c", f"{imports}; import sys; print(*sys.modules)"]
    loaded = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()
    assert slow.isdisjoint(loaded), slow.intersection(loaded)
