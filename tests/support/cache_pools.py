"""Allocate the cache pools of sglang's workers on the CPU and report their sizes. The engine's Python runs this file.

    cache_pools.py FOLDER       JSON on stdin, name -> [config.json, arguments]; the same names on stdout

Models have only a config; the weights are sglang's dummies. One process imports sglang, and each model runs in a fork.
As in a scheduler, the target loads first, then the draft worker, then their pools. A result has the bytes available
for the cache, sglang's number of tokens, the bytes of the pools, and the log lines; or the exception.
"""

import json
import logging
import os
import sys
import traceback
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ports import free_port

CPU = ("--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule", "--skip-tokenizer-init")
DUMMY = ("--load-format", "dummy", "--disable-radix-cache")
Reported = dict[str, Any]


def make(folder: Path, name: str, config: Reported, arguments: list[str]) -> Reported:
    """Create the workers and pools of one model; return their sizes."""
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.model_executor.pool_configurator import DefaultPoolConfigurator, HybridSWAPoolConfigurator
    from sglang.srt.server_args import prepare_server_args, set_global_server_args_for_scheduler

    result: Reported = {"lines": [], "pools": []}
    directory = folder / name
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))

    def record(configurator: Any) -> None:  # noqa: ANN401
        whole = configurator.calculate_pool_sizes

        def recorded(self: Any, available_bytes: int, page_size: int) -> Any:  # noqa: ANN401
            sizes = whole(self, available_bytes, page_size)
            result.update(available=available_bytes, fitting=sizes.max_total_num_tokens)
            result.update(windows=sizes.swa_max_total_num_tokens)
            return sizes

        configurator.calculate_pool_sizes = recorded

    for item in (DefaultPoolConfigurator, HybridSWAPoolConfigurator):
        record(item)
    MHATokenToKVPool._init_kv_copy_and_warmup = lambda _: None  # compiles a Triton kernel
    args = prepare_server_args(["--model-path", str(directory), *CPU, *DUMMY, *arguments])
    set_global_server_args_for_scheduler(args)
    handler = logging.Handler()
    handler.emit = lambda record: result["lines"].append(record.getMessage())  # type: ignore[method-assign]
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    ranks = {"gpu_id": 0, "tp_rank": 0, "moe_ep_rank": 0, "pp_rank": 0, "attn_cp_rank": 0, "moe_dp_rank": 0}
    common = {**ranks, "dp_rank": None, "nccl_port": free_port(), "server_args": args}
    target = TpModelWorker(**common)
    workers = [target]
    if args.speculative_algorithm:
        workers.append(TpModelWorker(**common, is_draft_worker=True))
    target.alloc_memory_pool()
    runner = target.model_runner
    for draft in workers[1:]:
        draft.alloc_memory_pool(
            memory_pool_config=runner.memory_pool_config,
            req_to_token_pool=runner.req_to_token_pool,
            token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
        )
    for worker in workers:
        size = worker.model_runner.token_to_kv_pool.get_kv_size_bytes()
        result["pools"].append(int(sum(size) if isinstance(size, tuple) else size))
    window_tokens = getattr(runner, "swa_max_total_num_tokens", None)
    return result | {"tokens": int(runner.max_total_num_tokens), "window_tokens": window_tokens}


def answer(folder: Path, name: str, config: Reported, arguments: list[str]) -> None:
    """Write the result of `make`, or its exception, to a file."""
    try:
        result = make(folder, name, config, arguments)
    except Exception as error:  # noqa: BLE001 - reported as the result
        result = {"raised": repr(error), "where": traceback.format_exc()[-2000:]}
    (folder / f"{name}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    for module in ("managers.tp_worker", "models.registry"):  # once for all forks; the registry imports all models
        import_module(f"sglang.srt.{module}")

    os.dup2(2, 1)  # keep sglang's output out of the result
    folder = Path(sys.argv[1])
    cases = json.load(sys.stdin)
    running = [get_context("fork").Process(target=answer, args=(folder, name, *case)) for name, case in cases.items()]
    for process in running:
        process.start()
    for process in running:
        process.join()
