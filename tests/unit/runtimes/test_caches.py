"""`deploy prune --caches`: which caches are removed, and the report of each."""

import json
from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.runtimes import caches
from orchestrator.runtimes.base import Cache

KERNELS = {"image": "deploy/x:1", "gfx": "gfx950"}


def cache(location: str, *, used_by: Sequence[str] = (), removable: bool = True) -> Cache:
    def remove() -> bool:
        removed.append(location)
        return removable

    return Cache(
        kind="compiled kernels",
        location=location,
        requirements=KERNELS,
        size=1000,
        used_by=tuple(used_by),
        remove=remove,
    )


removed: list[str] = []


@pytest.fixture(autouse=True)
def three_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide three caches: an unused one, one of a server, and one that a container has just started to use."""
    removed.clear()
    existing = (cache("idle"), cache("busy", used_by=["owl"], removable=False), cache("taken", removable=False))

    def fake_caches(_home: Home, host: str | None) -> tuple[Cache, ...]:
        assert host == "ssh://node"
        return existing

    monkeypatch.setattr(caches, "caches", fake_caches)


def prune(*words: str) -> str:
    result = CliRunner().invoke(app, ["prune", "--caches", "--host", "ssh://node", *words])
    assert result.exit_code == 0, result.exception
    return result.stdout or result.stderr


def test_caches_in_use_are_kept_and_reported() -> None:
    assert prune().splitlines() == [
        "`busy` is kept: used by `owl`; compiled kernels for deploy/x:1 gfx950, 1,000 bytes",
        "`taken` is kept: in use; compiled kernels for deploy/x:1 gfx950, 1,000 bytes",
        "removed `idle`: compiled kernels for deploy/x:1 gfx950, 1,000 bytes",
        "1 cache, 1,000 bytes",
    ]
    assert removed == ["idle", "busy", "taken"]


def test_dry_run_removes_no_caches() -> None:
    assert prune("--dry-run").splitlines()[1:] == [
        "would remove `idle`: compiled kernels for deploy/x:1 gfx950, 1,000 bytes",
        "would remove `taken`: compiled kernels for deploy/x:1 gfx950, 1,000 bytes",
        "2 caches, 2,000 bytes",
    ]
    assert removed == []


def test_json_output_contains_reason_for_kept_cache() -> None:
    report = json.loads(prune("--json"))
    assert report["dry_run"] is False
    assert {cache_["location"]: cache_["keep_reason"] for cache_ in report["caches"]} == {
        "idle": "",
        "busy": "used by `owl`",
        "taken": "in use",
    }


@pytest.mark.parametrize("words", ["owl", "--keep 1", "--older-than 1d"])
def test_run_directory_options_are_rejected_with_caches(words: str) -> None:
    error = CliRunner().invoke(app, ["prune", "--caches", *words.split()]).exception
    assert isinstance(error, UsageError)
    assert removed == []
