"""Workers: processes that share the shards of a quantization, on this host or in containers of an image.

They exit with this process, even if it is killed: the kernel kills local programs, containers exit at the end of stdin.
"""

import errno
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.quantize.work_dir import WorkDir
from orchestrator.core import subprocesses
from orchestrator.core.errors import BuildError, HostError
from orchestrator.core.files import open_new
from orchestrator.core.safe_paths import CheckpointFile
from orchestrator.plan.plan import ContainerRequirements
from orchestrator.render.artifacts import container_options

_TICK: Final = 0.5
_TAIL_LINES: Final = 12
_LOG_TAIL_BYTES: Final = 64 << 10  # bytes read from the end of a worker's log
_PROGRAM: Final = "/quantize_shards.py"


@dataclass(frozen=True, kw_only=True)
class QuantizationProgress:
    """Progress of a quantization: shards, bytes of the source, and remaining seconds (None: unknown)."""

    shards: int
    total_shards: int
    done: int
    total: int
    eta: float | None


@dataclass(frozen=True, kw_only=True)
class WorkerPool:
    """One command per worker, the environment, and their containers."""

    commands: tuple[tuple[str, ...], ...]
    env: Mapping[str, str | None]
    containers: tuple[str, ...] = ()


def local_command(python: Path, program: Path, folder: WorkDir, *, workers: int, cores: int) -> WorkerPool:
    """Return workers on this host's CPU, which share its cores."""
    argv = (str(python), "-P", str(program), str(folder.root), "cpu")
    env = {"OMP_NUM_THREADS": str(max(1, cores // workers)), "HF_HUB_OFFLINE": "1"}
    return WorkerPool(commands=(argv,) * workers, env=env)


def container_command(
    image: str, program: Path, folder: WorkDir, *, source: Path, needs: ContainerRequirements, workers: int,
    group: Callable[[str], str | None],
) -> WorkerPool:  # fmt: skip
    """Return workers in containers of an image, each on its own GPU; torch calls AMD GPUs `cuda` too.

    The containers have the options of a server on that hardware and write as this user; see `container_options`.
    """
    token = secrets.token_hex(4)  # pids are not unique: a daemon serves several pid namespaces
    names = tuple(f"deploy-quantize-{os.getpid()}-{token}-{number}" for number in range(workers))
    options = [word for pair in container_options(needs, group) for word in pair]
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
    """Return the version of amd-quark in an image. Raises HostError without docker, the image or Quark."""
    code = "import importlib.metadata; print(importlib.metadata.version('amd-quark'))"
    argv = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python3", image, "-c", code]
    result = subprocesses.run_or_127(argv, timeout=600)
    if not result.ok:
        raise HostError(
            f"cannot read the version of amd-quark in `{image}`",
            hint="build an image `FROM` it with `RUN python3 -m pip install amd-quark==0.13`, and use it: `--image`",
            details=result.stderr.strip() or f"exit code {result.code}",
        )
    return result.stdout.strip()


def run_workers(
    pool: WorkerPool,
    folder: WorkDir,
    sizes: Mapping[CheckpointFile, int],
    progress: Callable[[QuantizationProgress], None],
) -> None:
    """Run the workers until all shards are finished; `sizes` are the bytes of each shard in the source.

    Raises BuildError with the last lines of a failed worker's log, OSError for a full disk; finished shards remain.
    No worker runs after the call.
    """
    resumed, start = set(folder.finished([*sizes])), time.monotonic()
    with ExitStack() as stack:
        for name in pool.containers:
            stack.callback(subprocesses.run_or_127, ["docker", "rm", "--force", name], timeout=60)
        programs = []
        for number, argv in enumerate(pool.commands):
            log = stack.enter_context(open_new(folder.root / f"worker-{number}.log"))
            program = subprocesses.start(argv, env=pool.env, stdin=subprocesses.PIPE, output=log, tied=True)
            programs.append(stack.enter_context(program))
        while any(program.code is None for program in programs):
            progress(_progress(folder, sizes, resumed, time.monotonic() - start))
            for number, program in enumerate(programs):
                if program.wait_for(_TICK / len(programs)):
                    path = folder.root / f"worker-{number}.log"
                    raise _worker_error(path, program.code or 0, shard=max(sizes.values()))
    progress(_progress(folder, sizes, resumed, time.monotonic() - start))


def _progress(
    folder: WorkDir, sizes: Mapping[CheckpointFile, int], resumed: set[CheckpointFile], seconds: float
) -> QuantizationProgress:
    shards = folder.finished([*sizes])
    done, total = sum(sizes[shard] for shard in shards), sum(sizes.values())
    done_now = sum(sizes[shard] for shard in shards if shard not in resumed)
    eta = (total - done) * seconds / done_now if done_now else None
    return QuantizationProgress(shards=len(shards), total_shards=len(sizes), done=done, total=total, eta=eta)


def _worker_error(log: Path, code: int, *, shard: int) -> BuildError | OSError:
    """Return the error of a worker; on a full disk its log may be empty. `shard` is the size of the largest shard."""
    if shutil.disk_usage(log.parent).free < shard:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(log.parent))
    if code == -signal.SIGKILL:
        message = "a worker was killed, probably because memory ran out"
        return BuildError(message, location=str(log), hint="quantize one shard at a time: `--workers 1`")
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    return BuildError(f"a worker of Quark failed with exit code {code}", location=str(log), details="\n".join(lines))
