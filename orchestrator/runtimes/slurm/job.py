"""The program of a job on its node. It supervises a server until the server has ended and its VRAM is released.

In the site's container, a program first checks that RDMA can work there, and the engine validates the server's
arguments; if either check fails, nothing is started.

`python -P -m orchestrator.runtimes.slurm.job RUN_DIR` reads its request from a file in the run directory. The file has
the secrets, so only this user may read it and the program removes it at once; a job that may be requeued keeps it until
`deploy down`. SIGTERM ends the server in order; a second SIGTERM kills it.

On several nodes, the program starts itself once for each rank, with the rank's number and the first node's address:
rank 0 on its own node, every other rank in a job step. Only rank 0 gets the signal and stops the others: sglang
crashes if another rank ends before it (seen with 0.5.14).
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import DeployError, HostError, StartError
from orchestrator.core.files import read_private, remove_file
from orchestrator.core.procfs import VARIABLE
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import redact, set_known
from orchestrator.core.streams import ignore_sigpipe, install_streams, write
from orchestrator.core.subprocesses import Program, python_module_argv, start
from orchestrator.engine.launch import rank_argv
from orchestrator.runtimes.replicas import rank_dir, rank_dirs, run_root
from orchestrator.runtimes.slurm.jobs import node_address
from orchestrator.runtimes.slurm.record import QUESTION, REJECTION, SERVER, START
from orchestrator.runtimes.supervisor.main import StartRequest, serve
from orchestrator.runtimes.supervisor.record import read_record

if TYPE_CHECKING:
    from orchestrator.engine.server_args import ArgumentRejection

_KEEPS: Final = "keep"
_REJECTED: Final = 3  # exit code
_POLL: Final = 0.5  # seconds
_MAX_STOP_GAP: Final = 20.0  # seconds between the ends of two ranks
_MAX_VRAM_WAIT: Final = 910.0  # seconds: `hosts.vram.LIMIT`, and a margin
# A rank gets all of the job's resources on its node (srun(1), 22.05).
_STEP: Final = ("srun", "--nodes=1", "--ntasks=1", "--whole", "--mpi=none", "--quiet")


def main() -> int:
    """Run the server of a run directory to its end; return its exit code."""
    install_streams()
    ignore_sigpipe()
    run_dir, rank, head = Path(sys.argv[1]), 0, ""
    if len(sys.argv) > 2:
        rank, head = int(sys.argv[2]), sys.argv[3]
    try:
        if not head:
            remove_file(run_dir / FileName(REJECTION))  # a requeued job checks again
            if rank_count := len(rank_dirs(run_dir)):
                return _start_ranks(run_dir, rank_count)
        request = _consume_request(rank_dir(run_dir, rank))
        request = replace(request, argv=rank_argv(request.argv, rank=rank, head=head))
        set_known(request.secrets)
        os.environ[VARIABLE] = request.token
        if (rejection := _rejection(run_dir, rank, request)) is not None:
            write(sys.stderr, f"{redact(rejection.summary)}\n")
            return _REJECTED
        code = serve(request, _wait_for_rank_0 if rank else _stop_on_signal)
    except DeployError as error:
        write(sys.stderr, f"{error.message}\n")
        return 1
    _wait_for_vram(run_dir)
    return code


def start_file(request: dict[str, Any], *, requeue: bool) -> str:
    """Return the content of the file that `main` reads: the request, and whether a requeued job may need it again."""
    return json.dumps({"request": request, _KEEPS: requeue})


def _consume_request(run_dir: Path) -> StartRequest:
    path = run_dir / START
    try:
        data = json.loads(read_private(path))
        request = StartRequest.read(json.dumps(data["request"]))
        if not data[_KEEPS]:
            remove_file(path)
    except OSError as error:
        raise StartError(f"cannot read `{path}` on this node: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        hint = "cancel the job, and start the server again with `deploy up PROFILE`"
        raise StartError(f"`{path}` is not in this version's format", hint=hint) from error
    port = request.url.rpartition(":")[2]
    return replace(request, record=SERVER, url=f"http://{os.environ.get('SLURMD_NODENAME', 'localhost')}:{port}")


def _rejection(run_dir: Path, rank: int, request: StartRequest) -> "ArgumentRejection | None":
    """Return the arguments that the engine rejects. Rank 0 checks them; with RDMA, each rank does on its node."""
    question = run_dir / QUESTION
    if not question.is_file() or (rank and not json.loads(question.read_text(encoding="utf-8"))["rdma"]):
        return None  # if there is no file, the interpreter checked before the submission
    from orchestrator.runtimes.slurm.arguments import check_arguments  # noqa: PLC0415 - see `_wait_for_vram`

    return check_arguments(request.argv, run_dir=run_dir, cwd=request.cwd, env=request.env)


def _stop_on_signal(server: Program) -> None:
    """Forward SIGTERM to the server; send SIGKILL at the second one."""

    def end(*_: object) -> None:
        server.send(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *_: server.send(signal.SIGKILL))

    signal.signal(signal.SIGTERM, end)


def _wait_for_rank_0(server: Program) -> None:
    """Ignore the first SIGTERM, which Slurm may send to every step of a job: a rank ends when rank 0 does."""
    signal.signal(signal.SIGTERM, lambda *_: _stop_on_signal(server))


def _start_ranks(run_dir: Path, rank_count: int) -> int:
    """Run a server on several nodes to its end; return the exit code of rank 0.

    If another rank ends, so does the server: rank 0 notices a crash within 7 s (0.5.14), but not a lost node.
    """
    head = node_address(os.environ["SLURMD_NODENAME"])

    def started(rank: int, *prefix: str) -> Program:
        words = python_module_argv("orchestrator.runtimes.slurm.job", str(run_dir), str(rank), head)
        return start([*prefix, *words], tied=True)

    first = started(0)
    signal.signal(signal.SIGTERM, lambda *_: first.send(signal.SIGTERM))
    steps = [started(rank, *_STEP, f"--relative={rank}") for rank in range(1, rank_count + 1)]
    while first.code is None and all(step.code is None for step in steps):
        time.sleep(_POLL)
    for _ in range(2):  # the second signal kills its server
        if first.wait_for(_MAX_STOP_GAP) is None:
            first.send(signal.SIGTERM)
    for rank, step in enumerate(steps, start=1):
        if step.wait_for(_MAX_STOP_GAP) is None and _server_has_ended(rank_dir(run_dir, rank)):
            step.wait_for(_MAX_VRAM_WAIT)
    return first.wait()


def _server_has_ended(run_dir: Path) -> bool:
    """Return whether the server of a rank has exited; its program may still wait for VRAM."""
    with suppress(HostError):
        return (record := read_record(run_dir, SERVER)) is not None and record.exit_code is not None
    return False


def _wait_for_vram(run_dir: Path) -> None:
    """Hold the node's GPUs until they are drained: Slurm gives them to the next job as soon as this one ends."""
    from orchestrator.hosts.gpus import read_gpus  # noqa: PLC0415 - not needed while the server runs
    from orchestrator.hosts.survey import local  # noqa: PLC0415 - not needed while the server runs
    from orchestrator.hosts.vram import wait_for_vram_release  # noqa: PLC0415 - not needed while the server runs
    from orchestrator.runs.run_dir import RunDir, require_plan  # noqa: PLC0415 - not needed while the server runs

    try:
        plan = require_plan(RunDir(run_dir), run_root(run_dir).parent.name)
        if plan.gpus and plan.gateway is None:
            vendor, requested = plan.hardware.vendor, os.environ.get("SLURM_JOB_GPUS", "")
            gpus = [int(number) for number in requested.split(",") if number.isdecimal()] or list(plan.gpus)
            wait_for_vram_release(lambda: read_gpus(vendor, local), gpus=gpus)
    except DeployError as error:
        write(sys.stderr, f"{error.message}\n")


if __name__ == "__main__":
    sys.exit(main())
