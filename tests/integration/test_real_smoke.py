"""Tests of readiness, smoke test, diagnosis, logprobs and monitoring with real sglang on a CPU."""

import dataclasses
import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from cpu_server import CpuEngine, CpuServer, processes_of, wait_by_its_log
from ports import free_port
from prometheus import every_second, missing, monitoring_request, scraping
from real_servers import real_servers
from torch_forks import Program, run_forked
from waits import TIMEOUT, wait_for

from orchestrator.core.errors import NotReadyError
from orchestrator.core.paths import Home
from orchestrator.core.procfs import read_cmdline
from orchestrator.core.secrets import Secret
from orchestrator.diagnose.match import diagnose
from orchestrator.engine.client import EngineClient
from orchestrator.evals.logprobs.run import LogprobOptions, LogprobSide, run_logprobs
from orchestrator.monitoring.files import monitoring_files
from orchestrator.monitoring.request import monitored
from orchestrator.planner.planning import load
from orchestrator.servers.start.verify import smoke_url
from orchestrator.verify import smoke, soak
from orchestrator.verify.checks import correct_answers
from orchestrator.verify.client import SmokeClient
from orchestrator.verify.report import SmokeReport, Verdict
from orchestrator.verify.target import target_of

pytestmark = pytest.mark.engine
ENGINE = Path(__file__).parents[1] / "support" / "scripted_engine.py"
OPTIONS = LogprobOptions(tolerance=None, max_length=2048, allow_other_checkpoint=False)
SCALE = """
import sys
from safetensors.torch import load_file, save_file
file, factor = sys.argv[1], float(sys.argv[2])
tensors = load_file(file)
tensors["model.layers.1.self_attn.o_proj.weight"] *= factor
save_file(tensors, file, metadata={"format": "pt"})
"""


@contextmanager
def started(engine: CpuEngine, name: str, *overrides: str) -> Iterator[CpuServer]:
    server = engine.start(name, *overrides)
    try:
        yield server
    finally:
        server.runtime.stop(server.handle, grace=0)


def logprob_side(server: CpuServer) -> LogprobSide:
    target = target_of(server.plan, url=server.url, api_key=None)
    return LogprobSide(name="tiny", engines=(("", target),), source=None, run=None)


def scaled_model(engine: CpuEngine, target: Path, *, factor: float) -> Path:
    """Copy the tiny model and scale one matrix of its last layer."""
    shutil.copytree(engine.home.models / "tiny", target)
    program = Program(program=SCALE, argv=(str(target / "model.safetensors"), str(factor)))
    done = run_forked(engine.python, {"": program})[""]
    assert done.returncode == 0, done.stderr
    return target


def reload_weights(server: CpuServer, model: Path) -> None:
    body = {"model_path": str(model), "flush_cache": True}
    response = httpx.post(f"{server.url}/update_weights_from_disk", json=body, timeout=TIMEOUT, trust_env=False)
    assert response.json()["success"]


def failures(report: SmokeReport) -> dict[str, str]:
    return {check.name: check.evidence for check in report.failures}


def test_real_server_passes_smoke_test(server: CpuServer) -> None:
    target = target_of(server.plan, url=server.url, api_key=None)
    report = smoke.smoke_test(target, faults=lambda: diagnose(server.log.read_text().splitlines()).degraded)
    print(report.to_table())
    verdicts = {check.name: check.verdict for check in report.checks}
    skipped = {name for name, verdict in verdicts.items() if verdict is Verdict.SKIPPED}
    assert skipped == {
        "API key required",
        "cache tiers",
        "DP ranks",
        "speculative decoding",
        "tool call parsed",
        "reasoning separated",
        "fact in a long text found",
        "long prefill",
        "soak",
    }
    assert set(verdicts.values()) == {Verdict.PASSED, Verdict.SKIPPED}


@pytest.mark.slow
def test_soak_detects_hung_scheduler(server: CpuServer, monkeypatch: pytest.MonkeyPatch) -> None:
    target = dataclasses.replace(target_of(server.plan, url=server.url, api_key=None), soak_seconds=600)
    monkeypatch.setattr(soak, "_STALL_SECONDS", 5.0)
    scheduler = next(process for process in processes_of(server.handle) if "scheduler" in read_cmdline(process.pid))
    timer = threading.Timer(3, os.kill, (scheduler.pid, signal.SIGSTOP))
    timer.start()
    try:
        with EngineClient(server.url, key=None) as client:
            outcome = soak.soak(SmokeClient(target, client, seed=2, faults=None))
    finally:
        timer.join()
        os.kill(scheduler.pid, signal.SIGCONT)
        # A server flushes its cache only when no request runs: wait until the aborted requests have ended.
        wait_for(lambda: httpx.post(f"{server.url}/flush_cache", timeout=TIMEOUT, trust_env=False).is_success)
    assert outcome.verdict is Verdict.FAILED
    assert outcome.evidence.startswith("no request of rank 0 ended within 5 s; ")


