"""Tests two of our warnings with sglang's own code: fused all-reduce without a communicator, and sampling on ROCm."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.version import Version
from torch_forks import Program, run_forked
from wheels import read, unpacked

from orchestrator.hosts.venvs.venv import Venv

pytestmark = [pytest.mark.engine, pytest.mark.wheels, pytest.mark.slow]

# Runs the fused all-reduce in a group of one rank: as with `--disable-custom-all-reduce`, and with a communicator.
FUSED = """
import inspect, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from generate import server_parser
server_parser(Path(sys.argv[2]))
import torch
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
from sglang.srt.distributed import parallel_state

kind = parallel_state.GroupCoordinator
off = {name: False for name in inspect.signature(kind).parameters if name.startswith("use_")}
group = kind(group_ranks=[[0]], local_rank=0, torch_distributed_backend="gloo", group_name="test", **off)

class Communicator:
    disabled = False
    def fused_allreduce_rmsnorm(self, *_):
        return "fused"

def fused():
    ones = torch.ones(4)
    return group.fused_allreduce_rmsnorm(ones, ones, ones, 1e-5)

without = {"communicator": group.ca_comm, "result": fused()}
group.ca_comm = Communicator()
print(json.dumps({"without": without, "with": fused()}))
"""
VERSIONS = ["0.5.14", "0.5.18", "0.5.23"]


@pytest.fixture(scope="module")
def fused(cpu_environment: Venv) -> Mapping[str, "subprocess.CompletedProcess[str]"]:
    flags = str(Path(__file__).parents[2] / "profiles/engines/flags")
    programs = {version: Program(program=FUSED, argv=(flags, str(unpacked(version)))) for version in VERSIONS}
    return run_forked(cpu_environment.python, programs)


@pytest.mark.parametrize("version", VERSIONS)
def test_fusion_has_no_effect_without_custom_all_reduce(
    version: str, fused: Mapping[str, "subprocess.CompletedProcess[str]"]
) -> None:
    result = fused[version]
    assert result.returncode == 0, result.stderr[-2000:]
    assert json.loads(result.stdout.splitlines()[-1]) == {
        "without": {"communicator": None, "result": None},
        "with": "fused",
    }


@pytest.mark.parametrize("version", ["0.5.10", "0.5.14", "0.5.16", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"])
def test_speculation_is_greedy_on_rocm_until_0_5_20(version: str) -> None:
    """Until 0.5.20 the deciding line checks only the platform, later also whether rejection sampling is off."""
    file = "eagle_info_v2.py" if Version(version) < Version("0.5.14") else "eagle_utils.py"
    alone = re.search(r"is_all_greedy or .*\b_is_hip\b", read(version, f"srt/speculative/{file}"))
    assert (alone is not None) == (Version(version) < Version("0.5.21"))
