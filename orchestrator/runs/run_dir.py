"""Run directories, and the lock of a name. Only the runtimes know which servers run now.

::

    runs/<name>/.lock                 locked by the command that works on this name; freed by the kernel at its exit
    runs/<name>/<time>-<digest>/      one start: plan.json, server.sh, image/, server.log, reports

`request.json` holds the version of the run's files. A run of another version is listed, but not read.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from orchestrator import __version__
from orchestrator.core.command_hints import set_profile
from orchestrator.core.errors import HostError, NameTakenError, ProfileError, StartError, UsageError
from orchestrator.core.files import atomic_write, atomic_write_all, read_file, read_private, remove_tree
from orchestrator.core.locks import LockHeldError, hold, is_held
from orchestrator.core.paths import Home
from orchestrator.core.record_version import version_problem
from orchestrator.core.safe_paths import FileName, RelativePath
from orchestrator.core.secrets import redact_data
from orchestrator.core.subprocesses import quote
from orchestrator.core.suggest import did_you_mean
from orchestrator.core.text import parse_json, printable_json
from orchestrator.core.yaml_document import Document, read_document
from orchestrator.plan.lock import Lock, parse_lock
from orchestrator.plan.plan import NAME, Plan
from orchestrator.render.artifacts import RenderedFile

REQUEST_FILE: Final = "request.json"  # the user's request, and the version of the run's files
SMOKE_FILE: Final = "smoke.json"
SOAKED: Final = "soaked"  # key of SMOKE_FILE: the seconds of the last soak that passed, and its end
STARTUP: Final = "startup"  # key of SMOKE_FILE: the seconds of the first sampled request and of the first smoke test
FIRST_SAMPLE: Final = "first sampled request"  # a stage of the start
RESULTS_FILE: Final = "results.json"  # the directories of the run's measurements
_REPLACE_HINT: Final = "`deploy up PROFILE --replace` starts it from this home; or use the home that started it"
MAX_BYTES: Final = 16 << 20  # of a result; a result with a hundred points has 1 MB
_RESERVED_BYTES: Final = 1 << 20  # slightly more than a start writes to its run directory before the server runs
_RESERVED: Final = ".reserved-"
_FILES: Final = 16  # slightly more files than a start writes for itself, and for each replica
_TIME: Final = "%Y%m%dT%H%M%SZ"
_RUN: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z-([0-9a-f]{8})(?:-[0-9]{1,4})?")  # as `open_run` names it


@dataclass(frozen=True)
class RunDir:
    """The directory of one start of a server."""

    path: Path

    def __str__(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def log(self) -> Path:
        """The path of the server's log."""
        return self.path / "server.log"

    @property
    def started(self) -> datetime | None:
        """The time of the start, from the folder's name; None if `open_run` did not make the folder."""
        with contextlib.suppress(ValueError):
            return datetime.strptime(self.path.name.partition("-")[0], _TIME).replace(tzinfo=UTC)
        return None

    @property
    def digest(self) -> str:
        """The first 8 characters of the plan's digest, from the folder's name; "" for a folder of another form."""
        match = _RUN.fullmatch(self.path.name)
        return match[1] if match else ""

    @cached_property
    def other_version(self) -> str:
        """The reason why this version of the tool cannot read the run; "" if it can."""
        record = self.read_any(REQUEST_FILE)
        return version_problem(record) if record else ""

    def write(self, files: Iterable[RenderedFile]) -> None:
        """Write rendered files, all of them or none."""
        write_files(self.path, files)

    def read(self, name: str) -> dict[str, object]:
        """Return a JSON file of this run; empty if it does not exist or the run is of another version."""
        return {} if self.other_version else self.read_any(name)

    def read_any(self, name: str) -> dict[str, Any]:
        """Return a JSON file of this run, whatever its version; empty if it does not exist or is damaged."""
        try:
            data = parse_json(read_private(self.path / FileName(name)))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def save(self, name: str, data: object) -> Path:
        """Write a report for people as JSON, with secrets redacted in its texts, and return its path."""
        return self.save_state(name, redact_data(data))

    def save_state(self, name: str, data: object) -> Path:
        """Write state for later commands as JSON, unredacted, because it has no external text. Return its path.

        An API key may equal a word of a command or the name of a profile; after its redaction, the command could not
        be repeated.
        """
        text = printable_json(json.dumps(data, indent=2, ensure_ascii=False)) + "\n"
        self.write([RenderedFile(path=name, content=text.encode(), executable=False)])
        return self.path / FileName(name)


