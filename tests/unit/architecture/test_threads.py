"""Test that a process that defers signals (`core/signals.py`) starts no thread that could receive them."""

import ast
from functools import cache
from pathlib import Path

import pytest
from sources import nodes_of

from orchestrator.core.paths import data_root

PACKAGE = data_root() / "orchestrator"
THREAD_MODULES = {"threading", "concurrent", "multiprocessing", "_thread"}
# None of them runs in a process that defers signals: `status` does not, the others are separate programs.
WITH_THREADS = {
    "servers/status.py",
    "runtimes/supervisor/main.py",
    "checkpoints/remote_fetch.py",
}
WITH_BLOCKING_THREADS = {
    "bench/in_thread.py",
    "cli/exit_codes.py",
    "cli/fanout.py",
    "servers/drain.py",
    "servers/watch/watch.py",
    "core/http.py",
    "core/signals.py",
    "core/streams.py",
    "verify/smoke.py",
    "verify/soak.py",
}
DEFERRING = {
    "bench/benchmark.py",
    "experiments/sweep/trial.py",
    "servers/start/launch.py",
    "runtimes/process/runtime.py",
}
DEFERRING |= {"core/polling.py"}  # imports tenacity only when needed
DEFERRING |= {"cli/fanout.py", "servers/rollout/update.py", "runtimes/kubernetes/runtime.py"}
DEFERRING |= {
    "checkpoints/quantize/assemble.py",
    "runtimes/slurm/runtime.py",
    "experiments/sweep/search.py",
}


@cache
def imported(file: Path) -> set[str]:
    """Return the names that a file imports, such as `concurrent` or `defer_signals`."""
    names = set()
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {(node.module or "").partition(".")[0], *(alias.name for alias in node.names)}
    return names


def modules(names: set[str]) -> set[str]:
    return {str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py") if imported(file) & names}


def test_threads_block_signals_where_signals_are_deferred() -> None:
    assert modules(THREAD_MODULES) == WITH_THREADS | WITH_BLOCKING_THREADS
    assert modules({"start_thread_without_signals"}) | {"core/signals.py"} == WITH_BLOCKING_THREADS
    assert modules({"defer_signals"}) == DEFERRING
    for module in WITH_BLOCKING_THREADS - {"core/signals.py"}:
        assert ".start()" not in (PACKAGE / module).read_text(), module


@pytest.mark.parametrize("call", ["to_thread", "run_in_executor"])
def test_no_thread_starts_through_asyncio_executors(call: str) -> None:
    assert not [file.name for file in PACKAGE.rglob("*.py") if f"{call}(" in file.read_text()]
