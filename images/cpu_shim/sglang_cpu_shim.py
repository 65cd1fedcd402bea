"""Shim for sglang with a CPU build of torch; both files of this folder go into the engine's site-packages.

Two packages that sglang imports have no CPU build in the package registry:

- `torchvision`: its only wheel is for CUDA. Its compiled library does not load with a CPU torch, so the operators
  `torchvision::nms` and `torchvision::qnms` do not exist, and the import fails where it registers their fake kernels
  (torchvision/_meta_registrations.py). The import needs their declarations only; no server calls them.
- `triton`: not needed on a CPU, but imported by many of sglang's modules. sglang ships a stub for macOS
  (`sglang/_triton_stub.py`), which must be installed before `sglang` is imported.

The tiers of the KV cache (`enable-hierarchical-cache`) need two changes: the host's pool must not be pinned, because
pinning needs a GPU, and the copies of the `direct` backend come with sglang's GPU kernels. A small pool must also start
where less than sglang's reserve of 10 GiB is free. Written for 0.5.14.

The import of sglang creates a million objects, and garbage collection takes an eighth of its time in each process of a
server (9.3 s of CPU instead of 8.1, the best of six alternating runs); a higher threshold avoids that.

Python imports this file at startup because of the `.pth`, also in child processes. `torch` is imported only when a
program imports `torchvision` or `sglang`.
"""

import functools
import gc
import importlib.machinery  # the stub uses it without importing it
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

_libraries: list[object] = []  # an operator exists as long as the library object that declared it


def _declare_torchvision_operators() -> None:
    import torch

    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)


def _prepare_sglang() -> None:
    gc.set_threshold(50_000, 20, 20)  # Python 3.11 has 700, 10, 10
    _install_triton_stub()


def _install_triton_stub() -> None:
    package = importlib.util.find_spec("sglang")
    source = Path(package.submodule_search_locations[0]) / "_triton_stub.py" if package else None
    if source is None or not source.is_file():
        return
    spec = importlib.util.spec_from_file_location("_sglang_triton_stub", source)
    stub = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stub)
    stub.install()  # does nothing where a real triton is installed


def _unpin_host_pool(module: ModuleType) -> None:
    pool, module.HICACHE_HOST_MEMORY_RESERVE_BYTES = module.HostKVCache, 0
    initialize = pool.__init__

    @functools.wraps(initialize)
    def unpinned(self: object, *args: object, **options: object) -> None:
        bound = inspect.signature(initialize).bind(self, *args, **options)
        bound.arguments["pin_memory"] = False
        initialize(*bound.args, **bound.kwargs)

    pool.__init__ = unpinned


def _add_copies(module: ModuleType) -> None:
    def copy(*, src_layers: list, dst_layers: list, src_indices: object, dst_indices: object, **_: object) -> None:
        for source, target in zip(src_layers, dst_layers, strict=True):
            target[dst_indices] = source[src_indices]

    module.transfer_kv_direct = copy


class _BeforeImport:
    """A finder that finds nothing, but runs an action before the first import of a name."""

    def __init__(self, actions: dict[str, Callable[[], None]]) -> None:
        self._actions = actions

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        action = self._actions.pop(name, None)
        if action is not None:
            action()


class _AfterImport:
    """A finder that runs an action on a module after its import."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        action = self._actions.pop(name, None)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if action is not None else None
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            action(module)

        spec.loader.exec_module = execute_and_act
        return spec


_POOLS = "sglang.srt.mem_cache"
sys.meta_path[:0] = [
    _BeforeImport({"torchvision": _declare_torchvision_operators, "sglang": _prepare_sglang}),
    _AfterImport({f"{_POOLS}.pool_host.base": _unpin_host_pool, f"{_POOLS}.memory_pool_host": _add_copies}),
]