def write_files(folder: Path, files: Iterable[RenderedFile]) -> None:
    """Write files below `folder`, all of them or none. Raises HostError if they cannot be written."""
    try:
        atomic_write_all(
            (folder / RelativePath(file.path), file.content, 0o755 if file.executable else 0o644) for file in files
        )
    except OSError as error:
        message = f"cannot write below `{folder}`: {error.strerror}"
        hint = "`deploy prune` frees disk space, or name a directory elsewhere"
        raise HostError(message, location=str(error.filename or folder), hint=hint) from error


def require_name(name: str) -> None:
    """Raise UsageError if `name` is not a valid server name, for example a path."""
    if not NAME.match(name):
        hint = "use lower-case letters and digits, separated by single `.`, `_` or `-`, at most 63 characters"
        if ":" in name and "://" not in name:
            hint = f"the URL of a server begins with its scheme: `http://{name}`"
        elif "://" in name:
            hint = "name a server of `deploy status`; this command takes no URL"
        raise UsageError(f"`{name}` is not a valid server name", hint=hint)


@contextlib.contextmanager
def name_lock(home: Home, name: str) -> Iterator[None]:
    """Hold the lock of `name`, so that no other command works on it.

    Raises NameTakenError with the pid of the command that holds it, and UsageError for an invalid name.
    """
    require_name(name)
    try:
        lock = hold(home.make_runs(name) / ".lock")
    except OSError as error:
        raise write_error(home, error) from error
    except LockHeldError as error:
        message = f"another `deploy` command is working on `{name}` (pid {error.holder})"
        hint = f"wait, or choose another name with `--name`; `deploy status {name}` shows what runs"
        raise NameTakenError(message, hint=hint) from error
    with lock:
        yield


def is_locked(home: Home, name: str) -> bool:
    """Return whether a command works on `name`."""
    return is_held(home.runs / FileName(name) / ".lock")


def open_run(home: Home, name: str, plan: Plan) -> RunDir:
    """Create a new run directory, even for a second start within one second. Raises HostError if that fails."""
    try:
        first = home.make_runs(name) / FileName(f"{datetime.now(UTC).strftime(_TIME)}-{plan.digest[:8]}")
        return RunDir(_make_folder(first))
    except OSError as error:
        raise write_error(home, error) from error


