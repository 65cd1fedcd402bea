"""Tests that the guard patch compiles with clang's HIP front end for gfx950, with real HIP and tvm-ffi headers.

The compiled file is the one that sglang's loader passes to hipcc (tvm-ffi 0.1.9). Nothing runs on a GPU, and no code is
generated: clang-tidy stops after semantic analysis, which includes templates.
"""

import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from wheels import read, unpack

from orchestrator.patches.ledger import read_diffs, read_ledger

pytestmark = [pytest.mark.compiler, pytest.mark.wheels]

CACHE = Path.home() / ".cache/deploy-tests/compiler"
HEADERS = "28ae316c5be2d33b53fae8f2151e76a758f84aa3493abafeaef935e49cc5ba07"  # libamdhip64-dev 7.2.4-1~exp2, amd64
CUH = "jit_kernel/csrc/elementwise/fused_metadata_copy.cuh"
GUARD = read_diffs(read_ledger())["rocm-cuda-runtime-guard"]

HEAD = """\
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
"""
UNIT = f"""{HEAD}#include "fused_metadata_copy.cuh"
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fused_metadata_copy_multi, (FusedMetadataCopyMultiKernel<true, false>::run));
"""


@pytest.fixture(scope="module")
def tools() -> Path:
    """Unpack clang-tidy and tvm-ffi from the package index and HIP headers from Debian experimental into a folder."""
    tree = CACHE / "tree"
    if not (tree / "usr/include/hip").is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        _pip("clang-tidy==22.1.8", tree)
        _pip("apache-tvm-ffi==0.1.9", tree)
        subprocess.run(["dpkg", "-x", str(_headers()), str(tree)], check=True)
    return tree


def _pip(package: str, tree: Path) -> None:
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tree / "python"), package]
    if subprocess.run(argv, check=False, capture_output=True).returncode != 0:
        pytest.skip(f"{package} cannot be had from the package index")


def _headers() -> Path:
    """Download the .deb through apt with a separate source list, without changing this machine's apt."""
    if shutil.which("apt-get") is None:
        pytest.skip("the HIP headers are a Debian package, and there is no apt here")
    apt = CACHE / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (apt / "sources.list").write_text(f"deb [signed-by={key}] {_mirror()} experimental main\n")
    paths = {"Etc::sourcelist": "sources.list", "State::lists": "lists", "Cache": "cache"}
    options = [word for name, path in paths.items() for word in ("-o", f"Dir::{name}={apt / path}")]
    options += ["-o", "Dir::Etc::sourceparts=-", "-o", "APT::Sandbox::User=root", "-qq"]
    for command in (["update"], ["download", "libamdhip64-dev"]):
        subprocess.run(["apt-get", *options, *command], cwd=apt, check=False, capture_output=True)
    for package in apt.glob("libamdhip64-dev_*.deb"):
        if sha256(package.read_bytes()).hexdigest() == HEADERS:
            return package
    pytest.skip("Debian experimental no longer has libamdhip64-dev 7.2.4-1~exp2")


def _mirror() -> str:
    """Return the Debian mirror that this machine uses; it also has experimental."""
    argv = ["apt-get", "indextargets", "--format", "$(SITE)", "Component: main"]
    sites = subprocess.run(argv, check=False, capture_output=True, text=True).stdout.split()
    mirrors = [site for site in sites if site.rstrip("/").endswith("/debian")]
    if not mirrors:
        pytest.skip("this machine's apt knows no mirror of Debian, which has the HIP headers")
    return mirrors[0]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return the unpatched kernels of 0.5.14."""
    return unpack("0.5.14", tmp_path, below="jit_kernel/") / "sglang"


def apply_guard(sources: Path) -> None:
    subprocess.run(["git", "apply", "-"], cwd=sources, input=GUARD, text=True, check=True)


def compile_kernel(tools: Path, sources: Path, side: str) -> tuple[int, str]:
    """Return exit code and messages of one compiler pass over the metadata copy kernel."""
    return compile_unit(tools, sources, UNIT, [sources / "jit_kernel/include", (sources / CUH).parent], side)


def compile_unit(tools: Path, sources: Path, text: str, folders: list[Path], side: str) -> tuple[int, str]:
    """Return exit code and messages of one pass over a source text, with the flags of sglang's JIT on ROCm."""
    unit = sources / "cuda.cu"
    unit.write_text(text)
    hip = ["-x", "hip", f"--cuda-{side}-only", "--offload-arch=gfx950", "-nogpulib"]
    hip += [f"--rocm-path={tools}/usr", f"--hip-path={tools}/usr"]
    flags = [
        "-std=c++17",
        "-O2",
        "-fPIC",
        "-D__HIP_PLATFORM_AMD__=1",
        "-fno-gpu-rdc",
        "-DUSE_ROCM",
        "-std=c++20",
        "-O3",
    ]
    includes = [f"-I{folder}" for folder in (tools / "python/tvm_ffi/include", tools / "usr/include", *folders)]
    argv = [
        str(tools / "python/clang_tidy/data/bin/clang-tidy"),
        "--quiet",
        "--checks=-*,misc-static-assert",
        str(unit),
        "--",
    ]
    done = subprocess.run(
        [*argv, *hip, *flags, "-DHIP_FP8_TYPE_E4M3=1", *includes],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("side", ["device", "host"])
def test_only_patched_kernel_compiles(tools: Path, sources: Path, side: str) -> None:
    code, messages = compile_kernel(tools, sources, side)
    assert code != 0
    assert "fused_metadata_copy.cuh:38:10" in messages
    assert "'cuda_runtime.h' file not found" in messages

    apply_guard(sources)
    code, messages = compile_kernel(tools, sources, side)
    assert code == 0, messages[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "right", "side"),
    [
        ("#ifdef USE_ROCX", "#ifdef USE_ROCM", "device"),
        ("threadIdx.q", "threadIdx.x", "device"),
        ("no_such_function(", "LaunchKernel(", "host"),
    ],
    ids=["wrong guard", "broken kernel", "broken launcher"],
)
def test_deliberately_broken_kernel_does_not_compile(
    tools: Path, sources: Path, wrong: str, right: str, side: str
) -> None:
    apply_guard(sources)
    text = (sources / CUH).read_text()
    assert right in text
    (sources / CUH).write_text(text.replace(right, wrong))

    code, _ = compile_kernel(tools, sources, side)

    assert code != 0


@pytest.mark.slow
def test_upstream_file_compiles(tools: Path, sources: Path) -> None:
    (sources / CUH).write_text(read("0.5.15.post1", CUH))

    assert compile_kernel(tools, sources, "device")[0] == 0


@pytest.mark.parametrize("side", ["device", pytest.param("host", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("version", "compiles"), [("0.5.18", False), ("0.5.20", True)])
def test_top_k_kernel_compiles_in_versions_given_by_ledger(
    tools: Path, tmp_path: Path, version: str, compiles: bool, side: str
) -> None:
    """`dsa-topk-v2-off` depends on the kernel's include; sglang 0.5.18 turns the kernel off, 0.5.20 turns it on."""
    package = unpack(version, tmp_path, below="kernels/jit/") / "sglang"
    jit = package / "kernels/jit"

    code, messages = compile_unit(
        tools, package, f'{HEAD}#include "deepseek_v4/topk_v2.cuh"\n', [jit / "include", jit / "csrc"], side
    )

    assert (code == 0) == compiles, messages[-3000:]
    assert compiles or "topk_impl.cuh:27:10: error: 'cooperative_groups.h' file not found" in messages
