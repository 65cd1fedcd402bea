"""Benchmarks of a scripted server."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scripted_server import Answer, Script, ScriptedServer, scripted

from orchestrator.bench.benchmark import BenchRequest, BenchTarget, measure
from orchestrator.bench.result import BenchResult, IssueKind, Point, ServerProvenance
from orchestrator.bench.workload import Workload, load_workload

TOKENS = 6
WORKLOAD = load_workload("smoke-tiny").model_copy(
    update={"output_tokens": TOKENS, "requests": 30, "request_rates": (10.0,), "num_prefixes": 2, "timeout_s": 5.0}
)
QUICK = WORKLOAD.model_copy(update={"request_rates": (60.0,)})  # for tests that check no times


def bench(script: Script, directory: Path, *, workload: Workload = QUICK, **changes: object) -> BenchResult:
    """Measure a scripted server. Use `after_warm_up` to count its responses from 0 after the warm-up."""
    script.forget()
    with scripted(script) as server:
        return measure(order(server, directory, workload=workload, **changes), lambda _text, _transient: None)


def order(server: ScriptedServer, directory: Path, *, workload: Workload = QUICK, **changes: object) -> BenchRequest:
    url = str(changes.pop("url", server.url))
    return order_of(url, directory, workload=workload, **changes)


def order_of(url: str, directory: Path, *, workload: Workload, **changes: object) -> BenchRequest:
    of_target = {name: changes.pop(name) for name in ("key", "kernel_gate", "engine", "provenance") if name in changes}
    target = BenchTarget(url=url, key=None, provenance=ServerProvenance(gpus=8), warnings=(), kernel_gate=lambda: None)
    plain = BenchRequest(
        target=replace(target, **of_target),  # type: ignore[arg-type]
        api="completions",
        workload_name="scripted",
        workload=workload,
        overridden=(),
        command="deploy bench",
        price=None,
        read_energy=None,
        directory=directory,
        text="",
        previous=None,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def after_warm_up(answer: Callable[[int], Answer], workload: Workload = WORKLOAD) -> Callable[[int], Answer]:
    """Respond at once during the warm-up, and then with `answer(0)`, `answer(1)`, …"""
    return lambda index: answer(index - workload.num_prefixes) if index >= workload.num_prefixes else Answer()


def only(result: BenchResult) -> Point:
    (point,) = result.points
    return point


def kinds(result: BenchResult) -> set[IssueKind]:
    """Return the comparability issues, except the one that depends on this machine."""
    return {mark.kind for mark in result.comparability_issues} - {IssueKind.CLIENT_LAGGED}
