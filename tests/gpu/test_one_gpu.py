"""On one GPU: start, verify, measure and break a server of a model with experts and drafts."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_deploy import SETTINGS, CommandResult, GpuCommandLine, assert_free, count, gpu_name, memory_holder, schedulers

pytestmark = pytest.mark.skipif(count() < 1, reason="this machine has no NVIDIA GPU")

NAME = "h200-glm-mtp"
MEASURED = ("--workload", "random-4k-256", "--request-rate", "8,24", "--price", "3.50")
QUICK = 10  # seconds; the process table shows the death without a timeout


@pytest.fixture(scope="class")
def up(deploy: GpuCommandLine) -> Iterator[CommandResult]:
    yield deploy.up(NAME)
    deploy.run("down", NAME)
    assert_free()


class TestOneServer:
    """All tests share one server, which the last test kills."""

    def test_server_starts_and_passes_smoke_test(self, up: CommandResult) -> None:
        assert up.code == 0
        assert re.search(r"speculative decoding +passed .*accept length [2-6]\.", up.text)
        assert re.search(r"sampling varies +passed", up.text)
        assert "capturing target verify graphs" in up.text
        assert f"missing: E=33,N=1024,device_name={gpu_name().replace(' ', '_')}.json" in up.text

    @pytest.mark.usefixtures("up")
    def test_benchmark_measures_energy_and_accept_length(self, deploy: GpuCommandLine, results: Path) -> None:
        assert deploy.run("bench", NAME, *MEASURED, "--output", str(results / "one")).code == 0
        result = json.loads((results / "one" / "result.json").read_text())
        for point in result["points"]:
            assert point["success_share"] == 1.0
            assert point["energy"]["valid"]
            assert point["server"]["accept_length"] > 1.5
        assert gpu_name() in json.dumps(result["run"]["provenance"]["host"])
        assert deploy.run("report", str(results)).code == 0

    @pytest.mark.usefixtures("up")
    def test_killed_scheduler_is_reported_quickly(self, deploy: GpuCommandLine) -> None:
        assert "healthy" in deploy.run("status", NAME).text
        os.kill(schedulers()["sglang::scheduler"], signal.SIGKILL)
        result = deploy.run("status", NAME)
        assert re.search(r"unhealthy|exited", result.text)
        assert result.seconds < QUICK
        smoke = deploy.run("smoke", NAME)
        assert smoke.code == 8
        assert smoke.seconds < QUICK
        assert re.search(r"fatal: (rank-ended|killed)", deploy.run("diagnose", NAME).text)


@pytest.mark.usefixtures("free")
def test_always_rejected_drafts_fail_smoke_test(deploy: GpuCommandLine) -> None:
    done = deploy.up(NAME, "model=glm4-moe-wrong-mtp")
    assert done.code == 8
    assert "speculative decoding: accept length 1.00: no draft is accepted" in done.text


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("stage", ["loading weights", "capturing target prefill graphs"])
def test_ctrl_c_during_startup_exits_with_130(deploy: GpuCommandLine, stage: str) -> None:
    with deploy.running_up(NAME) as starting:
        starting.wait_for(stage, within=180)
        code, _ = starting.interrupt()
    assert code == 130


@pytest.mark.usefixtures("free")
def test_vram_used_by_other_process_delays_start(deploy: GpuCommandLine) -> None:
    with memory_holder(40) as holder:
        result = deploy.run("preflight", "--profile", NAME, *SETTINGS)
        assert result.code == 4
        assert f"pid {holder.pid}" in result.text
        with deploy.running_up(NAME) as starting:
            starting.wait_for("waiting for VRAM to drain", within=60)
            holder.kill()
            starting.wait_for("started `", within=60)
            assert starting.interrupt()[0] == 130


@pytest.mark.usefixtures("free")
def test_out_of_memory_during_graph_capture_is_diagnosed(deploy: GpuCommandLine) -> None:
    many = ("flags.max-running-requests=512", "flags.cuda-graph-max-bs-decode=512")
    done = deploy.up(NAME, "flags.mem-fraction-static=0.995", *many)
    assert done.code == 7
    assert re.search(r"fatal: (gpu-out-of-memory|graph-capture-failed)", done.text)
