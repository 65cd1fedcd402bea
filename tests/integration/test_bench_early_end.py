"""A measurement that ends early keeps its finished points and reports the reason."""

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from command_line import CommandLine
from scripted_runs import kinds, order
from scripted_server import Answer, Script, scripted
from waits import TIMEOUT, wait_for

from orchestrator.bench import benchmark
from orchestrator.bench.benchmark import measure
from orchestrator.bench.result import EndReason, IssueKind
from orchestrator.bench.result_files import load_result
from orchestrator.bench.workload import load_workload
from orchestrator.core.errors import HostError, Interrupted
from orchestrator.core.paths import Home

WORKLOAD = load_workload("smoke-tiny").model_copy(
    update={"output_tokens": 6, "requests": 4, "request_rates": (20.0, 21.0), "num_prefixes": 1, "timeout_s": 5.0}
)


def test_unreadable_log_keeps_all_measured_points(tmp_path: Path) -> None:
    """The kernel gate runs after a point is on disk; if it fails, the result is not comparable."""
    on_disk: list[int] = []

    def unreadable() -> dict[str, object]:
        on_disk.append(len(load_result(tmp_path).points))
        raise HostError("the Docker daemon does not answer")

    with scripted(Script(answer=lambda _: Answer(cached_tokens=300))) as server:
        request = order(server, tmp_path, workload=WORKLOAD, kernel_gate=unreadable, label="unreadable log")
        result = measure(request, lambda _text, _transient: None)
    assert result.run.label == "unreadable log"
    assert on_disk[:2] == [1, 2]
    assert len(result.points) == 2
    assert load_result(tmp_path) == result
    (issue,) = (issue for issue in result.comparability_issues if issue.kind is IssueKind.UNKNOWN_KERNELS)
    assert "the Docker daemon does not answer" in issue.detail


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt_during_endpoint_discovery_writes_no_result(tmp_path: Path, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        words = ("bench", url, "--workload", "smoke-tiny", "--output", str(tmp_path / "out"))
        with CommandLine(Home(tmp_path / "home")).running(*words) as bench:
            connection, _ = silent.accept()
            with connection:
                assert connection.recv(1 << 16)
                code, output = bench.end(number)
    assert code == 130
    assert "Traceback" not in output
    assert "error: interrupted before the first measurement" in output
    assert not (tmp_path / "out").exists()


def test_interrupt_before_first_response_records_no_point(tmp_path: Path) -> None:
    """Such a point once showed success 0 % and TTFT p95 inf s, as if the server had failed."""
    workload, request_received = tmp_path / "silent.yaml", threading.Event()
    workload.write_text(json.dumps({**WORKLOAD.to_dict(), "timeout_s": 600.0}))

    def answer(index: int) -> Answer:
        if index < WORKLOAD.num_prefixes:
            return Answer(cached_tokens=300)
        request_received.set()
        return Answer(silent=True)

    with scripted(Script(answer=answer)) as server:
        words = ("bench", server.url, "--workload", str(workload), "--output", str(tmp_path / "out"))
        with CommandLine(Home(tmp_path / "home")).running(*words) as bench:
            assert request_received.wait(timeout=TIMEOUT)
            code, output = bench.end(signal.SIGINT)
    assert code == 130
    assert "error: interrupted before the first request was answered" in output
    assert "--resume" in output
    assert not any(word in output for word in ("success", "inf", "knee", "wrote the result"))
    assert load_result(tmp_path / "out").points == ()


@pytest.mark.parametrize(
    ("end", "issues"), [(EndReason.INTERRUPTED, {IssueKind.INCOMPLETE}), (EndReason.COMPLETE, set())]
)
def test_stop_condition_ends_measurement_and_restores_signal_handlers(
    tmp_path: Path, end: EndReason, issues: set[IssueKind]
) -> None:
    """A SIGTERM handler that was not restored once killed a sweep and left its server running."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        handler = signal.getsignal(signal.SIGTERM)
        with scripted(Script(answer=lambda _: Answer(cached_tokens=300))) as server:
            result = measure(
                order(server, tmp_path, workload=WORKLOAD, stop_when=lambda _: end), lambda _text, _transient: None
            )
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [point.label for point in result.points] == ["20"]
    assert (result.end_reason, kinds(result) - {IssueKind.CACHE_HIT_RATE_OFF_TARGET}) == (end, issues)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_prompt_generation_immediately(tmp_path: Path, number: signal.Signals) -> None:
    """Generation takes a minute and once blocked signal handling."""
    workload = tmp_path / "large.yaml"
    large = {"input_tokens": 200, "cache_hit_rate": 0.5, "num_prefixes": 900_000, "requests": 2}
    workload.write_text(json.dumps({**load_workload("smoke-tiny").to_dict(), **large}))
    with scripted(Script()) as server:
        words = ("bench", server.url, "--workload", str(workload), "--output", str(tmp_path / "out"))
        with CommandLine(Home(tmp_path / "home")).running(*words) as bench:
            wait_for((tmp_path / "out" / "result.json").exists)
            time.sleep(1)
            start = time.monotonic()
            code, output = bench.end(number)
    assert (code, "Traceback" in output) == (130, False)
    assert time.monotonic() - start < 30


@pytest.mark.usefixtures("sigint_raises")
def test_interrupt_ends_cache_forecast_immediately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a trace of long sessions the forecast takes minutes and once blocked signal handling."""

    def forecast(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(2 * TIMEOUT)

    monkeypatch.setattr(benchmark, "forecast_load", forecast)
    start = time.monotonic()
    with scripted(Script()) as server, pytest.raises(Interrupted, match="interrupted before the first measurement"):
        measure(order(server, tmp_path / "out", workload=WORKLOAD), lambda _text, _transient: None)
    assert time.monotonic() - start < TIMEOUT
    assert not (tmp_path / "out").exists()
