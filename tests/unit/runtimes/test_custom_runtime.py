"""Defaults of a minimal runtime; tests/integration/test_custom_runtime_up.py starts servers with one."""

import inspect
from pathlib import Path

import pytest
from example_runtime import NAME, ExampleRuntime, register

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
    with pytest.raises(UsageError, match="the example runtime starts servers only on this host, not on `ssh://n0`"):
        resolve_host_ref(plan.runtime, Home(tmp_path), "ssh://n0")
    runtime = runtime_class(NAME)
    assert (
        runtime.external_image(plan),
        runtime.monitoring_targets(plan, "owl"),
        runtime.restart_owner(plan),
        runtime.saved_state(tmp_path),
    ) == (None,) * 4


def test_runtime_missing_a_method_cannot_be_created(tmp_path: Path) -> None:
    class Incomplete(ExampleRuntime):
        start = Runtime.start  # type: ignore[assignment]

    with pytest.raises(TypeError, match=r"abstract methods? .*start"):
        Incomplete(Home(tmp_path))  # type: ignore[abstract]


def test_runtime_missing_a_class_method_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match="Incomplete does not define render and prepare"):
        type("Incomplete", (Runtime,), {})


@pytest.mark.parametrize("name", REGISTRY)
def test_imported_runtime_methods_match_base_signatures(name: str) -> None:
    runtime = runtime_class(name)
    imported = [item for item, value in vars(runtime).items() if isinstance(value, Imported)]
    assert {"render", "prepare"} <= {*imported}
    assert not Runtime.__abstractmethods__ & {*imported}  # abstract methods would be imported with the class
    for item in imported:
        method, base = getattr(runtime, item), getattr(Runtime, item)
        if callable(base):
            base_parameters = [parameter.lstrip("_") for parameter in inspect.signature(base).parameters]
            parameters = inspect.signature(method).parameters.values()
            assert [parameter.name.lstrip("_") for parameter in parameters][
                : len(base_parameters)
            ] == base_parameters, item
            assert all(
                parameter.default is not parameter.empty for parameter in list(parameters)[len(base_parameters) :]
            ), item
        else:
            assert method, item
