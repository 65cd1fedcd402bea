"""Real ninja and gcc do not compile kernels again that come from another host."""

import os
import subprocess
import time
from pathlib import Path

from orchestrator.engine.kernel_caches import FOLDERS
from orchestrator.kernels.disk.archive import KernelUse, read_archive, write_archive
from orchestrator.kernels.disk.kernel_folders import KernelFolders

USE = KernelUse(arch="sm90", driver="580.159", engine={"sglang": "0.5.16"}, plan="a" * 64)
NINJA = """rule compile
  depfile = $out.d
  deps = gcc
  command = gcc -MMD -MF $out.d -I{include} -c $in -o $out && touch {compiled}
rule link
  command = gcc -shared $in -o $out
build {op}/op.o: compile {op}/op.c
build {op}/op.so: link {op}/op.o
default {op}/op.so
"""


def test_restored_kernels_are_not_recompiled_for_newer_headers(tmp_path: Path) -> None:
    """At each load, flashinfer runs ninja in the folder of a kernel, with headers of the engine's installation."""
    home, include, path = tmp_path / "home", tmp_path / "include", tmp_path / "kernels.tar.gz"
    op, compiled = home / ".cache/flashinfer/op", tmp_path / "compiled"
    op.mkdir(parents=True)
    include.mkdir()
    header = include / "op.h"
    header.write_text("#define ONE 1\n")
    (op / "op.c").write_text('#include "op.h"\nint op(void) { return ONE; }\n')
    (op / "build.ninja").write_text(NINJA.format(include=include, compiled=compiled, op=op))
    flashinfer = next(folder for folder in FOLDERS if folder.name == "flashinfer")
    caches = KernelFolders({"flashinfer": (flashinfer, home / ".cache/flashinfer")}, dict)

    def ninja() -> str:
        return subprocess.run(["ninja", "-C", str(op)], check=True, capture_output=True, text=True).stdout

    ninja()
    assert compiled.exists()
    write_archive(path, USE, [], caches.files())
    installed = time.time_ns() + 1_000_000  # on the other host the engine is installed later
    (tmp_path / "home").rename(tmp_path / "first host")
    compiled.unlink()
    os.utime(header, ns=(installed, installed))
    time.sleep(0.01)
    assert caches.add(read_archive(path)) == 6  # source, build.ninja, object, library, log, deps
    assert "no work to do" in ninja()
    assert not compiled.exists()
    os.utime(header)
    ninja()
    assert compiled.exists()  # a later change of a header still counts
