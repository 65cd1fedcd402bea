"""The tree of errors. Each has a message, a location and a hint; its class decides the exit code."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: what, where (`file:line` or a key path), and what to do next."""

    message: str
    location: str = ""
    hint: str = ""


_MAX_PROBLEMS: Final = 100  # problems shown in one message


def truncate_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the first 100 distinct problems; if there are more, a last one says so.

    The rest of the iterator is not read.
    """
    unique: dict[Problem, None] = {}
    for problem in problems:
        if len(unique) == _MAX_PROBLEMS:
            return (*unique, Problem(f"only the first {_MAX_PROBLEMS} problems are shown"))
        unique[problem] = None
    return tuple(unique)


class DeployError(Exception):
    """A bug of this tool, or a failure without a code of its own."""

    exit_code = 1

    def __init__(
        self, message: str, *, location: str = "", hint: str = "", problems: Iterable[Problem] = (), details: str = ""
    ) -> None:
        """Create an error with everything that the user sees.

        `details` is text to show unchanged below the message: log lines, a table, a diff.
        """
        super().__init__(message)
        self.message = message
        self.location = location
        self.hint = hint
        self.problems = tuple(problems)
        self.details = details

    def problems_or_self(self) -> tuple[Problem, ...]:
        """Return the problems, or the message itself as a problem if there are none."""
        return self.problems or (Problem(self.message, self.location, self.hint),)


@contextmanager
def naming_host(url: str) -> Iterator[None]:
    """Add the host, one of several, to an error of the block that does not name it; "" leaves errors unchanged."""
    try:
        yield
    except DeployError as error:
        if url not in error.message:
            error.message = f"{error.message} (on {url})"
            error.args = (error.message,)
        raise


@contextmanager
def interrupts_as_errors() -> Iterator[None]:
    """Turn Ctrl-C in the block into Interrupted, which can have a hint like other errors."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted") from error


class UsageError(DeployError):
    """An argument or option is invalid."""

    exit_code = 2


class ProfileError(DeployError):
    """A profile, catalog entry or workload is invalid, or the plan breaks a rule."""

    exit_code = 3


class HostError(DeployError):
    """The host is not ready: GPUs, devices, ports, disk, the Docker daemon, the checkpoint."""

    exit_code = 4


class CheckpointError(HostError):
    """The checkpoint is missing, incomplete or modified."""


class CheckpointNotFoundError(CheckpointError):
    """No checkpoint was found."""


class CheckpointModifiedError(CheckpointError):
    """A checkpoint that was complete has changed; it is not overwritten."""


class CheckpointMismatchError(CheckpointError):
    """The checkpoint disagrees with the profile or with its own config."""


class BuildError(DeployError):
    """An image or an environment cannot be built."""

    exit_code = 5


class PatchError(BuildError):
    """A required patch neither applies nor is present."""


class PathNotFoundError(BuildError):
    """An image does not have the path."""


class StartError(DeployError):
    """No server has this name, or the server did not start or has exited."""

    exit_code = 6


class NameTakenError(StartError):
    """A server of that name exists, or another command is working on it."""


class NotReadyError(DeployError):
    """The server started and never became ready."""

    exit_code = 7


class SmokeError(DeployError):
    """The server is ready and failed its smoke test."""

    exit_code = 8


class KernelsError(DeployError):
    """A tuned kernel table is missing, malformed or unused."""

    exit_code = 9


class BenchError(DeployError):
    """A measurement failed or is invalid."""

    exit_code = 10


class RestartLimitError(DeployError):
    """`deploy watch` has given up on all of its servers."""

    exit_code = 11


class OutputError(DeployError):
    """The command succeeded, but its result could not be written to standard output."""

    exit_code = 12


class Interrupted(DeployError):  # noqa: N818 - "interrupted" is the usual term, without "Error"
    """Ctrl-C, after the command has stopped everything it started."""

    exit_code = 130


class ReaderGone(SystemExit):
    """The reader of standard output exited (SIGPIPE) before any change."""

    exit_code = 141

    def __init__(self) -> None:
        """Create an exit with the code of a program that SIGPIPE killed; nothing is printed."""
        super().__init__(self.exit_code)


def require_all(message: str, checks: Iterable[Callable[[], object]], error: DeployError | None = None) -> None:
    """Run every check. Raises the only error, or a ProfileError with the problems of all errors.

    Checks raise UsageError or ProfileError; `error` is the error of another check.
    """
    errors: list[DeployError] = []
    for check in checks:
        try:
            check()
        except (UsageError, ProfileError) as exception:
            errors.append(exception)
    errors += [error] if error else []
    problems = tuple(dict.fromkeys(problem for error in errors for problem in error.problems_or_self()))
    if errors and problems == errors[-1].problems_or_self():
        raise errors[-1]
    if errors:
        raise ProfileError(message, problems=problems)