def test_test_summary_counts_real_server(
    server: CpuServer, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    run = tmp_path_factory.getbasetemp()
    pids = {int(pid) for pid, _ in real_servers(run)}
    assert len(pids & {process.pid for process in processes_of(server.handle)}) == 1
    assert not real_servers(tmp_path)


def test_smoke_test_by_url_passes_on_real_server(server: CpuServer) -> None:
    report = smoke_url(server.url, plan=None, key=None)
    print(report.to_table())
    verdicts = {check.name: check.verdict for check in report.checks}
    assert Verdict.FAILED not in verdicts.values()
    assert verdicts["served model"] is verdicts["prefix cache"] is verdicts["metrics"] is Verdict.PASSED


def test_smoke_test_fails_on_missing_profile_features(server: CpuServer) -> None:
    target = target_of(server.plan, url=server.url, api_key=Secret("sk-0123456789"))
    claims = dataclasses.replace(target, served_name="glm-5.2", dp=2, speculative=True, context_length=40_000)
    failed = failures(smoke.smoke_test(claims, faults=None))
    assert failed["served model"] == f"serves `{target.served_name}`, not `glm-5.2`"
    assert failed["API key required"] == "a request without the key returns status 200"
    assert "out of range" in failed["DP ranks"]
    assert "speculation is off" in failed["speculative decoding"] or "out of range" in failed["speculative decoding"]


def test_random_weights_fail_correct_answers_check(server: CpuServer) -> None:
    trained = load("mi355x-tp4dp2", overrides=["flags.chunked-prefill-size=1024"]).plan
    own = target_of(server.plan, url=server.url, api_key=None)
    claims = dataclasses.replace(own, questions=trained.model.questions, wrong_answers=trained.wrong_answers)
    with EngineClient(server.url, key=None) as client:
        outcome = correct_answers(SmokeClient(claims, client, seed=1, faults=None))
    assert outcome.verdict is Verdict.FAILED
    assert outcome.evidence.startswith("3 of 3 answers wrong; rank 0: after ")
    assert any("#40084" in cause for cause in outcome.causes)


@pytest.mark.slow
def test_logprobs_detect_perturbed_models_only(server: CpuServer, cpu_engine: CpuEngine, tmp_path: Path) -> None:
    """A `rope_theta` 1 % too high causes errors that grow with the position; a scaled matrix causes them everywhere."""
    report, reference = run_logprobs(logprob_side(server), None, OPTIONS, reference_name=None)
    assert report.ok
    again, _ = run_logprobs(logprob_side(server), reference, OPTIONS, reference_name="itself")
    assert again.ok, again.to_table()
    rope = json.dumps({"rope_theta": 10100.0, "rope_parameters": {"rope_theta": 10100.0, "rope_type": "default"}})
    with started(cpu_engine, "rope", f"flags.json-model-override-args={rope}") as other:
        other.wait_until_ready()
        other_rope, other_reference = run_logprobs(logprob_side(other), reference, OPTIONS, reference_name="other rope")
        print(other_rope.to_table())
        longest = next(row for row in other_rope.rows if (row.compared_with, row.length) == ("the reference", 2048))
        assert [band.mean for band in longest.bands] == sorted(band.mean for band in longest.bands)
        assert {row.compared_with for row in other_rope.rows if row.above_limit} == {"the reference"}
        assert [band.first for band in longest.above_limit] == [64, 512]

        reload_weights(other, scaled_model(cpu_engine, tmp_path / "tiny", factor=1.3))
        scaled, _ = run_logprobs(logprob_side(other), other_reference, OPTIONS, reference_name="its own weights")
        assert all(row.above_limit for row in scaled.rows if row.compared_with == "the reference"), scaled.to_table()


@missing
def test_every_dashboard_panel_has_data_from_real_server(server: CpuServer, tmp_path: Path) -> None:
    request = monitoring_request(profile="cpu-tiny", workload="smoke-tiny", target=server.url.removeprefix("http://"))
    for file in monitoring_files(monitored(request, Home(tmp_path))):
        (tmp_path / file.path).write_bytes(file.content)
    every_second(tmp_path)
    panels = json.loads((tmp_path / "cpu-tiny.dashboard.json").read_text())["panels"]
    queries = {target["expr"] for panel in panels for target in panel["targets"]}
    assert len(queries) == 13

    def without_data() -> set[str]:
        assert server.complete(stream=True).status_code == 200  # the time between tokens is measured only in streams
        return {query for query in queries if not prometheus.ask(query)}

    with scraping(tmp_path) as prometheus:
        wait_for(lambda: not without_data())
        assert prometheus.ask('ALERTS{alertstate="firing"}') == []


def test_port_used_by_other_process_is_diagnosed(cpu_engine: CpuEngine) -> None:
    """The scripted engine exits with sglang's own message."""
    port, scripted = free_port(), dataclasses.replace(cpu_engine, python=ENGINE)
    with socket.create_server(("127.0.0.1", port)), started(scripted, "unlucky", f"server.port={port}") as server:
        with pytest.raises(NotReadyError, match="is in use by another process") as caught:
            wait_by_its_log(server)
        assert "address already in use" in caught.value.details
        cause = diagnose(server.log.read_text().splitlines()).cause
        assert cause is not None
        assert cause.id == "port-taken"
