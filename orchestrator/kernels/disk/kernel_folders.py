"""The folders of compiled kernels on this host."""

import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path

from orchestrator.core.files import add_missing, remove_tree, write_stamped
from orchestrator.core.safe_paths import FileName, RelativePath, UnsafeValueError, join
from orchestrator.engine.kernel_caches import KernelFolder, is_kernel_file, kernel_folders
from orchestrator.kernels.disk.archive import KernelArchive, KernelFile
from orchestrator.kernels.disk.ninja_times import stamped


@dataclass(frozen=True)
class KernelFolders:
    """The folders of a server that runs as this user; `folders` has paths by name. See `KernelStore`."""

    folders: Mapping[str, tuple[KernelFolder, Path]]
    engine: Callable[[], Mapping[str, str]]

    @classmethod
    def of(
        cls, env: Mapping[str, str], engine: Callable[[], Mapping[str, str]], *, aiter_dir: str | None
    ) -> "KernelFolders":
        """Return the folders of a server with these variables besides this process's."""
        env = {**os.environ, **env}
        folders = kernel_folders(env, home=env.get("HOME", "/"), user=_user(), aiter_dir=aiter_dir)
        return cls({folder.name: (folder, Path(os.path.realpath(path))) for folder, path in folders}, engine)

    def files(self) -> Iterator[KernelFile]:
        """Yield the kernels, except links and files that vanish meanwhile."""
        for name, (folder, root) in self.folders.items():
            for path in sorted(root.rglob("*")):
                below = path.relative_to(root).as_posix()
                if is_kernel_file(folder, below) and (file := _read(path, f"{name}/{below}")) is not None:
                    yield file

    def lack(self, archive: KernelArchive) -> bool:
        """Return whether any file of an archive is missing."""
        return any((path := self._path(name)) is not None and not path.exists() for name in archive.sizes)

    def add(self, archive: KernelArchive) -> int:
        """Unpack missing files; return the number of added files. Existing files remain. Raises OSError.

        Files are unpacked next to their folder and renamed into it, so that no server sees a partial file.
        """
        now, token = time.time_ns(), uuid.uuid4().hex[:12]
        with ExitStack() as cleanup:
            fresh: dict[str, Path] = {}
            for file in archive.files():
                name, _, below = file.path.partition("/")
                target = self.folders[name][1] if name in self.folders else None
                if target is None or not _is_own(target):
                    continue
                if name not in fresh:
                    fresh[name] = target.parent / FileName(f".{target.name}-{token}")
                    cleanup.callback(remove_tree, fresh[name], within=target.parent)
                content = stamped(Path(below).name, file.content, now)
                mode = 0o700 if file.executable else 0o600
                write_stamped(join(fresh[name], RelativePath(below)), content, mode=mode, time_ns=now)
            return sum(add_missing(path, self.folders[name][1]) for name, path in fresh.items())

    def _path(self, name: RelativePath) -> Path | None:
        folder, _, below = name.partition("/")
        return self.folders[folder][1] / RelativePath(below) if folder in self.folders else None


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers; Inductor cannot start for such a user
        return str(os.geteuid())


def _is_own(target: Path) -> bool:
    """Return whether a folder is missing or belongs to this user, as code must not go into another user's folder."""
    return not target.exists() or target.stat().st_uid == os.geteuid()


def _read(path: Path, name: str) -> KernelFile | None:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            return KernelFile(path=RelativePath(name), content=stream.read(), executable=bool(status.st_mode & 0o100))
    except (OSError, UnsafeValueError):
        return None
