"""CPU versions of the copies between device and host pools, in the layout that Mooncake's store needs.

Python imports this file at startup if `PYTHONPATH` has its folder. On a GPU these functions are sglang kernels (0.5.14,
mem_cache/memory_pool_host.py); `images/cpu_shim` has those for the layout of a file store.
"""

import importlib.abc
import importlib.machinery
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

Tensor: TypeAlias = Any  # torch is not imported here
Tensors: TypeAlias = Sequence[Tensor]


def _to_device(
    *, src_ptrs: Tensors, dst_ptrs: Tensors, src_indices: Tensor, dst_indices: Tensor, layer_id: int, page_size: int
) -> None:
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[src_indices // page_size, layer_id, src_indices % page_size]


def _to_host(*, src_ptrs: Tensors, dst_ptrs: Tensors, src_indices: Tensor, dst_indices: Tensor, page_size: int) -> None:
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, source in enumerate(src_ptrs):
        target, layer = dst_ptrs[number // layers], number % layers
        target[dst_indices // page_size, layer, dst_indices % page_size] = source[src_indices]


class _AddCopies(importlib.abc.MetaPathFinder):
    """Adds the copies to the module of the host pools, after the shim has added its own."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "sglang.srt.mem_cache.memory_pool_host":
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _then_add(spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


def _then_add(execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def execute_and_add(module: ModuleType) -> None:
        execute(module)
        vars(module).update(transfer_kv_per_layer_direct_pf_lf=_to_device, transfer_kv_all_layer_direct_lf_pf=_to_host)

    return execute_and_add


sys.meta_path.insert(0, _AddCopies())
runpy.run_path(str(Path(__file__).parents[1] / "forked_ranks/sitecustomize.py"))
