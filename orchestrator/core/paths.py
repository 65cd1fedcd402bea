"""Where things lie: the data that ships with the tool, and the tool's home directory on this machine.

::

    $DEPLOY_HOME/                     default: $XDG_DATA_HOME/deploy, else ~/.local/share/deploy
        environments/<digest>/        Python environments of engines (process runtime)
        models/<name>/                checkpoints, staged or generated
        overlays/<model>/<patches>/   a checkpoint with its patched config.json
        packages/<digest>/            a patched copy of an interpreter's sglang (process runtime)
        job-packages/<digest>/        the same (slurm runtime)
        runs/<name>/<run>/            what was done: plan, rendered files, command, log, record, reports
        kernels/                      measured rows of tuned tables
        images/                       what registries said of images: variables and labels
        argument-checks/              what engines said of command lines
        far/<digest>/overlays/…       what is made here for a far machine, by its URL
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

_ELSEWHERE: Final = "set DEPLOY_HOME to a directory where you may write"


def data_root() -> Path:
    """The directory that holds profiles/, patches/ and images/: inside an installed wheel, or the repository."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "_data"
    return shipped if shipped.is_dir() else package.parent


@dataclass(frozen=True)
class Home:
    """The tool's home directory, and the names below it.

    In `inputs` an earlier start has left files of the catalog, which go before all others where it is repeated.
    """

    root: Path
    inputs: Path | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Home":
        """`$DEPLOY_HOME`, else the XDG data directory.

        Raises HostError where that cannot be a directory, or where somebody else could put profiles and templates into
        it, which say what is started.
        """
        root = _root(environ)
        there = next(path for path in (root, *root.parents) if os.path.lexists(path))
        if not there.is_dir():
            what = "a link to nothing" if there.is_symlink() else "not a directory"
            raise HostError(f"`{there}` is {what}", hint=_ELSEWHERE)
        if there == root:
            _require_ours(root, root.stat())
        return cls(root)

    @property
    def environments(self) -> Path:
        """Python environments, one a requirement digest."""
        return self.root / "environments"

    @property
    def packages(self) -> Path:
        """Patched copies of sglang, one a digest of sources and patches."""
        return self.root / "packages"

    @property
    def job_packages(self) -> Path:
        """The same, for servers that run as jobs of a cluster."""
        return self.root / "job-packages"

    @property
    def models(self) -> Path:
        """Checkpoints by model name."""
        return self.root / "models"

    @property
    def runs(self) -> Path:
        """Run directories by server name."""
        return self.root / "runs"

    @property
    def kernels(self) -> Path:
        """Measured rows of tuned kernel tables."""
        return self.root / "kernels"

    @property
    def images(self) -> Path:
        """The user's own templates of images, and what registries said of images."""
        return self.root / "images"

    @property
    def argument_checks(self) -> Path:
        """Verdicts of engines on command lines, one a digest of the question."""
        return self.root / "argument-checks"

    def made_for(self, far: str | None) -> Path:
        """Where files for a machine are made that lie below its own home there: nowhere else's are taken for them."""
        return self.root if far is None else self.root / "far" / FileName(hashlib.sha256(far.encode()).hexdigest()[:12])

    def holds(self, run_dir: Path, name: str) -> bool:
        """Whether that is the directory of a run of this name, in this home: a label or a comment may name any."""
        return run_dir.is_dir() and self.runs.resolve() / FileName(name) in run_dir.resolve().parents

    def make_runs(self, name: str) -> Path:
        """The directory of a name's runs, made where it is missing; it is this user's alone. Raises OSError.

        `runs` may be a link, to another disk; a name in it that leads elsewhere would be somebody else's runs.
        """
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder = private_dir(self.runs) / FileName(name)
        if folder.is_symlink():
            raise OSError(errno.ELOOP, "it is a link", str(folder))
        return private_dir(folder)


def _root(environ: Mapping[str, str]) -> Path:
    explicit = environ.get("DEPLOY_HOME")
    data = environ.get("XDG_DATA_HOME") or str(Path(environ.get("HOME", "~"), ".local/share"))
    try:
        return Path(explicit or Path(data, "deploy")).expanduser().absolute()
    except RuntimeError as error:  # `~` of nobody
        raise HostError(f"there is no home directory for `{explicit or data}`", hint=_ELSEWHERE) from error


def _require_ours(root: Path, status: os.stat_result) -> None:
    if status.st_uid not in {os.geteuid(), 0}:
        raise HostError(f"`{root}` belongs to another user", hint=_ELSEWHERE)
    if status.st_mode & 0o022:
        mend = f"chmod -R go-w {shlex.quote(str(root))}"
        raise HostError(
            f"other users may write to `{root}`", hint=f"`{mend}`, or set DEPLOY_HOME to a directory of yours"
        )
