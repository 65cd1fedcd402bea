"""Where things lie: the data that ships with the tool, and the tool's home directory on this machine.

::

    $DEPLOY_HOME/                     default: $XDG_DATA_HOME/deploy, else ~/.local/share/deploy
        environments/<digest>/        Python environments of engines (process runtime)
        models/<name>/                checkpoints, staged or generated
        overlays/<model>/<patches>/   a checkpoint with its patched config.json
        runs/<name>/<run>/            what was done: plan, rendered files, command, log, record, reports
        kernels/                      measured rows of tuned tables
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import HostError
from orchestrator.core.files import private_folder


def data_root() -> Path:
    """The directory that holds profiles/, patches/ and images/: inside an installed wheel, or the repository."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "_data"
    return shipped if shipped.is_dir() else package.parent


@dataclass(frozen=True)
class Home:
    """The tool's home directory, and the names below it."""

    root: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Home":
        """`$DEPLOY_HOME`, else the XDG data directory. Raises HostError where that cannot be a directory."""
        if explicit := environ.get("DEPLOY_HOME"):
            root = Path(explicit).expanduser().absolute()
        else:
            data = environ.get("XDG_DATA_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".local/share")
            root = Path(data).expanduser().absolute() / "deploy"
        there = next(path for path in (root, *root.parents) if os.path.lexists(path))
        if not there.is_dir():
            what = "a link to nothing" if there.is_symlink() else "not a directory"
            raise HostError(f"`{there}` is {what}", hint="set DEPLOY_HOME to a directory where you may write")
        return cls(root)

    @property
    def environments(self) -> Path:
        """Python environments, one a requirement digest."""
        return self.root / "environments"

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

    def make_runs(self, name: str) -> Path:
        """The directory of a name's runs, made where it is missing; it is this user's alone. Raises OSError."""
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        private_folder(self.runs)
        return private_folder(self.runs / name)
