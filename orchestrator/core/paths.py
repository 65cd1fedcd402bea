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
        """`$DEPLOY_HOME`, else the XDG data directory."""
        if explicit := environ.get("DEPLOY_HOME"):
            return cls(Path(explicit).expanduser().absolute())
        data = environ.get("XDG_DATA_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".local/share")
        return cls(Path(data).expanduser().absolute() / "deploy")

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
