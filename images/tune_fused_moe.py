"""Run sglang's own tuner of fused-MoE Triton configurations in one process, and write each result immediately.

Run with the engine's Python: `python tune_fused_moe.py FOLDER SPACE TOKENS … -- ARGUMENTS`. FOLDER holds the tuner's
two files (benchmark/kernels/fused_moe_triton/ of sglang's repository). Results go to FOLDER/measured.jsonl, one object
per line:

    tokens          number of tokens that the configuration is for
    file            name of the configuration file that sglang reads
    triton          version of Triton
    shipped         folder of the configurations that sglang ships
    config          fastest configuration of SPACE
    us, untuned_us  its time, and the time of sglang's present configuration, in microseconds per call

SPACE is `shipped` (the configurations that sglang ships for this GPU and data type, made for other shapes) or `all`
(the tuner's own space: over a thousand configurations, each compiled, which takes hours). If none is faster than
sglang's present configuration, the result is the present one.

The tuner distributes work over GPUs with ray, which no engine environment has, and writes results only at its end.
Therefore ray is replaced by a single worker in this process.
"""

import json
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import triton
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe_triton_config
from sglang.srt.utils import get_device_name

SCRIPT = "tuning_fused_moe_triton.py"
SHIPPED = Path(fused_moe_triton_config.__file__).parent / "configs"
# Triton's defaults for missing keys (triton 3.6, backends/nvidia/compiler.py: CUDAOptions).
TRITON_DEFAULTS = {"num_warps": 4, "num_stages": 3}


def shipped_space(dtype: str) -> list[dict[str, int]]:
    """Return the distinct configurations that sglang ships for this GPU and data type. Exits if there are none."""
    suffix = "" if dtype == "auto" else f",dtype={dtype}"
    names = f"E=*,device_name={get_device_name().replace(' ', '_')}{suffix}"
    files = {*SHIPPED.glob(f"*/{names}.json")} | ({*SHIPPED.glob(f"*/{names},block_shape=*.json")} if suffix else set())
    found = (config for file in sorted(files) for config in json.loads(file.read_text()).values())
    space = {json.dumps(config, sort_keys=True): config for config in found if isinstance(config, dict)}
    if not space:
        sys.exit(f"sglang ships no configuration for {get_device_name()} and {dtype}: try all")
    return list(space.values())


def ray(on_result: Callable[[dict[str, Any]], None]) -> Iterator[ModuleType]:
    """Yield modules that replace ray with one worker in this process; `on_result` gets each result."""
    module, bars = ModuleType("ray"), ModuleType("ray.experimental.tqdm_ray")
    module.init = lambda: None
    module.available_resources = lambda: {"GPU": 1}
    module.get_gpu_ids = lambda: [0]
    module.get = lambda result: result
    module.remote = lambda **_: lambda worker: SimpleNamespace(remote=lambda *args: _worker(worker(*args), on_result))
    bars.tqdm = lambda space: space
    yield from (module, ModuleType("ray.experimental"), bars)


def _worker(worker: Any, on_result: Callable[[dict[str, Any]], None]) -> SimpleNamespace:  # noqa: ANN401
    tuner = type(worker).tune.__globals__

    def tune(*args: Any) -> dict[str, int]:  # noqa: ANN401
        *shape, space = args
        current, untuned_us = worker.benchmark(*shape)
        best = worker.tune(*shape, space)
        us = tuner["benchmark_config"](best, *shape)
        if us >= untuned_us:
            best, us = {**TRITON_DEFAULTS, **current}, untuned_us
        on_result(
            {
                "tokens": shape[0],
                "file": tuner["get_config_filename"](*shape[1:]),
                "triton": triton.__version__,
                "shipped": str(SHIPPED),
                "config": best,
                "us": us,
                "untuned_us": untuned_us,
            }
        )
        return best

    return SimpleNamespace(tune=SimpleNamespace(remote=tune))


def main(folder: Path, space: str, tokens: list[str], arguments: list[str]) -> None:
    """Tune for each number of `tokens`; `arguments` are the tuner's own."""
    with (folder / "measured.jsonl").open("a", encoding="utf-8") as measured:

        def write(result: dict[str, Any]) -> None:
            measured.write(json.dumps(result) + "\n")
            measured.flush()

        sys.modules.update({module.__name__: module for module in ray(write)})
        sys.path.insert(0, str(folder))
        argv = [*arguments, "--tune", "--batch-sizes", *tokens]
        if space == "shipped":
            dtype = arguments[arguments.index("--dtype") + 1]
            (folder / "space.json").write_text(json.dumps(shipped_space(dtype)))
            argv += ["--search-space-file", str(folder / "space.json")]
        sys.argv = [SCRIPT, *argv]
        runpy.run_path(str(folder / SCRIPT), run_name="__main__")


if __name__ == "__main__":
    end = sys.argv.index("--")
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:end], sys.argv[end + 1 :])
