"""Run by the engine's own Python: sglang's own workers make their pools on this CPU, and what they took is told.

    cache_pools.py FOLDER       JSON on stdin, name -> [config.json, arguments]; the same names on stdout

Each model is a config alone: its weights are sglang's dummies. One process imports sglang, each model has a fork of it.
What a scheduler makes is made in its order: the target loads, then what drafts, then their pools. A name's answer has
the bytes that were left for the cache, the tokens that sglang makes of them, the bytes that the pools take, and
what the log says; or what sglang raised.
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
    """One model's workers and pools."""
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.model_executor.pool_configurator import DefaultPoolConfigurator, HybridSWAPoolConfigurator
    from sglang.srt.server_args import prepare_server_args, set_global_server_args_for_scheduler

    text: Reported = {"lines": [], "pools": []}
    directory = folder / name
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))

    def record(configurator: Any) -> None:  # noqa: ANN401
        whole = configurator.calculate_pool_sizes

        def recorded(self: Any, available_bytes: int, page_size: int) -> Any:  # noqa: ANN401
            found = whole(self, available_bytes, page_size)
            text.update(available=available_bytes, fitting=found.max_total_num_tokens)
            text.update(windows=found.swa_max_total_num_tokens)
            return found

        configurator.calculate_pool_sizes = recorded

    for item in (DefaultPoolConfigurator, HybridSWAPoolConfigurator):
        record(item)
    MHATokenToKVPool._init_kv_copy_and_warmup = lambda _: None  # a Triton kernel, run once to compile it
    args = prepare_server_args(["--model-path", str(directory), *CPU, *DUMMY, *arguments])
    set_global_server_args_for_scheduler(args)
    handler = logging.Handler()
    handler.emit = lambda record: text["lines"].append(record.getMessage())  # type: ignore[method-assign]
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
        text["pools"].append(int(sum(size) if isinstance(size, tuple) else size))
    held = getattr(runner, "swa_max_total_num_tokens", None)
    return text | {"tokens": int(runner.max_total_num_tokens), "window_tokens": held}


def answer(folder: Path, name: str, config: Reported, arguments: list[str]) -> None:
    """As `make`, written down."""
    try:
        text = make(folder, name, config, arguments)
    except Exception as error:  # noqa: BLE001 - its verdict
        text = {"raised": repr(error), "where": traceback.format_exc()[-2000:]}
    (folder / f"{name}.json").write_text(json.dumps(text))


if __name__ == "__main__":
    for module in ("managers.tp_worker", "models.registry"):  # once for all forks; the latter has every model's module
        import_module(f"sglang.srt.{module}")

    os.dup2(2, 1)  # what sglang prints is none of the answer
    folder = Path(sys.argv[1])
    cases = json.load(sys.stdin)
    running = [get_context("fork").Process(target=answer, args=(folder, name, *case)) for name, case in cases.items()]
    for process in running:
        process.start()
    for process in running:
        process.join()
