"""Workers: processes that share the shards of a quantization, here or in containers of an image, watched to their end.

Whatever ends this process ends them: the kernel where they are programs of this machine, the end of their standard
input where they are in a container.
"""

import errno
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.quantize.work_dir import WorkDir
from orchestrator.core import subprocesses
from orchestrator.core.errors import BuildError, HostError
from orchestrator.core.files import open_new
from orchestrator.core.safe_paths import CheckpointFile
from orchestrator.plan.plan import ContainerRequirements
from orchestrator.render.artifacts import needs_options

_TICK: Final = 0.5
_SHOWN_LINES: Final = 12
_LOG_TAIL_BYTES: Final = 64 << 10  # bytes at the end of a worker's log
_DOCKER_ERRORS: Final = (124, 125, 127)  # the exit codes of a daemon that fails, and of no docker or no end
_PROGRAM: Final = "/quantize_shards.py"


@dataclass(frozen=True, kw_only=True)
class QuantizationProgress:
    """How far it is: shards, bytes of the source, and seconds to go at the pace of this run (None: unknown)."""

    shards: int
    total_shards: int
    done: int
    total: int
    eta: float | None


@dataclass(frozen=True, kw_only=True)
class WorkerPool:
    """One command a worker, their environment, and the containers that are theirs."""

    commands: tuple[tuple[str, ...], ...]
    env: Mapping[str, str | None]
    containers: tuple[str, ...] = ()


def local_command(python: Path, program: Path, folder: WorkDir, *, workers: int, cores: int) -> WorkerPool:
    """Workers on this machine's CPU, which share its cores."""
    argv = (str(python), "-P", str(program), str(folder.root), "cpu")
    env = {"OMP_NUM_THREADS": str(max(1, cores // workers)), "HF_HUB_OFFLINE": "1"}
    return WorkerPool(commands=(argv,) * workers, env=env)


def container_command(
    image: str, program: Path, folder: WorkDir, *, source: Path, needs: ContainerRequirements, workers: int,
    group: Callable[[str], str | None],
) -> WorkerPool:  # fmt: skip
    """Workers in containers of an image, each on a GPU of its own; torch calls AMD's `cuda` as well.

    They are given what a server on that hardware is, and write as this user; `group` as of `needs_options`.
    """
    start = secrets.token_hex(4)  # a pid is one for each namespace of them, and a daemon serves several
    names = tuple(f"deploy-quantize-{os.getpid()}-{start}-{number}" for number in range(workers))
    options = [word for pair in needs_options(needs, group) for word in pair]
    options += ["--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp", "--env", "HF_HUB_OFFLINE=1"]
    options += ["--volume", f"{source}:{source}:ro", "--volume", f"{folder.root}:{folder.root}"]
    options += ["--volume", f"{program}:{_PROGRAM}:ro"]
    commands = tuple(
        ("docker", "run", "--rm", "--init", "--interactive", "--name", name, *options, "--entrypoint", "python3",
         image, _PROGRAM, str(folder.root), f"cuda:{number}")
        for number, name in enumerate(names)
    )  # fmt: skip
    return WorkerPool(commands=commands, env={}, containers=names)


def quark_version(image: str) -> str:
    """The version of amd-quark in an image. Raises HostError without docker, without the image, and without Quark."""
    told = "import importlib.metadata; print(importlib.metadata.version('amd-quark'))"
    argv = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python3", image, "-c", told]
    done = subprocesses.run_or_127(argv, timeout=600)
    if done.code in _DOCKER_ERRORS:
        said = next((line for line in done.stderr.splitlines() if line.startswith("docker: ")), done.stderr.strip())
        raise HostError(f"cannot run `{image}`: {said}", hint="name a local image, or one that can be pulled")
    if not done.ok:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.code}"])[-1]
        raise HostError(
            f"`{image}` has no amd-quark: {last}",
            hint="build one `FROM` it with `RUN python3 -m pip install amd-quark==0.13`, and name that one: `--image`",
        )
    return done.stdout.strip()


def available_memory() -> int | None:
    """Bytes of memory that a program can be given without swapping; None where the kernel does not say."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def run_workers(
    pool: WorkerPool,
    folder: WorkDir,
    sizes: Mapping[CheckpointFile, int],
    progress: Callable[[QuantizationProgress], None],
) -> None:
    """Let the workers do what is left of the shards, whose sizes in the source are given in bytes.

    Raises BuildError with the last lines of a worker that failed, OSError for a full disk; what is done stays. However
    this is left, no worker is left running.
    """
    before, began = set(folder.finished([*sizes])), time.monotonic()
    with ExitStack() as held:
        for name in pool.containers:
            held.callback(subprocesses.run_or_127, ["docker", "rm", "--force", name], timeout=60)
        programs = []
        for number, argv in enumerate(pool.commands):
            log = held.enter_context(open_new(folder.root / f"worker-{number}.log"))
            program = subprocesses.start(argv, env=pool.env, stdin=subprocesses.PIPE, output=log, tied=True)
            programs.append(held.enter_context(program))
        while any(program.code is None for program in programs):
            progress(_progress(folder, sizes, before, time.monotonic() - began))
            for number, program in enumerate(programs):
                if program.wait_for(_TICK / len(programs)):
                    raise _worker_error(folder, number, program.code or 0, shard=max(sizes.values()))
    progress(_progress(folder, sizes, before, time.monotonic() - began))


def _progress(
    folder: WorkDir, sizes: Mapping[CheckpointFile, int], before: set[CheckpointFile], seconds: float
) -> QuantizationProgress:
    done = folder.finished([*sizes])
    here, total = sum(sizes[shard] for shard in done), sum(sizes.values())
    now = sum(sizes[shard] for shard in done if shard not in before)
    eta = (total - here) * seconds / now if now else None
    return QuantizationProgress(shards=len(done), total_shards=len(sizes), done=here, total=total, eta=eta)


def _worker_error(folder: WorkDir, number: int, code: int, *, shard: int) -> BuildError | OSError:
    """The error of a worker; on a full disk it may have logged nothing. `shard` is the size of the largest one."""
    log = folder.root / f"worker-{number}.log"
    if code == -signal.SIGKILL:
        message = "a worker was killed, probably because memory ran out"
        return BuildError(message, where=str(log), hint="fewer at once: `--workers 1`")
    lines, full = _last_lines(log), os.strerror(errno.ENOSPC)
    if any(full in line for line in lines) or (not lines and shutil.disk_usage(folder.root).free < shard):
        return OSError(errno.ENOSPC, full, str(folder.root))
    if any("C++ compiler" in line or "g++: not found" in line or "ninja" in line for line in lines):
        message = "Quark could not compile its kernels"
        return BuildError(message, where=str(log), hint="install a C++ compiler (g++)", details="\n".join(lines))
    return BuildError(f"a worker of Quark failed with exit code {code}", where=str(log), details="\n".join(lines))


def _last_lines(log: Path) -> Sequence[str]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()[-_SHOWN_LINES:]
