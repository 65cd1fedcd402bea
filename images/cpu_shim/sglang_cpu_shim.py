"""Shim for sglang with a CPU build of torch; both files of this folder go into the engine's site-packages.

Two packages that sglang imports have no CPU build in the package registry:

- `torchvision`: its only wheel is for CUDA. Its compiled library does not load with a CPU torch, so the operators
  `torchvision::nms` and `torchvision::qnms` do not exist, and the import fails where it registers their fake kernels
  (torchvision/_meta_registrations.py). The import needs their declarations only; no server calls them.
- `triton`: not needed on a CPU, but imported by many of sglang's modules. sglang ships a stub for macOS
  (`sglang/_triton_stub.py`), which must be installed before `sglang` is imported.

The import of sglang creates a million objects, and garbage collection takes an eighth of its time in each process of a
server (9.3 s of CPU instead of 8.1, the best of six alternating runs); a higher threshold avoids that.

Python imports this file at startup because of the `.pth`, also in child processes. `torch` is imported only when a
program imports `torchvision` or `sglang`.
"""

import gc
import importlib.machinery  # the stub uses it without importing it
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

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


class _BeforeImport:
    """A finder that finds nothing, but runs an action before the first import of a name."""

    def __init__(self, actions: dict[str, Callable[[], None]]) -> None:
        self._actions = actions

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        action = self._actions.pop(name, None)
        if action is not None:
            action()


sys.meta_path.insert(0, _BeforeImport({"torchvision": _declare_torchvision_operators, "sglang": _prepare_sglang}))
