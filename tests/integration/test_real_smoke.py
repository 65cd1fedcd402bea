"""Waiting, the smoke test and the diagnosis against real sglang on CPU."""

import dataclasses
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cpu_server import CpuEngine, CpuServer, healthy, processes_of
from patience import wait_for
from ports import free_port

from orchestrator import prove as smoke
from orchestrator.commands.parts import lost_parts, note_parts
from orchestrator.commands.planning import load
from orchestrator.core.errors import NotReadyError, SmokeError
from orchestrator.core.log_lines import LogTail
from orchestrator.core.procfs import read_process
from orchestrator.core.secret import Secret
from orchestrator.diagnose import diagnose
from orchestrator.engine import StageReader
from orchestrator.prove import Verdict
from orchestrator.runtimes import Status

pytestmark = pytest.mark.engine


def wait(server: CpuServer) -> list[str]:
    """Wait until it serves; returns the stages its log showed."""
    starting = smoke.Starting(
        url=server.url,
        served_name=server.plan.model.served_name,
        api_key=None,
        log=LogTail(server.log),
        state=lambda: server.runtime.state(server.handle),
    )
    smoke.wait(starting, silence=240)
    reader = StageReader()
    for line in LogTail(server.log)():
        reader.feed(line)
    return reader.names


@contextmanager
def started(engine: CpuEngine, name: str, *overrides: str) -> Iterator[CpuServer]:
    server = engine.start(name, *overrides)
    try:
        yield server
    finally:
        server.runtime.stop(server.handle, grace=0)


def failures(report: smoke.SmokeReport) -> dict[str, str]:
    return {check.name: check.evidence for check in report.failures}


def test_a_real_server_passes(server: CpuServer) -> None:
    target = smoke.target_of(server.plan, url=server.url, api_key=None)
    report = smoke.smoke_test(target, faults=lambda: diagnose(server.log.read_text().splitlines()).degraded)
    print(report.to_table())
    verdicts = {check.name: check.verdict for check in report.checks}
    absent = {name for name, verdict in verdicts.items() if verdict is Verdict.NOT_APPLICABLE}
    assert absent == {"key required", "each rank serves", "drafts accepted"}
    assert set(verdicts.values()) == {Verdict.PASSED, Verdict.NOT_APPLICABLE}


def test_a_real_server_that_lacks_what_its_profile_says_turns_red(server: CpuServer) -> None:
    target = smoke.target_of(server.plan, url=server.url, api_key=Secret("sk-0123456789"))
    claims = dataclasses.replace(target, served_name="glm-5.2", dp=2, speculative=True, context_length=40_000)
    found = failures(smoke.smoke_test(claims, faults=None))
    assert found["right model"] == f"serves `{target.served_name}`, not `glm-5.2`"
    assert found["key required"] == "a request without the key is answered 200"
    assert "out of range" in found["each rank serves"]
    assert "speculation is off" in found["drafts accepted"] or "out of range" in found["drafts accepted"]


def test_a_model_of_random_weights_fails_what_the_trained_one_is_asked(server: CpuServer) -> None:
    trained = load("mi355x-tp4dp2", overrides=["flags.chunked-prefill-size=2048"]).plan
    own = smoke.target_of(server.plan, url=server.url, api_key=None)
    claims = dataclasses.replace(own, questions=trained.model.questions, wrong_answers=trained.wrong_answers)
    report = smoke.smoke_test(claims, faults=None)
    assert failures(report).keys() == {"answers right"}
    assert failures(report)["answers right"].startswith("3 of 3 answers wrong; rank 0: after ")
    with pytest.raises(SmokeError) as caught:
        report.require()
    assert "#40084" in caught.value.details


def test_two_replicas_and_the_death_of_one(cpu_engine: CpuEngine) -> None:
    with started(cpu_engine, "replicas", "layout.dp=2") as server:
        assert wait(server)[-2:] == ["warming up", "answering"]
        target = smoke.target_of(server.plan, url=server.url, api_key=None)
        report = smoke.smoke_test(target, faults=None)
        assert failures(report) == {}
        assert "each of 2 ranks answered for itself" in report.to_table()

        note_parts(server.runtime, server.handle)
        first, second = schedulers(server)
        os.kill(second, signal.SIGKILL)  # sglang 0.5.14 notices nothing: no line in its log, and its process lives on
        wait_for(lambda: lost_parts(server.runtime, server.handle) == "rank DP1 has ended while the server runs")
        dead = failures(smoke.smoke_test(target, faults=None, timeout=4))
        assert any("answer within 4 s" in evidence for evidence in dead.values()), dead
        assert server.runtime.state(server.handle).status is Status.RUNNING

        server.runtime.stop(server.handle, grace=2)  # without a bound it would not come back: the server hangs
        assert read_process(first) is None
        wait_for(lambda: not processes_of(server.handle))
        assert not healthy(server.url)


def test_a_port_that_another_process_holds(cpu_engine: CpuEngine) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)), started(cpu_engine, "unlucky", f"server.port={port}") as server:
        with pytest.raises(NotReadyError, match="is taken by another process") as caught:
            wait(server)
        assert "address already in use" in caught.value.details
        cause = diagnose(server.log.read_text().splitlines()).cause
        assert cause is not None
        assert cause.signature.id == "port-taken"


def schedulers(server: CpuServer) -> tuple[int, int]:
    """The pids of both ranks, by the title each scheduler gives itself."""
    pids = [process.pid for process in processes_of(server.handle)]
    titles = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in pids}
    first, second = (
        next(pid for pid, title in titles.items() if f"sglang::scheduler_DP{rank}" in title) for rank in (0, 1)
    )
    return first, second
