"""The compiled kernels of a server that runs as a process of this user."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from orchestrator.core.errors import HostError
from orchestrator.core.text import parse_json
from orchestrator.kernels.disk.archive import KernelStore
from orchestrator.kernels.disk.kernel_folders import KernelFolders
from orchestrator.runtimes.base import EnginePython, HostRef, PreparedRun

# What compiles, and what is compiled in: a kernel of another version is stale, and ninja's records have the prefix.
_PACKAGES: Final = (
    *("sglang", "sglang-kernel", "sgl-kernel", "torch", "triton", "pytorch-triton-rocm", "apache-tvm-ffi", "tilelang"),
    *("flashinfer-python", "flashinfer-cubin", "deep-gemm", "amd-aiter", "aiter", "flydsl"),
)
_PROGRAM: Final = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
found = {"python": platform.python_version(), "prefix": sys.prefix}
for name in json.load(sys.stdin):
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def kernel_store(prepared: PreparedRun, host_ref: HostRef) -> KernelStore | None:  # noqa: ARG001 - of this user
    """Return the folders of the server; None if its interpreter is on its node only."""
    if prepared.engine is None:
        return None
    first = next(iter(prepared.artifacts.replicas), prepared.artifacts)
    tree = first.plan.engine.aiter_dir  # in a pod that is the image
    return KernelFolders.of(
        dict(first.command.env),
        partial(_versions, prepared.engine),
        aiter_dir=tree if tree is not None and Path(tree).is_dir() else None,
    )


def _versions(engine: EnginePython) -> Mapping[str, str]:
    done = engine.run(_PROGRAM, json.dumps(_PACKAGES))
    if not done.ok:
        raise HostError("cannot read the versions of the engine's packages", details=done.stderr.strip())
    return {str(name): str(value) for name, value in parse_json(done.stdout.splitlines()[-1]).items()}
