"""Make a small Quark checkpoint like GLM-5.2, or load its MTP layer with sglang's code. The engine's Python runs this.

    make DIR bf16|mxfp4   write a config with 78 layers, and small tensors for the MTP layer, with experts in that dtype
    load DIR...           config -> QuarkConfig -> sglang's draft class -> its load_weights, on CPU
    target on|off DIR...  the same for the target class on a fake gfx950, with the fusion of shared experts as the class
                          decides, or off; reports only the first exception

Several orders are separated by `--`; each runs in a fork of the process that has imported torch and sglang. `load` and
`target` print one JSON line for each checkpoint: the loaded class or sglang's exception, and the parameters that were
not written.
"""

import importlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch
from draft_model_config import (
    EXPERTS,
    HEADS,
    HIDDEN,
    INDEX_DIM,
    INDEX_HEADS,
    KV_RANK,
    LAYER,
    MOE,
    NOPE,
    Q_RANK,
    ROPE,
    VALUE,
    glm_config,
)  # fmt: skip
from safetensors.torch import load_file, save_file

_FAILURES = (AssertionError, IndexError, RuntimeError)
_UNTOUCHED = -77  # does not occur in a checkpoint of zeros
# A wrong name in the exclude list gives these modules a wrong quantization method.
MODULES = ("eh_proj", "decoder.mlp.experts", "decoder.mlp.shared_experts.gate_up_proj")


