"""The two ways to send token ids: the OpenAI completions API (any engine), and sglang's own `/generate`."""

import json
from typing import Final

from orchestrator.bench.prompts import Prompt
from orchestrator.bench.workload import Workload

COMPLETIONS: Final = "completions"
GENERATE: Final = "generate"
PATHS: Final = {COMPLETIONS: "/v1/completions", GENERATE: "/generate"}


def body(api: str, prompt: Prompt, workload: Workload, *, model: str, replica: int | None = None) -> tuple[bytes, ...]:
    """A request's body in pieces (prompts of one prefix share its bytes); `replica` pins it to one dp rank of sglang.

    `completions` streams only what is new; `/generate` repeats the whole text in every chunk unless the server runs
    with --incremental-streaming-output, which costs both sides CPU. So `completions` is the default.
    """
    pinned: dict[str, object] = {} if replica is None else {"routed_dp_rank": replica}
    sampling: dict[str, object] = {"temperature": workload.temperature, "ignore_eos": True}
    if api == GENERATE:
        settings = {"sampling_params": {**sampling, "max_new_tokens": workload.output_tokens}, "stream": True, **pinned}
        name = "input_ids"
    else:
        # continuous_usage_stats: the output tokens so far in every chunk, since a chunk may carry several (speculation)
        usage = {"include_usage": True, "continuous_usage_stats": True}
        settings = {
            "model": model,
            **sampling,
            "max_tokens": workload.output_tokens,
            "stream": True,
            "stream_options": usage,
            **pinned,
        }
        name = "prompt"
    opening = json.dumps(settings).removesuffix("}")
    return (f'{opening}, "{name}": ['.encode(), *prompt.array, b"]}")
