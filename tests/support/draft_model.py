"""Run by the engine's own Python: make a GLM-5.2-shaped Quark checkpoint, or load its MTP layer with sglang's own code.

    make DIR bf16|mxfp4   78 layers in name, the MTP layer's tensors with shrunken dimensions, its experts in that dtype
    load DIR...           config -> QuarkConfig -> sglang's draft class -> its load_weights, on CPU
    target on|off DIR...  the same for the target's class, which is let believe that a gfx950 is there: the shared
                          experts fused as the class decides it, or not; of its exceptions only the first

Several of them follow one another, a `--` between; each is carried out in a fork of the process that has imported
torch and sglang. `load` and `target` print one JSON line a checkpoint: the class that was loaded, or sglang's own
exception, and the parameters that nothing was written to.
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
_UNTOUCHED = -77  # what no checkpoint of zeros holds
# The modules that a wrong name in the exclude list gets built wrongly.
ASKED = ("eh_proj", "decoder.mlp.experts", "decoder.mlp.shared_experts.gate_up_proj")


def tensors(experts: str) -> dict[str, torch.Tensor]:
    """The tensors of the MTP layer, by their names in the checkpoint."""
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
    found = {f"{LAYER}.{name}.weight": _bf16(shape) for name, shape in shapes.items()}
    found[f"{LAYER}.mlp.gate.e_score_correction_bias"] = torch.zeros(EXPERTS)
    found[f"{LAYER}.self_attn.indexer.k_norm.bias"] = _bf16((INDEX_DIM,))
    for expert in range(EXPERTS):
        for name, (rows, columns) in _expert_shapes():
            module = f"{LAYER}.mlp.experts.{expert}.{name}"
            if experts == "bf16":
                found[f"{module}.weight"] = _bf16((rows, columns))
            else:
                found[f"{module}.weight"] = torch.zeros(rows, columns // 2, dtype=torch.uint8)
                found[f"{module}.weight_scale"] = torch.zeros(rows, columns // 32, dtype=torch.uint8)
    return found


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
    """A package that 0.5.16 imports and the environment of 0.5.14 lacks; nothing of it is used while loading."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return dict


def stub(*names: str) -> None:
    sys.modules.update({name: _Stub(name) for name in names if importlib.util.find_spec(name) is None})


def load(number: int, folders: list[Path], *, drafts: bool = True, fuse: bool = True) -> None:
    """Load each checkpoint as a server does, or its MTP layer as its draft worker, up to the weights; a line each."""
    from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from sglang.srt.layers.quantization.quark import quark
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    # What the classes ask of the machine is answered as on a gfx950; "cuda" is what torch calls such a GPU.
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
            found = {"checkpoint": folder.name, "order": number, **_load_one(folder, drafts=drafts)}
            print(json.dumps(found), flush=True)


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
        built["methods"] = {name: type(model.get_submodule(f"model.{name}").quant_method).__name__ for name in ASKED}
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
    """How each tensor fails that fails: sglang loads them in threads, and reports the first of them to end."""
    found = {}
    for name, tensor in _weights(folder):
        try:
            model.load_weights([(name, tensor)])
        except _FAILURES as error:
            found[name.removeprefix(f"{LAYER}.")] = f"{type(error).__name__}: {error}"
    return found


def _weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for shard in sorted(folder.glob("*.safetensors")):
        yield from load_file(shard).items()


def carry_out(number: int, verb: str, *locations: str) -> None:
    """One order; its lines bear its number."""
    if verb == "make":
        make(Path(locations[0]), locations[1])
    elif verb == "load":
        load(number, [Path(location) for location in locations])
    else:
        load(number, [Path(location) for location in locations[1:]], drafts=False, fuse=locations[0] == "on")


def carry_out_in_forks(orders: list[list[str]]) -> None:
    """Import for all of them what takes longest, and part."""
    stub("xgrammar", "sgl_kernel")
    importlib.import_module("sglang.srt.models.registry")  # which imports every model
    for number, order in enumerate(orders):
        if not (child := os.fork()):
            carry_out(number, *order)
            sys.stdout.flush()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(1)


if __name__ == "__main__":
    given = [order.split("\0") for order in "\0".join(sys.argv[1:]).split("\0--\0")]
    if given[0][0] == "make":
        for order in given:
            carry_out(0, *order)
    else:
        carry_out_in_forks(given)