def tensors(experts: str) -> dict[str, torch.Tensor]:
    """Return the tensors of the MTP layer, by their names in the checkpoint."""
    shapes = {
        "enorm": (HIDDEN,),
        "hnorm": (HIDDEN,),
        "shared_head.norm": (HIDDEN,),
        "eh_proj": (HIDDEN, 2 * HIDDEN),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
        "self_attn.q_a_proj": (Q_RANK, HIDDEN),
        "self_attn.q_a_layernorm": (Q_RANK,),
        "self_attn.q_b_proj": (HEADS * (NOPE + ROPE), Q_RANK),
        "self_attn.kv_a_proj_with_mqa": (KV_RANK + ROPE, HIDDEN),
        "self_attn.kv_a_layernorm": (KV_RANK,),
        "self_attn.kv_b_proj": (HEADS * (NOPE + VALUE), KV_RANK),
        "self_attn.o_proj": (HIDDEN, HEADS * VALUE),
        "self_attn.indexer.wq_b": (INDEX_HEADS * INDEX_DIM, Q_RANK),
        "self_attn.indexer.wk": (INDEX_DIM, HIDDEN),
        "self_attn.indexer.k_norm": (INDEX_DIM,),
        "self_attn.indexer.weights_proj": (INDEX_HEADS, HIDDEN),
        "mlp.gate": (EXPERTS, HIDDEN),
        **{f"mlp.shared_experts.{name}": shape for name, shape in _expert_shapes()},
    }
    result = {f"{LAYER}.{name}.weight": _bf16(shape) for name, shape in shapes.items()}
    result[f"{LAYER}.mlp.gate.e_score_correction_bias"] = torch.zeros(EXPERTS)
    result[f"{LAYER}.self_attn.indexer.k_norm.bias"] = _bf16((INDEX_DIM,))
    for expert in range(EXPERTS):
        for name, (rows, columns) in _expert_shapes():
            module = f"{LAYER}.mlp.experts.{expert}.{name}"
            if experts == "bf16":
                result[f"{module}.weight"] = _bf16((rows, columns))
            else:
                result[f"{module}.weight"] = torch.zeros(rows, columns // 2, dtype=torch.uint8)
                result[f"{module}.weight_scale"] = torch.zeros(rows, columns // 32, dtype=torch.uint8)
    return result


def _expert_shapes() -> Iterator[tuple[str, tuple[int, int]]]:
    yield from (("gate_proj", (MOE, HIDDEN)), ("up_proj", (MOE, HIDDEN)), ("down_proj", (HIDDEN, MOE)))


def _bf16(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def make(folder: Path, experts: str) -> None:
    """Write config.json and one shard."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(glm_config(experts), indent=2))
    save_file(tensors(experts), folder / "model.safetensors")


class _Stub(ModuleType):
    """A package that 0.5.16 imports and the environment of 0.5.14 lacks; loading does not use it."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return dict


def stub(*names: str) -> None:
    sys.modules.update({name: _Stub(name) for name in names if importlib.util.find_spec(name) is None})


def load(number: int, folders: list[Path], *, drafts: bool = True, fuse: bool = True) -> None:
    """Load each checkpoint as a server does, or its MTP layer as a draft worker does; print a line for each."""
    from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from sglang.srt.layers.quantization.quark import quark
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    # The classes see a gfx950, whose device type in torch is "cuda".
    quark.get_device_capability = lambda: (9, 5)
    if not drafts:
        from sglang.srt.models import deepseek_v2

        deepseek_v2._is_hip = True
        torch.cuda.get_device_capability = lambda *_: (9, 5)
    arguments = ServerArgs(model_path="dummy", device="cuda", disable_shared_experts_fusion=not fuse)
    set_global_server_args_for_scheduler(arguments)
    with tempfile.TemporaryDirectory() as rendezvous:
        init_distributed_environment(
            world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=f"file://{rendezvous}/store"
        )
        initialize_model_parallel()
        for folder in folders:
            result = {"checkpoint": folder.name, "order": number, **_load_one(folder, drafts=drafts)}
            print(json.dumps(result), flush=True)


def _load_one(folder: Path, *, drafts: bool) -> dict[str, object]:
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.model_loader import loader
    from sglang.srt.server_args import get_global_server_args

    model_config = ModelConfig(str(folder), is_draft_model=drafts, dtype="bfloat16")
    initialize_dp_attention(get_global_server_args(), model_config)
    quantization = loader._get_quantization_config(model_config, LoadConfig())
    try:
        model = loader._initialize_model(model_config, LoadConfig(), quantization)
    except AttributeError as error:
        return {"loaded": None, "errors": {"": f"{type(error).__name__}: {error}"}}
    built: dict[str, object] = {"fused": model.num_fused_shared_experts}
    if drafts:
        built["methods"] = {name: type(model.get_submodule(f"model.{name}").quant_method).__name__ for name in MODULES}
        built["exclude"] = sorted(model.model.quant_config.exclude_layers)
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.element_size() > 1}
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.fill_(_UNTOUCHED)
    try:
        model.load_weights(_weights(folder))
    except _FAILURES as error:
        errors = _errors(model, folder) if drafts else {"": f"{type(error).__name__}: {error}"}
        return {**built, "loaded": None, "errors": errors}
    untouched = [name for name, parameter in parameters.items() if bool((parameter == _UNTOUCHED).all())]
    return {**built, "loaded": type(model).__name__, "untouched": untouched}


def _errors(model: torch.nn.Module, folder: Path) -> dict[str, str]:
    """Return the error of each failing tensor: sglang loads them in threads and reports only one error."""
    errors = {}
    for name, tensor in _weights(folder):
        try:
            model.load_weights([(name, tensor)])
        except _FAILURES as error:
            errors[name.removeprefix(f"{LAYER}.")] = f"{type(error).__name__}: {error}"
    return errors


def _weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for shard in sorted(folder.glob("*.safetensors")):
        yield from load_file(shard).items()


def run_order(number: int, verb: str, *locations: str) -> None:
    if verb == "make":
        make(Path(locations[0]), locations[1])
    elif verb == "load":
        load(number, [Path(location) for location in locations])
    else:
        load(number, [Path(location) for location in locations[1:]], drafts=False, fuse=locations[0] == "on")


def run_in_forks(orders: list[list[str]]) -> None:
    """Import sglang once, and run each order in a fork."""
    stub("xgrammar", "sgl_kernel")
    importlib.import_module("sglang.srt.models.registry")  # imports every model
    for number, order in enumerate(orders):
        if not (child := os.fork()):
            run_order(number, *order)
            sys.stdout.flush()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(1)


if __name__ == "__main__":
    orders = [order.split("\0") for order in "\0".join(sys.argv[1:]).split("\0--\0")]
    if orders[0][0] == "make":
        for order in orders:
            run_order(0, *order)
    else:
        run_in_forks(orders)
