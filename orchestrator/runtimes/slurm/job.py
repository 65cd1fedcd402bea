"""The program of a job on its node: run the supervisor of a server until it has ended and its VRAM is released.

In a container of the site, the engine validates the server's arguments first; if it rejects them, nothing is started.

`python -P -m orchestrator.runtimes.slurm.job RUN_DIR` reads its request from a file of the run directory. Only this
user may read the file, and it is removed at once, since it holds the secrets; a job that may be requeued keeps it until
`deploy down`. SIGTERM ends the server in order, a second one kills it.
"""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import DeployError, HostError, StartError
from orchestrator.core.files import read_private, remove_file
from orchestrator.core.procfs import VARIABLE
from orchestrator.core.secrets import redact, set_known
from orchestrator.core.streams import ignore_sigpipe, take_streams, write
from orchestrator.core.subprocesses import Program
from orchestrator.runtimes.slurm.record import QUESTION, SERVER, START
from orchestrator.runtimes.supervisor.main import StartRequest, serve

if TYPE_CHECKING:
    from orchestrator.engine.server_args import ArgumentRefusal

_KEEPS: Final = "keep"
_REFUSED: Final = 3  # exit code


def main() -> int:
    """Run the server of a run directory to its end; return its exit code."""
    take_streams()
    ignore_sigpipe()
    run_dir = Path(sys.argv[1])
    try:
        request = _take_request(run_dir)
        set_known(request.secrets)
        os.environ[VARIABLE] = request.token
        if (refusal := _refusal(run_dir, request)) is not None:
            write(sys.stderr, f"sglang rejected its arguments: {redact(refusal.text)}\n")
            return _REFUSED
        code = serve(request, _end_when_asked)
    except StartError as error:
        write(sys.stderr, f"{error.message}\n")
        return 1
    _wait_for_vram(run_dir)
    return code


def start_file(request: dict[str, Any], *, requeue: bool) -> str:
    """Return the content of the file that `main` reads: the request, and whether a requeued job may need it again."""
    return json.dumps({"request": request, _KEEPS: requeue})


def _take_request(run_dir: Path) -> StartRequest:
    path = run_dir / START
    try:
        data = json.loads(read_private(path))
        request = StartRequest.read(json.dumps(data["request"]))
        if not data[_KEEPS]:
            remove_file(path)
    except OSError as error:
        raise StartError(f"cannot read `{path}` on this node: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StartError(f"`{path}` is not in this version's format") from error
    port = request.url.rpartition(":")[2]
    return replace(request, record=SERVER, url=f"http://{os.environ.get('SLURMD_NODENAME', 'localhost')}:{port}")


def _refusal(run_dir: Path, request: StartRequest) -> "ArgumentRefusal | None":
    if not (run_dir / QUESTION).is_file():
        return None  # the interpreter checked before the submission
    from orchestrator.runtimes.slurm.arguments import judge_arguments  # noqa: PLC0415 - see `_wait_for_vram`

    return judge_arguments(request.argv, run_dir=run_dir, cwd=request.cwd, env=request.env)


def _end_when_asked(server: Program) -> None:
    """Forward SIGTERM to the server; send SIGKILL at the second one."""

    def end(*_: object) -> None:
        server.send(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *_: server.send(signal.SIGKILL))

    signal.signal(signal.SIGTERM, end)


def _wait_for_vram(run_dir: Path) -> None:
    """Hold the node's GPUs until they are drained: Slurm gives them to the next job as soon as this one ends."""
    from orchestrator.hosts.gpus import read_gpus  # noqa: PLC0415
    from orchestrator.hosts.survey import local  # noqa: PLC0415 - not needed while the server runs
    from orchestrator.hosts.vram import wait_for_vram_release  # noqa: PLC0415 - not needed while the server runs
    from orchestrator.plan.plan import Plan  # noqa: PLC0415

    try:
        plan = Plan.from_json(read_private(run_dir / "plan.json"))
        if plan.gpus and plan.gateway is None:
            vendor, given = plan.hardware.vendor, os.environ.get("SLURM_JOB_GPUS", "")
            gpus = [int(number) for number in given.split(",") if number.isdecimal()] or list(plan.gpus)
            wait_for_vram_release(lambda: read_gpus(vendor, local), gpus=gpus)
    except (HostError, OSError, ValueError) as error:
        write(sys.stderr, f"{error.message if isinstance(error, DeployError) else error}\n")


if __name__ == "__main__":
    sys.exit(main())
