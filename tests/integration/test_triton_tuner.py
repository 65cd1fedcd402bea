"""sglang's tuner for Triton: its command, what is kept of an interrupted run, and what the server is given.

The tuner itself needs an NVIDIA GPU (`make gpu`). Here `tune_fused_moe.py` runs for real; in place of sglang and its
tuner there are modules that speak as theirs do at 702bddcee823: ray's words, the arguments, the workers' methods.
"""

import json
import sys
from pathlib import Path

import pytest
from plan_samples import plan_of

from orchestrator.core.errors import HostError, KernelsError, UsageError
from orchestrator.core.paths import Home, data_root
from orchestrator.kernels.disk.pins import read_tuner_pins
from orchestrator.kernels.disk.triton_tuner import TritonJob, triton_job, tune_triton
from orchestrator.kernels.tuning import prepare_triton_tuning, run_triton_tuning

FILE = "E=33,N=1024,device_name=NVIDIA_H200.json"
LOOKUP = "sglang/srt/layers/moe/moe_runner/triton_utils"
# The tuner's frame: arguments, ray's words, and the workers' two methods, whose times follow from BLOCK_SIZE_M.
TUNER = """
import argparse
import json
import ray
from common_utils import get_config_filename
from ray.experimental.tqdm_ray import tqdm

def benchmark_config(config, num_tokens, *shape, num_iters=100):
    return float(abs(config["BLOCK_SIZE_M"] - 2 * num_tokens) + 10)

@ray.remote(num_gpus=1)
class BenchmarkWorker:
    def __init__(self, seed, server_args):
        self.device_id = int(ray.get_gpu_ids()[0])

    def benchmark(self, num_tokens, *shape):
        config = {"BLOCK_SIZE_M": 64, "GROUP_SIZE_M": 1}
        return config, benchmark_config(config, num_tokens, *shape)

    def tune(self, num_tokens, *given):
        *shape, space = given
        if num_tokens == 666:
            raise RuntimeError("out of memory")
        assert all(config["num_warps"] for config in space)
        return min(tqdm(space), key=lambda config: benchmark_config(config, num_tokens, *shape))

parser = argparse.ArgumentParser()
for name in ("--model", "--tp", "--ep", "--dtype", "--search-space-file"):
    parser.add_argument(name)
parser.add_argument("--batch-sizes", type=int, nargs="+")
for name in ("--tune", "--disable-shared-experts-fusion"):
    parser.add_argument(name, action="store_true")
args = parser.parse_args()
ray.init()
workers = [BenchmarkWorker.remote(0, None) for _ in range(int(ray.available_resources()["GPU"]))]
space = json.load(open(args.search_space_file)) if args.search_space_file else [{"BLOCK_SIZE_M": 8, "num_warps": 4}]
shape = (33, 2048, 2048, 4, "bf16", False, False, False, False, False, None)
ray.get([getattr(workers[0], "tune").remote(size, *shape, space) for size in args.batch_sizes])
"""
COMMON = """
def get_config_filename(num_experts, shard, hidden, topk, dtype, *rest):
    assert len(rest) == 6
    return f"E={num_experts},N={shard // 2},device_name=NVIDIA_H200.json"
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages `sglang` and `triton` with what the program asks of them, first on the path of what is started."""
    packages = tmp_path / "packages"
    for folder in ("sglang", "sglang/srt", "sglang/srt/utils", "sglang/srt/layers", "sglang/srt/layers/moe"):
        (packages / folder).mkdir(parents=True)
        (packages / folder / "__init__.py").touch()
    for folder in ("sglang/srt/layers/moe/moe_runner", LOOKUP):
        (packages / folder).mkdir()
        (packages / folder / "__init__.py").touch()
    (packages / "sglang/srt/utils/__init__.py").write_text("def get_device_name(): return 'NVIDIA H200'\n")
    (packages / LOOKUP / "fused_moe_triton_config.py").touch()
    (packages / "triton.py").write_text("__version__ = '3.6.0'\n")
    shipped = packages / LOOKUP / "configs" / "triton_3_2_0"
    shipped.mkdir(parents=True)
    for name, block in [
        ("E=8,N=512,device_name=NVIDIA_H200", 16),
        ("E=8,N=512,device_name=NVIDIA_H200,dtype=fp8_w8a8", 128),
        ("E=8,N=512,device_name=NVIDIA_H100", 32),
        ("E=8,N=512,device_name=NVIDIA_H200_down", 48),
    ]:
        content = {"1": {"BLOCK_SIZE_M": block, "num_warps": 4}, "64": {"BLOCK_SIZE_M": block, "num_warps": 4}}
        (shipped / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.setenv("PYTHONPATH", str(packages))
    return packages


def job(folder: Path, *tokens: int, every: bool = False, profile: str = "h200-glm-mtp") -> TritonJob:
    return triton_job(
        plan_of(profile),
        program=(sys.executable, str(data_root() / "images" / "tune_fused_moe.py")),
        model=folder / "checkpoint",
        kernels=folder / "kernels",
        tokens=tokens,
        full_search=every,
        hours=1,
    )


def files() -> dict[str, bytes]:
    script, common = (pin.name for pin in read_tuner_pins())
    return {script: TUNER.encode(), common: COMMON.encode()}


@pytest.mark.usefixtures("engine")
def test_the_fastest_configuration_is_given_beside_copies_of_sglangs_own(tmp_path: Path) -> None:
    asked = job(tmp_path, 4, 32)
    tuned = tune_triton(asked, files())
    assert (tuned.problems, tuned.remaining) == ((), ())
    assert [(one.tokens, one.untuned_us, one.us) for one in tuned.measured] == [(4, 66.0, 18.0), (32, 10.0, 10.0)]
    configs = tmp_path / "kernels/triton/sglang-0.5.16/configs"
    assert json.loads((configs / "triton_3_6_0" / FILE).read_text()) == {
        "4": {"BLOCK_SIZE_M": 16, "num_warps": 4},
        "32": {"BLOCK_SIZE_M": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3},  # today's is the best
    }
    assert len(list((configs / "triton_3_2_0").iterdir())) == 4


@pytest.mark.usefixtures("engine")
def test_only_what_sglang_ships_for_this_gpu_and_data_type_is_tried_unless_everything_is(tmp_path: Path) -> None:
    asked = job(tmp_path, 4)
    tune_triton(asked, files())
    assert json.loads((asked.folder / "space.json").read_text()) == [{"BLOCK_SIZE_M": 16, "num_warps": 4}]
    [one] = tune_triton(job(tmp_path / "every", 4, every=True), files()).measured
    assert one.config["BLOCK_SIZE_M"] == 8


@pytest.mark.usefixtures("engine")
def test_what_was_measured_before_a_crash_is_kept_and_not_measured_again(tmp_path: Path) -> None:
    tuned = tune_triton(job(tmp_path, 4, 666, 1000), files())
    assert ([one.tokens for one in tuned.measured], tuned.remaining) == ([4], (666, 1000))
    assert "out of memory" in tuned.problems[0].message
    configs = tmp_path / "kernels/triton/sglang-0.5.16/configs"
    assert list(json.loads((configs / "triton_3_6_0" / FILE).read_text())) == ["4"]

    again = job(tmp_path, 4, 8)
    assert again.remaining == (8,)
    assert [one.tokens for one in tune_triton(again, files()).measured] == [4, 8]
    assert len((again.folder / "measured.jsonl").read_text().splitlines()) == 2
    assert list(json.loads((configs / "triton_3_6_0" / FILE).read_text())) == ["4", "8"]


def test_a_line_that_was_cut_off_or_names_another_place_is_left_out(tmp_path: Path) -> None:
    asked = job(tmp_path, 4)
    asked.folder.mkdir(parents=True)
    line = {
        "tokens": 4,
        "file": "../x.json",
        "triton": "3.6.0",
        "shipped": "/s",
        "config": {},
        "us": 1.0,
        "untuned_us": 2.0,
    }
    (asked.folder / "measured.jsonl").write_text(json.dumps(line) + '\n{"tokens": 4, "fi')
    assert asked.measured == ()
    assert asked.remaining == (4,)


def test_a_quantization_that_the_tuner_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelsError, match="nvfp4"):
        job(tmp_path, 4, profile="b200-tp8")


def test_a_checkpoint_that_is_not_there_and_a_machine_without_the_gpu_are_told(tmp_path: Path) -> None:
    home, plan = Home(tmp_path), plan_of("h200-glm-mtp", "engine.python=python3")
    with pytest.raises(UsageError, match=r"config\.json"):
        prepare_triton_tuning(plan, home, tokens=(), full_search=False, hours=1)
    (home.models / plan.model.name).mkdir(parents=True)
    (home.models / plan.model.name / "config.json").write_text("{}")
    prepared = prepare_triton_tuning(plan, home, tokens=(), full_search=False, hours=1)
    assert len(prepared.remaining) == 18
    assert prepared.command[-8:] == (
        "--model",
        str(home.models / plan.model.name),
        *["--tp", "1", "--ep", "1", "--dtype", "auto"],
    )
    if not Path("/dev/nvidiactl").exists():
        with pytest.raises(HostError, match="nvidiactl"):
            run_triton_tuning(prepared, home, lambda *_: None)
