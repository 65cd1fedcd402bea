"""Prefill and decode disaggregated on one GPU, over NIXL's TCP: the KV cache crosses, drafts too; a role is killed.

sglang's Python needs the packages `nixl` and `nixl-cu13`.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gpu_deploy import CommandResult, GpuCommandLine, assert_free, count, used_mib, wait_until

pytestmark = pytest.mark.skipif(count() < 1, reason="this machine has no NVIDIA GPU")

NAME = "h200-glm-1p1d"
PLAIN = [f"flags.speculative-{option}=null" for option in ("algorithm", "num-steps", "eagle-topk", "num-draft-tokens")]
CHECKS = {  # the verdicts that are right: a few tokens may differ between the kernels of prefill and decode
    "pair: KV cache transferred": {"passed"},
    "pair: answer of one server": {"passed", "warning"},
    "pair: network": {"passed"},
}
INITIALIZED = "NIXL KVManager initialized with backend: UCX"  # sglang 0.5.16, disaggregation/nixl/conn.py:415
TELLING = re.compile(r"nixl|ucx|error|exception|transfer|traceback", re.IGNORECASE)
LINES = 60  # printed of each log


def runs(deploy: GpuCommandLine) -> Path:
    return deploy.home / "runs" / NAME


def show_logs(deploy: GpuCommandLine) -> None:
    """Print the end of each log, and what it says before about NIXL and errors."""
    print(f"VRAM in use: {used_mib()} MiB", flush=True)
    for log in sorted(runs(deploy).glob("**/*.log")):
        lines = log.read_text(errors="replace").splitlines()
        found = [text for text in lines[:-LINES] if TELLING.search(text)]
        print(f"\n--- {log}: {len(lines)} lines", *found[:LINES], "…", *lines[-LINES:], sep="\n", flush=True)


@contextmanager
def showing_logs(deploy: GpuCommandLine) -> Iterator[None]:
    try:
        yield
    except BaseException:
        show_logs(deploy)
        deploy.run("diagnose", NAME)
        raise


@contextmanager
def pair(deploy: GpuCommandLine, *settings: str) -> Iterator[CommandResult]:
    """Both roles, brought up and taken down."""
    assert_free()
    try:
        with showing_logs(deploy):
            done = deploy.up(NAME, *settings, options=("--keep-failed",))
            assert done.code == 0
        yield done
    finally:
        deploy.run("down", NAME)
    assert_free()


@pytest.fixture(scope="class")
def plain(deploy: GpuCommandLine) -> Iterator[CommandResult]:
    """A pair without drafts."""
    with pair(deploy, *PLAIN) as done:
        yield done


def server_pid(deploy: GpuCommandLine, role: str) -> int:
    """The main process of a server; one that is started again has a run of its own."""
    record = json.loads(max(runs(deploy).glob(f"*/{role}-1/process.json")).read_text())
    return int(record["server"].split("/")[1])


def assert_kv_cache_crosses(deploy: GpuCommandLine) -> None:
    """Run the smoke test of a running pair."""
    done = deploy.run("smoke", NAME, "--json")
    report = json.loads(done.text[done.text.index("{") :])
    found = {check["name"]: (check["verdict"], check["evidence"]) for check in report["checks"]}
    for name, right in CHECKS.items():
        print(f"{name}: {found.get(name)}", flush=True)
        assert found[name][0] in right
    assert "nixl over tcp" in found["pair: network"][1]
    assert done.code == 0


@pytest.mark.usefixtures("plain")
class TestPairOnOneGpu:
    """Brought up once; the last test kills the decode server."""

    def test_kv_cache_crosses_by_nixl(self, deploy: GpuCommandLine) -> None:
        with showing_logs(deploy):
            for role in ("prefill", "decode"):
                log = max(runs(deploy).glob(f"*/{role}-1/server.log"))
                assert INITIALIZED in log.read_text(errors="replace")
            assert_kv_cache_crosses(deploy)

    def test_killed_decode_server_is_named_and_restarted_alone(self, deploy: GpuCommandLine) -> None:
        prefill = server_pid(deploy, "prefill")
        with showing_logs(deploy):
            os.kill(server_pid(deploy, "decode"), signal.SIGKILL)
            reason = "decode 1 of 1 is not running: killed by SIGKILL"
            wait_until(lambda: reason in deploy.run("status", NAME).text, within=60)
            with deploy.background("watch", NAME) as watching:
                assert " restarted" in watching.wait_for(r" (restarted|restart-failed|gave-up)", within=400)
            assert deploy.run("status", NAME).code == 0
            assert server_pid(deploy, "prefill") == prefill
            assert_kv_cache_crosses(deploy)


def test_drafts_cross_with_the_kv_cache(deploy: GpuCommandLine) -> None:
    """The decode server goes on with the draft of the prefill server."""
    with pair(deploy) as done, showing_logs(deploy):
        assert re.search(r"speculative decoding +passed .*accept length [2-6]\.", done.text)
        assert_kv_cache_crosses(deploy)
