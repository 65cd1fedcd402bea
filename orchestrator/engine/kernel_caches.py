"""The folders for kernels compiled by an engine. Pure: variables and home directory are parameters.

Sources: sglang 0.5.14, 0.5.16, 0.5.23 (environ.py, jit_kernel/utils, deep_gemm_wrapper/compile_utils.py): since 0.5.18
Triton, Inductor, CUDA and flashinfer compile below SGLANG_CACHE_DIR, since 0.5.21 TileLang too; flashinfer 0.6
(jit/env.py). Untested, on ROCm: aiter (jit/core.py; aiter #3706: templates are built in ~/.aiter/build), FlyDSL
(aiter/aot/flydsl/moe.py; without its variable aiter uses jit/flydsl_cache), MIOpen (cache and user database).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final


@dataclass(frozen=True, kw_only=True)
class KernelFolder:
    """A folder of compiled kernels; `default` is relative to the home directory of the server's user.

    If set, `variable` moves it to `below` in the variable's directory. Only files that match `only` are kernels.
    """

    name: str
    default: str
    variable: str
    below: str = ""
    only: tuple[str, ...] = ("*",)
    never: tuple[str, ...] = ()


FOLDERS: Final = (
    # Other contents: tables of embeddings, links of model streamers, and the P2P access between a host's GPUs.
    KernelFolder(
        name="sglang",
        default=".cache/sglang",
        variable="SGLANG_CACHE_DIR",
        never=("ple/*", "model_streamer/*", "gpu_p2p_access_cache*"),
    ),
    KernelFolder(
        name="flashinfer", default=".cache/flashinfer", variable="FLASHINFER_WORKSPACE_BASE", below=".cache/flashinfer"
    ),
    KernelFolder(name="tvm-ffi", default=".cache/tvm-ffi", variable="TVM_FFI_CACHE_DIR"),
    KernelFolder(name="triton", default=".triton/cache", variable="TRITON_CACHE_DIR"),
    KernelFolder(name="inductor", default="/tmp/torchinductor_{user}", variable="TORCHINDUCTOR_CACHE_DIR"),  # noqa: S108
    KernelFolder(name="deep-gemm", default=".cache/deep_gemm", variable="SGLANG_DG_CACHE_DIR"),
    KernelFolder(name="cuda", default=".nv/ComputeCache", variable="CUDA_CACHE_PATH"),
    KernelFolder(name="tilelang", default=".tilelang/cache", variable="TILELANG_CACHE_DIR"),
    # aiter's folder also has Python sources and the sources of its kernels.
    KernelFolder(
        name="aiter",
        default=".aiter/jit",
        variable="AITER_JIT_DIR",
        only=("*.so", "flydsl_cache/*"),
        never=("build/*",),
    ),
    KernelFolder(name="aiter-build", default=".aiter/build", variable="AITER_ROOT_DIR", below="build"),
    KernelFolder(name="flydsl", default=".flydsl/cache", variable="FLYDSL_RUNTIME_CACHE_DIR"),
    KernelFolder(name="miopen", default=".cache/miopen", variable="MIOPEN_CUSTOM_CACHE_DIR"),
    KernelFolder(name="miopen-db", default=".config/miopen", variable="MIOPEN_USER_DB_PATH"),
)
ROOT_HOME: Final = "/root"  # in a container, unless a pod is restricted
_UNFINISHED: Final = ("*.lock", "lock*", "tmp.*", "*.tmp", "__pycache__")  # and locks of other processes


def kernel_folders(
    env: Mapping[str, str], *, home: str, user: str, aiter_dir: str | None
) -> Iterator[tuple[KernelFolder, str]]:
    """Yield each folder and its path for a server with these variables; `aiter_dir` is aiter's source tree."""
    for folder in FOLDERS:
        moved = env.get(folder.variable)
        if folder.name == "aiter" and aiter_dir and not moved:
            moved = f"{aiter_dir}/aiter/jit"
        default = folder.default.format(user=user)
        path_default = default if default.startswith("/") else f"{home}/{default}"
        yield folder, f"{moved}/{folder.below}".rstrip("/") if moved else path_default


def is_kernel_file(folder: KernelFolder, path: str) -> bool:
    """Return whether a file, given by its path below the folder, belongs to a finished kernel."""
    if any(fnmatchcase(part, item) for part in path.split("/") for item in _UNFINISHED):
        return False
    if any(fnmatchcase(path, item) for item in folder.never):
        return False
    return any(fnmatchcase(path, item) for item in folder.only)