@contextlib.contextmanager
def reserved_space(home: Home, name: str, *, replicas: int = 1) -> Iterator[None]:
    """Reserve the disk space and the files that a start needs before its server runs, until the block ends.

    The free space that a file system reports ignores quotas and inodes, so this writes files of incompressible bytes.
    Raises HostError if it cannot write them. The caller holds the lock of the name.
    """
    folder = home.runs / FileName(name)
    for leftover in folder.glob(f"{_RESERVED}*"):  # of a killed command
        remove_tree(leftover, within=folder)
    with contextlib.ExitStack() as reservation:
        try:
            path = reservation.enter_context(TemporaryDirectory(prefix=_RESERVED, dir=home.make_runs(name)))
            for number in range(_FILES * (1 + replicas)):
                atomic_write(Path(path) / FileName(str(number)), os.urandom(_RESERVED_BYTES // _FILES // 2))
        except OSError as error:
            hint = "`deploy prune` frees disk space, or set DEPLOY_HOME"
            raise HostError(f"cannot write below `{folder}`: {error.strerror}", hint=hint) from error
        yield


def _make_folder(first: Path) -> Path:
    """Create the folder `first`; if it exists, `first-2` and so on. Return its path."""
    path = first
    for number in count(2):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            break
        path = first.with_name(f"{first.name}-{number}")
    return path


def write_error(home: Home, error: OSError) -> HostError:
    """Return the error for a home that cannot be written."""
    reason = f"cannot write below `{home.root}`: {error.strerror}"
    return HostError(reason, location=str(error.filename or home.root), hint="set DEPLOY_HOME")


def latest_run(home: Home, name: str) -> RunDir | None:
    """Return the newest run directory of a name, None if there is none. Raises HostError as `runs_of` does."""
    return next(iter(runs_of(home, name)), None)


def runs_of(home: Home, name: str) -> tuple[RunDir, ...]:
    """Return the run directories of a name, newest first. Links are skipped: they lead to other homes or names.

    Raises HostError if the folder of the name cannot be listed.
    """
    if not NAME.match(name):  # a path, perhaps
        return ()
    folder = home.runs / FileName(name)
    if folder.is_symlink():
        return ()
    folders = (path for path in subfolders(folder) if "-" in path.name and not path.name.startswith("."))
    return tuple(map(RunDir, sorted(folders, reverse=True)))


def runs_by_name(home: Home) -> dict[str, tuple[RunDir, ...]]:
    """Return the run directories of each name, newest first.

    A name is omitted if its folder cannot be listed: another user, or `sudo`, may have made it.
    """
    runs = {}
    for name in known_names(home):
        with contextlib.suppress(HostError):
            runs[name] = runs_of(home, name)
    return runs


def latest_runs(home: Home) -> tuple[RunDir, ...]:
    """Return the newest run directory of each name, as `runs_by_name` finds them."""
    return tuple(runs[0] for runs in runs_by_name(home).values() if runs)


def subfolders(folder: Path) -> list[Path]:
    """Return the subfolders; none if the folder is missing. Links are skipped: they lead to other homes or names.

    Raises HostError if the folder cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        hint = f"`{quote(['ls', '-ld', str(folder)])}` shows its owner; another home is set with DEPLOY_HOME"
        raise HostError(f"cannot list `{folder}`: {error.strerror}", hint=hint) from error


def runs_with_smoke(home: Home, name: str) -> Iterator[RunDir]:
    """Yield the runs of a name that have smoke results, newest first."""
    return (run for run in runs_of(home, name) if run.read(SMOKE_FILE))


def known_names(home: Home) -> tuple[str, ...]:
    """Return the names of this home's servers, running or not. Raises HostError if they cannot be listed."""
    return tuple(sorted(path.name for path in subfolders(home.runs) if NAME.match(path.name)))


def not_started(home: Home, name: str, *, hint: str = "`deploy status` lists servers") -> StartError:
    """Return the error for a name without runs. Its hint is the nearest known name, else `hint`."""
    suggestion = did_you_mean(name, {*known_names(home)} - {name})
    return StartError(f"no previous run of `{name}`", hint=suggestion or hint)


def read_plan(run: RunDir | None) -> Plan | None:
    """Return the plan of a run; None if it is missing, damaged or of another version."""
    if run is None or run.other_version:
        return None
    try:
        return Plan.from_json(read_private(run.path / "plan.json"))
    except (OSError, ValueError):
        return None


def require_plan(run: RunDir | None, name: str) -> Plan:
    """Return the plan of a run of that name. Raises StartError if it cannot be read."""
    if (plan := read_plan(run)) is None:
        raise no_plan(run, name)
    return plan


def no_plan(run: RunDir | None, name: str) -> StartError:
    """Return the error for a plan that is missing in this home, damaged, or of another version."""
    if run is None:
        return StartError(f"the plan of `{name}` is not in this home", hint=_REPLACE_HINT)
    if run.other_version:
        return version_error(run)
    return StartError(f"the plan of `{name}` cannot be read", location=str(run.path / "plan.json"), hint=_REPLACE_HINT)


def require_version(run: RunDir) -> None:
    """Raise StartError for a run of another version."""
    if run.other_version:
        raise version_error(run)


def version_error(run: RunDir) -> StartError:
    """Return the error for a run of another version, with a hint."""
    hint = version_hint(run)
    return StartError(f"cannot read the run `{run}`: {run.other_version}", location=str(run.path), hint=hint)


def version_hint(run: RunDir) -> str:
    """Return the hint for a run of another version."""
    path = quote([str(run.path)])
    return f"`deploy down {run.path.parent.name}` stops its server; then `rm -r {path}` removes the run"


def find_run(home: Home, text: str) -> RunDir | None:
    """Return the run of a directory, or of `NAME/RUN` or `RUN` in this home; None if there is none."""
    if (Path(text) / "plan.json").is_file():
        return RunDir(Path(text).absolute())
    name, _, run = text.rpartition("/")
    candidates = runs_of(home, name) if name else chain.from_iterable(runs_by_name(home).values())
    matching = (candidate for candidate in candidates if candidate.path.name == run)
    return next(matching, None) if _RUN.fullmatch(run) else None


def note_request(run: RunDir) -> None:
    """Make the commands in messages repeat the profile and the overrides of the run's request."""
    request = run.read(REQUEST_FILE).get("request")
    if isinstance(request, dict) and isinstance(request.get("overrides"), list):
        set_profile(str(request.get("profile")), [str(override) for override in request["overrides"]])


def load_lock(path: Path) -> tuple[Lock, Document]:
    """Return a lock and its document. Raises ProfileError if it is unreadable, edited or of another version."""
    try:
        text = read_file(path, max_bytes=MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        hint = "`deploy lock NAME` writes one"
        raise ProfileError(f"cannot read the lock: {reason}", location=str(path), hint=hint) from error
    document = read_document(text, str(path))
    return parse_lock(document, __version__), document
