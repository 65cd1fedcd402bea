"""Paths of the shipped data and of the tool's home directory on this host.

::

    $DEPLOY_HOME/                     default: $XDG_DATA_HOME/deploy, else ~/.local/share/deploy
        environments/<digest>/        Python environments of engines (process runtime)
        models/<name>/                checkpoints, staged or generated
        overlays/<model>/<patches>/   a checkpoint with its patched config.json
        packages/<digest>/            a patched copy of an interpreter's sglang (process runtime)
        job-packages/<digest>/        a patched copy of an interpreter's sglang (slurm runtime)
        runs/<name>/<run>/            run directories: plan, artifacts, command, log, record, reports
        kernels/                      measured rows of tuned tables
        compiled-kernels/             kernels that servers have compiled, by GPU, driver and build of the engine
        images/                       the user's Dockerfile templates and requirements files
        argument-checks/              verdicts of engines on command lines
        far/<digest>/overlays/…       files made here for a remote host, by a digest of its URL
"""

import errno
import hashlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.core.errors import HostError
from orchestrator.core.files import private_dir
from orchestrator.core.safe_paths import FileName

_HOME_HINT: Final = "set DEPLOY_HOME to a directory where you may write"


def data_root() -> Path:
    """Return the directory that contains profiles/, patches/ and images/, in an installed wheel or the repository."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "_data"
    return shipped if shipped.is_dir() else package.parent


class _Folder:
    """A directory below a home; the module's docstring lists their contents."""

    def __init__(self, name: str) -> None:
        self._name = FileName(name)

    def __get__(self, home: "Home", _: type["Home"]) -> Path:
        return home.root / self._name


@dataclass(frozen=True)
class Home:
    """The tool's home directory and the paths below it.

    `inputs` is a directory with the catalog entries of an earlier run, which take precedence when the run is repeated.
    """

    root: Path
    inputs: Path | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Home":
        """Return the home at `$DEPLOY_HOME`, or in the XDG data directory.

        Raises HostError if the path cannot be a directory, or if another user can write there, because profiles and
        templates determine the commands that `deploy` runs.
        """
        root = _root(environ)
        ancestor = next(path for path in (root, *root.parents) if os.path.lexists(path))
        if not ancestor.is_dir():
            description = "a link to nothing" if ancestor.is_symlink() else "not a directory"
            raise HostError(f"`{ancestor}` is {description}", hint=_HOME_HINT)
        if ancestor == root:
            _require_private(root, root.stat())
        return cls(root)

    environments = _Folder("environments")
    packages = _Folder("packages")
    job_packages = _Folder("job-packages")
    models = _Folder("models")
    runs = _Folder("runs")
    kernels = _Folder("kernels")
    compiled_kernels = _Folder("compiled-kernels")
    images = _Folder("images")
    argument_checks = _Folder("argument-checks")

    def for_remote(self, host_url: str | None) -> Path:
        """Return the local directory for files made for the host at `host_url`; this home itself for None.

        Each remote host has a separate directory, so that files for one host are never used for another.
        """
        if host_url is None:
            return self.root
        return self.root / "far" / FileName(hashlib.sha256(host_url.encode()).hexdigest()[:12])

    def holds(self, run_dir: Path, name: str) -> bool:
        """Return whether a path, taken from a label or a comment, is a run directory of this name in this home."""
        return run_dir.is_dir() and self.runs.resolve() / FileName(name) in run_dir.resolve().parents

    def make_runs(self, name: str) -> Path:
        """Create the private directory of a name's runs if missing, and return it. Raises OSError.

        `runs` may be a link to another disk. The directory of a name must not be a link, which could lead to the runs
        of another home.
        """
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder = private_dir(self.runs) / FileName(name)
        if folder.is_symlink():
            raise OSError(errno.ELOOP, "a symbolic link", str(folder))
        return private_dir(folder)


def _root(environ: Mapping[str, str]) -> Path:
    explicit = environ.get("DEPLOY_HOME")
    data = environ.get("XDG_DATA_HOME") or str(Path(environ.get("HOME", "~"), ".local/share"))
    try:
        return Path(explicit or Path(data, "deploy")).expanduser().absolute()
    except RuntimeError as error:  # `~` of an unknown user
        raise HostError(f"no home directory found for `{explicit or data}`", hint=_HOME_HINT) from error


def _require_private(root: Path, status: os.stat_result) -> None:
    if status.st_uid not in {os.geteuid(), 0}:
        raise HostError(f"`{root}` belongs to another user", hint=_HOME_HINT)
    if status.st_mode & 0o022:
        fix = f"chmod -R go-w {shlex.quote(str(root))}"
        raise HostError(f"other users can write to `{root}`", hint=f"`{fix}`, or set DEPLOY_HOME to your own directory")
