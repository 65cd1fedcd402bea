"""Running a program that may hang, with time limits for its work and for its exit."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from orchestrator.core import subprocesses
from orchestrator.core.files import open_to_append
from orchestrator.core.polling import poll_until


class ExitReason(StrEnum):
    """Reason for the end of a program."""

    EXITED = "exited"
    TIME_LIMIT = "stopped at the time limit"
    HUNG = "stopped: did not exit after its work"


@dataclass(frozen=True, kw_only=True)
class ProgramExit:
    """The end of a program; `code` is None if it was stopped."""

    reason: ExitReason
    code: int | None


@dataclass(frozen=True, kw_only=True)
class TunerTimeouts:
    """Seconds: for the work, from its end to the exit, between two polls, from SIGTERM to SIGKILL."""

    total: float
    shutdown: float
    poll: float
    grace: float


class TunerRunner(Protocol):
    """Function that runs a tuner; tests replace it."""

    def __call__(
        self, argv: Sequence[str], *, log: Path, limits: TunerTimeouts, finished: Callable[[], bool]
    ) -> ProgramExit:
        """Run `argv` within `limits`, append its output to `log`; `finished` returns whether its work is done."""


def run_with_limits(
    argv: Sequence[str], *, log: Path, limits: TunerTimeouts, finished: Callable[[], bool]
) -> ProgramExit:
    """Run a tuner as a process, and always stop it. Raises ProgramMissingError if the program is missing."""
    with open_to_append(log) as output, subprocesses.start(argv, output=output) as program:
        try:
            return _wait(program, limits, finished)
        finally:
            program.end(signal.SIGTERM, grace=limits.grace)  # the whole group: the tuner has a worker per GPU


def _wait(program: subprocesses.Program, limits: TunerTimeouts, finished: Callable[[], bool]) -> ProgramExit:
    def ends() -> bool:
        return program.wait_for(limits.poll) is not None or finished()

    done = poll_until(bool, ends, within=limits.total, pause=0)  # `wait_for` waits between two polls
    if (code := program.wait_for(limits.shutdown if done else 0)) is not None:
        return ProgramExit(reason=ExitReason.EXITED, code=code)
    return ProgramExit(reason=ExitReason.HUNG if done else ExitReason.TIME_LIMIT, code=None)
