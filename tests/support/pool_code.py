"""Compute pool sizes of real configs with the code of one sglang wheel, without a GPU. The engine's Python runs this.

    pool_code.py UNPACKED_WHEEL     JSON on stdin, name -> case; the same names on stdout, each with its sizes

A case has a `config` (config.json), `tp`, `element` (bytes of a cached value), `drafts` (draft tokens, 0 for none),
`running` (requests), `env`, and `bounded` if the requests bound the windows. The sizes are the bytes of a token, from
`pool_configurator.py`, and the fixed bytes of requests. The classes are sglang's own, with a fake state of the server.
"""

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import server_args

Case = dict[str, Any]


def metrics(kind: Any, case: Case) -> dict[str, float]:  # noqa: ANN401 - the class `ServerArgs` of that version
    import torch
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_executor import pool_configurator as pools
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    with TemporaryDirectory() as folder, ExitStack() as stack:
        Path(folder, "config.json").write_text(json.dumps(case["config"]))
        args = kind(model_path=folder, trust_remote_code=False, skip_tokenizer_init=True)
        model = ModelConfig(folder, model_override_args="{}")
        layers = model.num_hidden_layers
        drafts = case["drafts"]
        algorithm = SpeculativeAlgorithm.EAGLE if drafts else SpeculativeAlgorithm.NONE
        requested = MagicMock()
        requested.attn_tp_size, requested.attn_dcp_size, requested.pp_size = case["tp"], 1, 1
        requested.enable_cp_tp_group_sharing = False
        memory = SimpleNamespace(
            enable_hisparse=False, enable_hierarchical_cache=False, enable_unified_cache_external_linker=False,
            disable_radix_cache=False,
        )  # fmt: skip
        backends = SimpleNamespace(dsa_prefill_backend="tilelang", dsa_decode_backend="tilelang", dsv4_attn_backend="")
        kernel = MagicMock(kernel=backends, features=MagicMock(enable_encoder_swa_bounded_replay=False))
        backends.enable_deepseek_v4_fp4_indexer = False
        spec = SimpleNamespace(
            speculative_algorithm="EAGLE" if drafts else None, speculative_num_draft_tokens=drafts or None,
            speculative_num_steps=max(drafts - 1, 1), speculative_eagle_topk=1,
        )  # fmt: skip
        schedule = SimpleNamespace(
            max_running_requests=case.get("running"), max_total_tokens=None, swa_full_tokens_ratio=0.1,
            _swa_full_tokens_ratio_explicitly_set="bounded" not in case, disable_overlap_schedule=False,
            chunked_prefill_size=8192, swa_prefix_tails=None if "bounded" in case else 0, disable_radix_cache=False,
            page_size=256,
        )  # fmt: skip
        disagg = SimpleNamespace(disaggregation_mode="null", disaggregation_decode_extra_slots=0)
        answers = {
            "get_parallel": requested, "get_memory": memory, "get_exec": kernel, "get_spec": spec,
            "get_schedule": schedule, "get_disagg": disagg, "get_model": MagicMock(qsa_indexer_dtype="auto"),
        }  # fmt: skip
        import sglang.srt.mem_cache.deepseek_v4_memory_pool as v4
        import sglang.srt.mem_cache.kv_cache_configurator as caches
        from sglang.srt import runtime_context
        from sglang.srt.configs import kimi_linear, nemotron_h
        from sglang.srt.mem_cache import allocation_sizing

        for module in (pools, caches, v4, runtime_context, kimi_linear, nemotron_h, allocation_sizing):
            for name, answer in answers.items():
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, lambda answer=answer: answer))
        for module in (pools, allocation_sizing):
            stack.enter_context(patch.object(module, "max_speculative_num_draft_tokens", lambda: drafts or None))
        if hasattr(pools, "compute_page_shard_scratch_bytes"):
            stack.enter_context(patch.object(pools, "compute_page_shard_scratch_bytes", lambda *_, **__: 0))
        split = "sglang.srt.layers.cp.utils.get_glm_dsa_layer_split_effective_num_layers"
        stack.enter_context(patch(split, lambda _, layers: layers))
        stack.enter_context(patch("sglang.srt.layers.cp.utils.get_glm_dsa_cp_layer_shard_info", lambda _: (0, 1)))
        hybrid = pools.mambaish_config(model)
        if hybrid is not None:
            stack.enter_context(patch("sglang.srt.configs.mamba_utils.divide", lambda whole, part: whole // part))
        kvc = SimpleNamespace(
            model_config=model, server_args=args, kv_cache_dtype_str="auto",
            kv_cache_dtype={1: torch.float8_e4m3fn, 2: torch.bfloat16}[case["element"]], model_dtype=torch.bfloat16,
            use_mla_backend=model.attention_arch.name == "MLA", is_draft_worker=False, mambaish_config=hybrid,
            layer_info=SimpleNamespace(start_layer=0, end_layer=layers, num_effective_layers=layers),
            spec_algorithm=algorithm, pp_size=1, attn_dp_size=1, page_size=256, device="cpu", is_hybrid_swa=True,
            sliding_window_size=getattr(model, "window_size", None),
            spec_aux_config=SimpleNamespace(  # read at spec_aux_hidden_state.py:172 for the checkpoint's MTP layers
                eagle_draft_num_layers=model.num_nextn_predict_layers if drafts else None
            ),
            fused_entry_bytes=lambda _: None,
        )  # fmt: skip
        if pools.is_deepseek_v4(model.hf_config):
            configurator = pools.DSV4PoolConfigurator(kvc)
            running = case["running"]
            fixed = (
                configurator._get_c128_state_fixed_bytes(running)
                + configurator._fixed_swa_bytes(running)
                + configurator._fixed_c4_state_bytes(running)
                + configurator._get_c2_state_fixed_bytes(running)
                + configurator._get_swa_fixed_bytes()
            )
            return {"token": configurator.bytes_per_full_token, "fixed": fixed}
        sizes = {"token": float(pools.DefaultPoolConfigurator(kvc)._cell_size)}
        if hybrid is not None:
            sizes["state"] = float(hybrid.mamba2_cache_params.mamba_cache_per_req)
        return sizes


def main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # keep sglang's output out of the result
    cases: dict[str, Case] = json.load(sys.stdin)
    for case in cases.values():
        os.environ.update(case.get("env", {}))
    server_args.pretend("rocm")
    _, kind = server_args.engine(Path(sys.argv[1]), "rocm")
    os.write(out, json.dumps({name: metrics(kind, case) for name, case in cases.items()}).encode())


if __name__ == "__main__":
    main()
