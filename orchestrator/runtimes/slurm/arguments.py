"""The first step of a job in the site's container: the engine in the image validates the server's arguments.

Only the nodes have the image. The checker program and its input are in the run directory, which the container mounts at
the same path. Rejected arguments are written there too.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orchestrator.core.safe_paths import FileName
from orchestrator.core.subprocesses import run_or_127
from orchestrator.engine.server_args import ArgumentRejection, first_rejection, is_server, server_module_at
from orchestrator.images.argument_checker import argument_checker, argument_question
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.slurm.record import CHECKER, QUESTION, REJECTION
from orchestrator.runtimes.slurm.script import job_of

_ANSWERS: Final = 900.0  # seconds: a node pulls an image for its first container
REJECTED: Final = 3  # the program's exit code


def argument_files(artifacts: Artifacts) -> dict[str, str]:
    """Return the checker program and its input; {} if the interpreter has checked, or the program is not a server."""
    if job_of(artifacts.plan).container == "none" or not is_server(artifacts.command.argv):
        return {}
    question = argument_question(artifacts, None).to_json() + "\n"
    return {CHECKER: argument_checker(), QUESTION: question}


def check_arguments(argv: Sequence[str], *, run_dir: Path, cwd: str, env: dict[str, str]) -> ArgumentRejection | None:
    """Check a server's arguments before the start. Return those that the engine rejects; None if none or unknown."""
    python = argv[: server_module_at(argv) - 1]  # before `-m`
    files = [str(run_dir / FileName(name)) for name in (CHECKER, QUESTION, REJECTION)]
    done = run_or_127([*python, "-B", *files], timeout=_ANSWERS, cwd=Path(cwd), env=env)
    return rejection_in(run_dir) if done.code == REJECTED else None


def rejection_in(run_dir: Path) -> ArgumentRejection | None:
    """Return the arguments that the engine rejected in a run; None if it accepted them."""
    try:
        return first_rejection((run_dir / FileName(REJECTION)).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
