"""Compare the capacity formulas with the sources in sglang's wheels, version by version."""

import ast
import re
import zipfile
from collections.abc import Iterator

import pytest
from wheels import wheel

from orchestrator.engine import memory
from orchestrator.engine.versions import is_since

pytestmark = [pytest.mark.wheels, pytest.mark.slow]

VERSIONS = ("0.5.14", "0.5.16", "0.5.17", "0.5.19", "0.5.23")


def functions(version: str, name: str) -> Iterator[str]:
    """Yield the code of every function with this name in a wheel, without comments and line breaks."""
    with zipfile.ZipFile(wheel(version)) as archive:
        for path in archive.namelist():
            if not re.match(r"sglang/srt/(model_executor|mem_cache|arg_groups|server_args)", path):
                continue
            source = archive.read(path).decode() if path.endswith(".py") else ""
            for node in ast.walk(ast.parse(source)) if f"def {name}(" in source else ():
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    yield ast.unparse(node)


@pytest.mark.parametrize("version", VERSIONS)
def test_kv_cache_size_follows_mem_fraction(version: str) -> None:
    (code,) = functions(version, "_profile_available_bytes")
    assert re.search(r"pre_model_load_memory \* \(1 - [\w.()]*mem_fraction_static\)", code)
    assert re.search(r"rest_memory = available_gpu_memory - ", code)


@pytest.mark.parametrize("version", VERSIONS)
def test_kv_cache_bytes_per_token_formula_matches_sources(version: str) -> None:
    """Since 0.5.17, the bytes of a token include the scales that its pool stores."""
    code = next(text for text in functions(version, "_compute_cell_size") if "kv_lora_rank" in text)
    counts = is_since(version, memory._COUNTS_SCALES)
    assert ("calculate_mla_kv_cache_dim(" in code) == counts
    assert ("model_config.kv_lora_rank + model_config.qk_rope_head_dim) * " in code.split("if is_float4")[0]) != counts
    assert "head_dim + model_config.v_head_dim" in code


@pytest.mark.parametrize("version", VERSIONS)
def test_unscaled_kv_cache_backends_match_sources(version: str) -> None:
    code = next(functions(version, "calculate_mla_kv_cache_dim"))
    raw = re.search(r"_is_hip and \(.*?dsa_prefill_backend in \(([^)]*)\)", code)
    assert raw is not None
    known = set(re.findall(r"'(\w+)'", raw[1]))
    assert {"tilelang", "aiter"} <= known <= set(memory._RAW_BACKENDS)
    assert "== 'trtllm'" in code
    assert "kv_lora_rank // quant_block_size * 4 + qk_rope_head_dim" in code


@pytest.mark.parametrize("version", VERSIONS)
def test_default_memory_reserve_matches_sources(version: str) -> None:
    names = ("_handle_gpu_memory_settings", "reserve_for_graph_mb", "handle_gpu_memory_settings")
    code = "\n".join(found for name in names for found in functions(version, name))
    assert re.search(r"reserved_mem = 512\b", code)
    assert re.search(r"(activation_tokens|max\(self\.chunked_prefill_size, 2048\)) \* 1\.5", code)
    assert re.search(r"tp_size \* \w+\.pp_size / 8 \* 1024", code)
    assert re.search(r"max\(reserved_mem, 10 \* 1024\)", code)
    assert "max_bs * 2" in code
    assert "prefill_cuda_graph_config.bs) * 8" in code
    assert "1.5 * 1024" in code
