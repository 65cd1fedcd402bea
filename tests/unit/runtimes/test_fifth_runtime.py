"""What a runtime need not say; tests/integration/test_fifth_runtime_up.py starts servers with a fifth one."""

import inspect
from pathlib import Path

import pytest
from on_paper import NAME, register

from orchestrator.core.errors import UsageError
from orchestrator.core.imported import Imported
from orchestrator.core.paths import Home
from orchestrator.planner.planning import load
from orchestrator.runtimes import REGISTRY, runtime_class
from orchestrator.runtimes.base import Runtime
from orchestrator.servers.start.host import resolve_host_ref


def test_minimal_runtime_gets_default_behavior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
    plan = load("cpu-tiny", overrides=[f"runtime={NAME}"]).plan
    with pytest.raises(UsageError, match="the on-paper runtime starts servers only on this host, not on `ssh://n0`"):
        resolve_host_ref(plan.runtime, Home(tmp_path), "ssh://n0")
    kind = runtime_class(NAME)
    assert (
        kind.external_image(plan),
        kind.monitoring_targets(plan, "owl"),
        kind.restart_owner(plan),
        kind.saved_state(tmp_path),
    ) == (None,) * 4


def test_runtime_missing_a_method_cannot_be_created(tmp_path: Path) -> None:
    class Silent(Runtime):
        name = "silent"

    with pytest.raises(TypeError, match=r"abstract methods? .*start"):
        Silent(Home(tmp_path))  # type: ignore[abstract]


@pytest.mark.parametrize("name", REGISTRY)
def test_imported_runtime_methods_match_base_signatures(name: str) -> None:
    kind = runtime_class(name)
    named = [item for item, value in vars(kind).items() if isinstance(value, Imported)]
    assert {"render", "prepare"} <= {*named}
    assert not Runtime.__abstractmethods__ & {*named}  # which would be imported with the class
    for item in named:
        found, base = getattr(kind, item), getattr(Runtime, item)
        if callable(base):
            given = [parameter.lstrip("_") for parameter in inspect.signature(base).parameters]
            taken = inspect.signature(found).parameters.values()
            assert [parameter.name.lstrip("_") for parameter in taken][: len(given)] == given, item
            assert all(parameter.default is not parameter.empty for parameter in list(taken)[len(given) :]), item
        else:
            assert found, item
