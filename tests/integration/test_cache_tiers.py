"""KV cache tiers restore tokens, survive a restart, and save as much as `deploy show` forecasts."""

import json
import os
import random
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import CommandLine
from cpu_server import CpuEngine, processes_in
from ports import free_port
from user_profiles import add_profiles
from waits import TIMEOUT, wait_for

from orchestrator.core.paths import Home
from orchestrator.runtimes.process.runtime import ProcessRuntime

pytestmark = [pytest.mark.engine, pytest.mark.slow]
PROFILE, NO_TIERS = "cpu-tiny-tiers", ("flags.enable-hierarchical-cache=false", "flags.hicache-storage-backend=null")
COSTS = "70,150,300"  # µs per token, measured on two cores in November 2026
TOKENS, UNIQUE, ROUNDS = 3500, 30, 6
COPIES = Path(__file__).parents[1] / "support/page_first_copies"
FROM_HOST = r"(999|1 from device, 998) from host after [\d,]+"  # a busy engine frees its last page later


class Tiered:
    """Run `deploy` in a home with the environments and the checkpoint of another home."""

    def __init__(self, folder: Path, other: Home) -> None:
        home = Home(add_profiles(folder / "home"))
        home.environments.symlink_to(other.environments)
        home.models.symlink_to(other.models)
        self.deploy, self.runtime = CommandLine(home), ProcessRuntime(home)
        self.ports = {name: free_port() for name in ("tiers", "none")}
        self.storage = folder / "storage"

    def up(self, name: str, *settings: str) -> None:
        files = f"env.SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR={self.storage}"
        arguments = [f"--set={setting}" for setting in (*settings, files, f"server.port={self.ports[name]}")]
        result = self.deploy.run("up", PROFILE, "--name", name, "--set=timeouts.progress_deadline=600", *arguments)
        assert result.returncode == 0, result.stderr

    def smoke(self, *words: str) -> dict[str, dict[str, Any]]:
        result = self.deploy.run("smoke", *words, "--json")
        return {check["name"]: check for check in json.loads(result.stdout)["checks"]}

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def generate(self, name: str, prompt: list[int]) -> tuple[list[int], dict[str, Any]]:
        body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}}
        answer = httpx.post(f"{self.url(name)}/generate", json=body, timeout=TIMEOUT, trust_env=False).json()
        return answer["output_ids"], answer["meta_info"]["cached_tokens_details"] or {}

    def cpu_seconds(self, name: str) -> float:
        """Return the CPU seconds of a server's processes; other programs do not affect them."""
        [server] = self.runtime.find(name)
        stats = [Path(f"/proc/{process.pid}/stat").read_text() for process in processes_in(Path(server.run_dir))]
        ticks = sum(sum(map(int, text.rpartition(")")[2].split()[11:13])) for text in stats)  # utime, stime
        return ticks / os.sysconf("SC_CLK_TCK")

    def idle_cpu(self, name: str) -> float:
        """Return the CPU seconds once the server no longer writes files."""
        samples = [self.cpu_seconds(name)]

        def is_idle() -> bool:
            time.sleep(1)
            samples.append(self.cpu_seconds(name))
            return samples[-1] - samples[-2] < 0.05

        wait_for(is_idle)
        return samples[-1]

    def forecast(self, tmp_path: Path, *, shared: float, prefixes: int) -> dict[str, Any]:
        workload = tmp_path / "home/profiles/workloads/of-the-test.yaml"
        workload.parent.mkdir(exist_ok=True)
        workload.write_text(
            f"input_tokens: {TOKENS}\noutput_tokens: 8\ncache_hit_rate: {shared}\nnum_prefixes: {prefixes}\n"
            "load: closed\nconcurrency: 1\nrequests: 10\n"
        )
        arguments = ("--capacity", "--tier-costs", COSTS, "--set", "workload=of-the-test", "--json")
        return dict(json.loads(self.deploy.run("show", PROFILE, *arguments).stdout)["outlook"])


@pytest.fixture
def tiered(cpu_engine: CpuEngine, tmp_path: Path) -> Iterator[Tiered]:
    started = Tiered(tmp_path, cpu_engine.home)
    try:
        yield started
    finally:
        for name in started.ports:
            for handle in started.runtime.find(name):
                started.runtime.stop(handle, grace=0)


