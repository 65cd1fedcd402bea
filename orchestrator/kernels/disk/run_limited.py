"""Run a program that may never end: with an outer time limit, and with a short one once its work is done."""

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
    """How a watched program ended."""

    EXITED = "exited"
    TIME_LIMIT = "stopped at the time limit"
    HUNG = "stopped: it had finished its work and did not exit"


@dataclass(frozen=True, kw_only=True)
class ProgramExit:
    """The end of a watched program; `code` is None where it was stopped."""

    ending: ExitReason
    code: int | None


@dataclass(frozen=True, kw_only=True)
class TunerTimeouts:
    """Seconds: until its work is done, from then to its exit, between two looks, between SIGTERM and SIGKILL."""

    total: float
    shutdown: float
    look: float
    term: float


class TunerRunner(Protocol):
    """How the tuner is run; a test puts another in its place."""

    def __call__(
        self, argv: Sequence[str], *, log: Path, limits: TunerTimeouts, finished: Callable[[], bool]
    ) -> ProgramExit:
        """Run `argv` to its end or its limits, its output appended to `log`; `finished` says its work is done."""


def run_with_limits(
    argv: Sequence[str], *, log: Path, limits: TunerTimeouts, finished: Callable[[], bool]
) -> ProgramExit:
    """The TunerRunner that starts a process. Nothing of it is left, however this function is left.

    Raises ProgramMissingError where there is no such program.
    """
    with open_to_append(log) as output, subprocesses.start(argv, output=output) as program:
        try:
            return _wait(program, limits, finished)
        finally:
            program.end(signal.SIGTERM, grace=limits.term)  # with its group: the tuner has one worker a GPU


def _wait(program: subprocesses.Program, limits: TunerTimeouts, finished: Callable[[], bool]) -> ProgramExit:
    def ends() -> bool:
        return program.wait_for(limits.look) is not None or finished()

    done = poll_until(bool, ends, within=limits.total, pause=0)  # each look is a pause itself
    if (code := program.wait_for(limits.shutdown if done else 0)) is not None:
        return ProgramExit(ending=ExitReason.EXITED, code=code)
    return ProgramExit(ending=ExitReason.HUNG if done else ExitReason.TIME_LIMIT, code=None)
