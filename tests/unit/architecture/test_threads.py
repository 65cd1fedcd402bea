"""Signals are held for one thread (`core/signals.py`): whoever may hold them has no other that would hear them."""

import ast
from functools import cache
from pathlib import Path

import pytest
from sources import nodes_of

from orchestrator.core.paths import data_root

PACKAGE = data_root() / "orchestrator"
STARTING = {"threading", "concurrent", "multiprocessing", "_thread"}
# None of them runs in a process that holds signals: `status` holds none, the others are programs of their own.
WITH_THREADS = {
    "servers/status.py",
    "runtimes/supervisor/main.py",
    "checkpoints/remote_fetch.py",
}
WITH_DEAF_THREADS = {
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
HOLDING = {"bench/benchmark.py", "experiments/sweep/trial.py", "servers/start/launch.py", "runtimes/process/runtime.py"}
HOLDING |= {"core/polling.py"}  # it imports tenacity when it needs it
HOLDING |= {"cli/fanout.py", "servers/rollout/update.py", "runtimes/kubernetes/runtime.py"}
HOLDING |= {
    "checkpoints/quantize/assemble.py",
    "runtimes/slurm/runtime.py",
    "experiments/sweep/search.py",
}


@cache
def imported(file: Path) -> set[str]:
    """What it imports: `concurrent`, `held`."""
    names = set()
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {(node.module or "").partition(".")[0], *(alias.name for alias in node.names)}
    return names


def modules(wanted: set[str]) -> set[str]:
    """Those that import one of these."""
    return {str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py") if imported(file) & wanted}


def test_threads_block_signals_where_signals_are_deferred() -> None:
    assert modules(STARTING) == WITH_THREADS | WITH_DEAF_THREADS
    assert modules({"start_thread_without_signals"}) | {"core/signals.py"} == WITH_DEAF_THREADS
    assert modules({"defer_signals"}) == HOLDING
    for module in WITH_DEAF_THREADS - {"core/signals.py"}:
        assert ".start()" not in (PACKAGE / module).read_text(), module


@pytest.mark.parametrize("call", ["to_thread", "run_in_executor"])
def test_no_thread_starts_through_asyncio_executors(call: str) -> None:
    assert not [file.name for file in PACKAGE.rglob("*.py") if f"{call}(" in file.read_text()]
