"""Inject faults into a running sglang 0.5.14: the file `$PLANTED_FAULT` has the name of the current fault, or is empty.

Python imports this module at startup because its directory is on PYTHONPATH (see `site` in Python's documentation).
The processes are forks, as in other tests.
"""

import importlib.util
import itertools
import os
import runpy
import sys
import threading
import time
from collections.abc import AsyncIterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

FILE = Path(os.environ["PLANTED_FAULT"])
CALL = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"
THOUGHT = "<think>A week has 7 days.</think>14"
COUNT = itertools.count()


def fault() -> str:
    """Return the name of the current fault; "" for none."""
    return FILE.read_text() if FILE.exists() else ""


def of_sampling(module: ModuleType) -> None:
    kind, normalize = module.SamplingParams, module.SamplingParams.normalize

    def changed(self: Any, tokenizer: object) -> None:  # noqa: ANN401 - sglang's
        normalize(self, tokenizer)
        name = fault()
        if name == "temperature ignored":
            self.temperature, self.top_k = 1.0, 1
        elif name == "greedy ignored":
            self.temperature, self.top_k = 2.0, 1 << 30
        elif name == "cut answers" and self.max_new_tokens > 1:
            self.max_new_tokens -= 1
        elif name == "grammar ignored" and self.json_schema:
            self.json_schema = '{"enum": ["yes"]}'
        elif name == "requests fail" and self.max_new_tokens > 1 and next(COUNT) % 4 == 0:
            raise RuntimeError("planted")
        elif name == "a fault in the log":
            print("NaN detected in logits: values were sanitized before sampling", flush=True)

    kind.normalize = changed


def of_inputs(module: ModuleType) -> None:
    kind = module.GenerateReqInput
    normalize = kind.normalize_batch_and_arguments

    def changed(self: Any) -> None:  # noqa: ANN401
        normalize(self)
        if fault() == "no cache":
            self.extra_key = str(time.time_ns())  # two requests share a prefix only with the same key

    kind.normalize_batch_and_arguments = changed


def of_tokenizer(module: ModuleType) -> None:
    kind = module.TokenizerManager
    validate = kind._validate_one_request

    def rejected(self: Any, *args: Any, **options: Any) -> None:  # noqa: ANN401
        try:
            validate(self, *args, **options)
        except ValueError as error:
            if fault() == "too long is an error of the server":
                raise RuntimeError("planted") from error
            raise

    kind._validate_one_request = rejected


def of_http(module: ModuleType) -> None:
    handlers = module.app.exception_handlers
    answer = handlers[module.RequestValidationError]

    async def changed(request: object, error: Any) -> Any:  # noqa: ANN401
        answered = await answer(request, error)
        if fault() == "a mistake is an error of the server":
            answered.status_code = 500
        return answered

    handlers[module.RequestValidationError] = changed


def of_chat(module: ModuleType) -> None:
    kind = module.OpenAIServingChat
    decode, stream = kind._decode_response, kind._generate_chat_stream

    def text(self: Any, item: object) -> object:  # noqa: ANN401
        action, _, parser = fault().partition(" by ")
        if action == "calls":
            self.tool_call_parser = parser
            return CALL
        if action == "thinks":
            self.reasoning_parser = parser
            return THOUGHT
        return decode(self, item)

    async def streamed(self: Any, *args: Any) -> AsyncIterator[str]:  # noqa: ANN401
        number = 0
        async for chunk in stream(self, *args):
            number += 1
            if not (fault() == "a chunk is lost" and number == 4):
                yield chunk

    kind._decode_response, kind._generate_chat_stream = text, streamed


def of_metrics(module: ModuleType) -> None:
    kind = module.TokenizerMetricsCollector
    observe = kind.observe_one_finished_request

    def changed(self: Any, *args: Any, **options: Any) -> None:  # noqa: ANN401
        if fault() != "nothing is counted":
            observe(self, *args, **options)

    kind.observe_one_finished_request = changed


def of_cache(module: ModuleType) -> None:
    kind = module.RadixCache
    unlock = kind.dec_lock_ref

    def changed(self: Any, node: Any, *args: Any, **options: Any) -> object:  # noqa: ANN401
        if fault() == "cache tokens are held":
            node = self.root_node
        return unlock(self, node, *args, **options)

    kind.dec_lock_ref = changed


def of_scheduler(_: ModuleType) -> None:
    held = []

    def grow() -> None:
        while True:
            time.sleep(0.1)
            if fault() == "host memory leaks":
                held.append(b"x" * (4 << 20))

    threading.Thread(target=grow, daemon=True).start()


HOOKS = {
    "sglang.srt.sampling.sampling_params": of_sampling,
    "sglang.srt.managers.io_struct": of_inputs,
    "sglang.srt.managers.tokenizer_manager": of_tokenizer,
    "sglang.srt.entrypoints.openai.serving_chat": of_chat,
    "sglang.srt.entrypoints.http_server": of_http,
    "sglang.srt.observability.metrics_collector": of_metrics,
    "sglang.srt.mem_cache.radix_cache": of_cache,
    "sglang.srt.managers.scheduler": of_scheduler,
}


class Finder:
    """Runs the hook of a module after its import."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name not in HOOKS:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]
        if spec is not None and spec.loader is not None:
            load, hook = spec.loader.exec_module, HOOKS[name]

            def exec_module(module: ModuleType) -> None:
                load(module)
                hook(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


runpy.run_path(str(Path(__file__).parents[1] / "forked_ranks/sitecustomize.py"))
sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
