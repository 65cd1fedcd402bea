"""The one error tree. A user sees a message, the place, a hint; the exit code is the class.

::

    DeployError              1   a fault of the tool itself, or none of the below
    ├── UsageError           2   an argument or option that cannot be taken
    ├── ProfileError         3   a profile, or a plan that its rules refuse
    ├── HostError            4   the machine is not ready: GPUs, devices, ports, disk, docker
    │   └── WeightsError     4   a checkpoint that is missing, incomplete or altered
    │       ├── NoWeightsError 4 a checkpoint that is not there at all
    │       ├── ChangedWeightsError 4 a checkpoint that was whole once
    │       └── FactsError   4   a checkpoint that is another one than the profile, or its own config, says
    ├── BuildError           5   an image or an environment that cannot be built
    │   └── PatchError       5   a required patch that neither applies nor is present
    ├── StartError           6   no such server, not started, or it has ended
    │   └── NameTakenError   6   that name is in use
    ├── NotReadyError        7   the server started and never became ready
    ├── SmokeError           8   the server is ready and does not serve as its profile says
    ├── KernelsError         9   a tuned kernel table is missing, malformed or not used
    ├── BenchError          10   a measurement that could not be made or is not valid
    ├── HealingError        11   a server that `deploy watch` has given up on
    ├── OutputError         12   the command succeeded, and its result could not be written to standard output
    └── Interrupted        130   Ctrl-C, after everything that was started has been taken down
    ReaderGone (SystemExit) 141  the reader of standard output ended (SIGPIPE) before anything was changed
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: what, where (`file:line` or a key path), and what to do next."""

    message: str
    where: str = ""
    hint: str = ""


_MOST: Final = 100  # problems that one message shows


def truncate_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """The first hundred of what is wrong, each once, and a word where there is more; the rest is not looked for."""
    found: dict[Problem, None] = {}
    for problem in problems:
        if len(found) == _MOST:
            return (*found, Problem(f"there is more: these are the first {_MOST}"))
        found[problem] = None
    return tuple(found)


class DeployError(Exception):
    """A fault of this tool, or a failure that is none of those below."""

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        where: str = "",
        hint: str = "",
        problems: Iterable[Problem] = (),
        details: str = "",
    ) -> None:
        """Hold what a user is shown.

        `details` is text to show as it stands below the message: log lines, a table, a diff.
        """
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        self.problems = tuple(problems)
        self.details = details

    def each(self) -> tuple[Problem, ...]:
        """What is wrong, one by one: the problems, or the message itself where it stands alone."""
        return self.problems or (Problem(self.message, self.where, self.hint),)


class UsageError(DeployError):
    """An argument or option that cannot be taken."""

    exit_code = 2


class ProfileError(DeployError):
    """A profile, a part of one or a workload that cannot be read, or a plan that its rules refuse."""

    exit_code = 3


class HostError(DeployError):
    """The machine is not ready: GPUs, devices, ports, disk, the Docker daemon, the checkpoint."""

    exit_code = 4


class CheckpointError(HostError):
    """A checkpoint that is missing, incomplete or altered."""


class CheckpointNotFoundError(CheckpointError):
    """A checkpoint that is not there at all."""


class CheckpointModifiedError(CheckpointError):
    """A checkpoint that was whole once: it is not fetched over."""


class CheckpointMismatchError(CheckpointError):
    """A checkpoint that is another one than the profile, or its own config, says."""


class BuildError(DeployError):
    """An image or an environment that cannot be built."""

    exit_code = 5


class PatchError(BuildError):
    """A required patch that neither applies nor is already present."""


class StartError(DeployError):
    """No server of that name, one that was not started, or one that has ended."""

    exit_code = 6


class NameTakenError(StartError):
    """A server of that name exists, or another command is working on it."""


class NotReadyError(DeployError):
    """The server started and never became ready."""

    exit_code = 7


class SmokeError(DeployError):
    """The server is ready and does not serve as its profile says."""

    exit_code = 8


class KernelsError(DeployError):
    """A tuned kernel table is missing, malformed or not used."""

    exit_code = 9


class BenchError(DeployError):
    """A measurement that could not be made, or that is not valid."""

    exit_code = 10


class RestartLimitError(DeployError):
    """A server that `deploy watch` has given up on."""

    exit_code = 11


class OutputError(DeployError):
    """The command succeeded, but its result could not be written to standard output."""

    exit_code = 12


class Interrupted(DeployError):  # noqa: N818 - the field says "interrupted"
    """Ctrl-C, after everything that was started has been taken down."""

    exit_code = 130


class ReaderGone(SystemExit):
    """The reader of standard output ended (SIGPIPE) before the command had changed anything."""

    exit_code = 141

    def __init__(self) -> None:
        """End the process quietly, with the code of a program that SIGPIPE has killed."""
        super().__init__(self.exit_code)
