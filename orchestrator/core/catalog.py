"""Where profiles and all they name are looked for: in the user's own folder, then in what ships with the tool.

The user's folder is the tool's home, with the same folders as the repository: `$DEPLOY_HOME/profiles`, `patches`,
`images`. A file there takes the place of a shipped one of the same name, and says so.
"""

import filecmp
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final

from orchestrator.core.console import note
from orchestrator.core.errors import ProfileError
from orchestrator.core.paths import Home, data_root
from orchestrator.core.safe_paths import RelativePath
from orchestrator.core.suggest import did_you_mean

_NAME: Final = re.compile(r"[A-Za-z0-9_][\w.+-]{0,99}(/[A-Za-z0-9_][\w.+-]{0,99})*", re.ASCII)

_MOST: Final = 4 << 20  # bytes; the largest file that ships has 0.1 MB
_AWAY: Final = "remove it to use the one that ships, or put a file in its place"
_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_LONGEST: Final = 400  # characters of a name with its folders


class EntryKind(Enum):
    """What can be looked for, by the path of its file; `*` stands for its name."""

    PROFILE = "profiles/*.yaml"
    HARDWARE = "profiles/hardware/*.yaml"
    MODEL = "profiles/models/*.yaml"
    ENGINE = "profiles/engines/*.yaml"
    FLAGS = "profiles/engines/flags/*.json"
    WORKLOAD = "profiles/workloads/*.yaml"
    TEXT = "profiles/texts/*.txt"
    PUBLISHED = "profiles/published/*.yaml"
    KERNELS = "profiles/kernels/*.yaml"
    KNOWN_ISSUES = "profiles/known_issues/*.yaml"
    RECIPE = "profiles/recipes/*.yaml"
    PATCH = "patches/*/patch.yaml"
    IMAGE_FILE = "images/*"

    def file(self, name: str) -> RelativePath:
        """The path of an entry's file below the folders of a catalog. Raises UnsafeValueError."""
        return RelativePath(self.value.replace("*", name))


def is_valid_name(name: str) -> bool:
    """Whether a part may be called so: its name stands in paths and in messages."""
    return len(name) <= _LONGEST and _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class Catalog:
    """The folders that hold `profiles`, `patches` and `images`; what stands in an earlier one goes first."""

    roots: tuple[Path, ...]

    @classmethod
    def of(cls, home: Home) -> "Catalog":
        """The user's own folder, then what ships with the tool; before both what is kept of a start to be repeated."""
        return cls((*([home.inputs] if home.inputs else []), home.root, data_root()))

    @classmethod
    def shipped(cls) -> "Catalog":
        """What ships with the tool, alone."""
        return cls((data_root(),))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Catalog":
        """As `of`, for the home that the environment names."""
        return cls.of(Home.from_environment(environ))

    def find(self, kind: EntryKind, name: str) -> Path | None:
        """The file of that name, None where there is none. Raises ProfileError for an entry that is no small file.

        An entry of the user's that cannot be read is an error: the shipped one is not what was asked for.
        """
        if not is_valid_name(name):
            return None
        found = [path for root in self.roots if _is_entry(root, path := root / kind.file(name))]
        if len(found) > 1 and not filecmp.cmp(found[0], found[1], shallow=False):
            _say_shadowed(*found[:2])
        return found[0] if found else None

    def path(self, kind: EntryKind, name: str) -> Path:
        """As `find`. Raises ProfileError where there is none, with the nearest name."""
        if found := self.find(kind, name):
            return found
        what = kind.name.lower().replace("_", " ")
        raise ProfileError(f"there is no {what} `{name}`", hint=did_you_mean(name, self.names(kind)))

    def names(self, kind: EntryKind) -> tuple[str, ...]:
        """The names that `find` knows, sorted."""
        return tuple(sorted({name for root in self.roots for name in _names(root, kind)}))

    def all(self, kind: EntryKind) -> tuple[Path, ...]:
        """The files of a kind, in the order of their names."""
        return tuple(self.path(kind, name) for name in self.names(kind))

    def shown(self, path: Path) -> str:
        """A file's name in messages: what ships with the tool, by its path below the tool's own root."""
        root = self.roots[-1]
        return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _is_entry(root: Path, path: Path) -> bool:
    """Whether a catalog's folder has an entry there. Raises ProfileError for one that is no file, or is too large."""
    for folder in (each for each in path.parents if each.is_relative_to(root)):
        if os.path.lexists(folder) and not folder.is_dir():
            raise ProfileError(f"`{folder}` is not a directory", hint=_AWAY)
    if not os.path.lexists(path):
        return False
    if not path.is_file():
        raise ProfileError(f"`{path}` is {_what(path)}, not a file", hint=_AWAY)
    if (size := path.stat().st_size) > _MOST:
        raise ProfileError(f"`{path}` has {size:,} bytes, more than {_MOST:,}", hint=_AWAY)
    return True


def _what(path: Path) -> str:
    try:
        return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "something else")
    except OSError as error:
        return f"a link to `{path.readlink()}` ({error.strerror})" if path.is_symlink() else str(error.strerror)


def _names(root: Path, kind: EntryKind) -> Iterator[str]:
    before, _, after = kind.value.partition("*")
    for path in root.glob(kind.value):
        name = path.relative_to(root).as_posix().removeprefix(before).removesuffix(after)
        if _NAME.fullmatch(name) and path.is_file():
            yield name


@cache
def _say_shadowed(used: Path, hidden: Path) -> None:
    """Once a process: the same file is looked for at many points of one command."""
    note(f"`{used}` is used instead of `{hidden}`")