def test_cache_tiers_survive_restart_and_match_prediction(tiered: Tiered, tmp_path: Path) -> None:
    tiered.up("tiers")
    rng = random.Random(7)
    prompt = rng.choices(range(100, 500), k=1000)
    answer, _ = tiered.generate("tiers", prompt)
    check = tiered.smoke("tiers")["cache tiers"]
    assert check["verdict"] == "passed", check
    assert re.match(FROM_HOST, check["evidence"]), check

    assert tiered.deploy.run("restart", "tiers").returncode == 0
    repeated, cached = tiered.generate("tiers", prompt)
    assert repeated == answer
    # The first token is on the device already if a prompt of the smoke test began with it.
    assert sum(cached.get(source, 0) for source in ("device", "host", "storage")) == 999
    assert cached["storage"] >= 998

    tiered.up("none", *NO_TIERS)  # the profile below has tiers
    without_tiers = tiered.smoke(tiered.url("none"), "--profile", PROFILE)["cache tiers"]
    assert without_tiers["verdict"] == "failed"
    assert "from host expected" in without_tiers["evidence"]

    # The host returns six prefixes; prompts that share nothing are only stored. Both servers get the same prompts.
    prefixes = [rng.choices(range(100, 500), k=TOKENS - UNIQUE) for _ in range(6)]
    shared_prefixes = tiered.forecast(tmp_path, shared=0.99, prefixes=6)
    unshared = tiered.forecast(tmp_path, shared=0.0, prefixes=1)
    assert (shared_prefixes["helps"], unshared["helps"]) == (True, False)
    assert unshared["saved_us"] < 0 < shared_prefixes["saved_us"]
    for name in tiered.ports:
        for prefix in prefixes:
            tiered.generate(name, prefix)
    for used, helps in ((prefixes, True), ([], False)):
        before = {name: tiered.idle_cpu(name) for name in tiered.ports}
        sources = dict.fromkeys(tiered.ports, 0)
        for turn in range(ROUNDS):
            body = used[turn % len(used)] if used else rng.choices(range(100, 500), k=TOKENS - UNIQUE)
            full_prompt = [*body, *rng.choices(range(100, 500), k=UNIQUE)]
            answers = []
            for name in tiered.ports:
                ids, cached = tiered.generate(name, full_prompt)
                sources[name] += cached.get("host", 0)
                answers.append(ids)
            assert all(one == other for one, other in pairwise(answers))
        spent = {name: tiered.idle_cpu(name) - before[name] for name in tiered.ports}
        print(f"{spent} CPU seconds, {sources} tokens from host")
        assert (spent["tiers"] < spent["none"]) is helps, spent
        assert (sources["tiers"] > ROUNDS * TOKENS * 0.8) is helps


@contextmanager
def mooncake_master(python: Path, log: Path) -> Iterator[str]:
    """Run Mooncake's real master and return its address; the server provides the store's memory."""
    address, admin = f"127.0.0.1:{free_port()}", free_port()
    [program] = python.parents[1].glob("lib/*/site-packages/mooncake/mooncake_master")
    argv = [str(program), "--rpc_address=127.0.0.1", f"--rpc_port={address.split(':')[1]}"]
    argv += ["--metrics_host=127.0.0.1", f"--metrics_port={admin}"]
    with log.open("w") as file, subprocess.Popen(argv, stdout=file, stderr=file) as master:
        try:
            wait_for(lambda: f"started on port {admin}" in log.read_text())
            yield address
        finally:
            master.terminate()


def test_mooncake_store_restores_evicted_tokens(tiered: Tiered, cpu_engine: CpuEngine, tmp_path: Path) -> None:
    with mooncake_master(cpu_engine.python, tmp_path / "master.log") as master:
        env = {
            "MOONCAKE_MASTER": master,
            "MOONCAKE_PROTOCOL": "tcp",
            "MOONCAKE_TE_META_DATA_SERVER": "P2PHANDSHAKE",
            "MOONCAKE_LOCAL_HOSTNAME": "127.0.0.1",
            "MOONCAKE_GLOBAL_SEGMENT_SIZE": str(256 << 20),
            "MC_FORCE_TCP": "1",
            "PYTHONPATH": str(COPIES),
        }
        layout = ("flags.hicache-storage-backend=mooncake", "flags.hicache-mem-layout=page_first_direct")
        tiered.up("tiers", *layout, *(f"env.{name}={value}" for name, value in env.items()))
        prompt = random.Random(7).choices(range(100, 500), k=1000)
        answer, _ = tiered.generate("tiers", prompt)
        check = tiered.smoke("tiers")["cache tiers"]
        assert check["verdict"] == "passed", check
        assert re.fullmatch(rf"{FROM_HOST} other tokens; 999 from storage.*", check["evidence"]), check
        repeated, cached = tiered.generate("tiers", prompt)  # the smoke test has flushed device and host
        assert (repeated, cached.get("storage"), cached.get("storage_backend")) == (answer, 999, "MooncakeStore")
        assert tiered.deploy.run("down", "tiers").returncode == 0
