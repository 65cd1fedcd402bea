"""The catalog of profiles and the entries they name: the user's own files first, then the shipped ones.

The user's files are in the tool's home, in the same folders as in the repository: `$DEPLOY_HOME/profiles`, `patches`,
`images`. A file there replaces the shipped file of the same name; a note tells the user so.
"""

import filecmp
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Final

from orchestrator.core.console import note
from orchestrator.core.errors import ProfileError
from orchestrator.core.paths import Home, data_root
from orchestrator.core.safe_paths import RelativePath
from orchestrator.core.suggest import did_you_mean

_NAME: Final = re.compile(r"[A-Za-z0-9_][\w.+-]{0,99}(/[A-Za-z0-9_][\w.+-]{0,99})*", re.ASCII)

_MAX_FILE: Final = 4 << 20  # bytes; the largest file that ships has 0.1 MB
_AWAY: Final = "remove it to use the built-in entry, or replace it with a file"
_MAX_NAME: Final = 400  # characters of a name, including its folders


class EntryKind(Enum):
    """The kinds of catalog entries, each with the path of its files; `*` stands for the name."""

    PROFILE = "profiles/*.yaml"
    HARDWARE = "profiles/hardware/*.yaml"
    MODEL = "profiles/models/*.yaml"
    ENGINE = "profiles/engines/*.yaml"
    FLAGS = "profiles/engines/flags/*.json"
    NETWORK = "profiles/networks/*.yaml"
    WORKLOAD = "profiles/workloads/*.yaml"
    TEXT = "profiles/texts/*.txt"
    PUBLISHED = "profiles/published/*.yaml"
    KERNELS = "profiles/kernels/*.yaml"
    KNOWN_ISSUES = "profiles/known_issues/*.yaml"
    RECIPE = "profiles/recipes/*.yaml"
    PATCH = "patches/*/patch.yaml"
    IMAGE_FILE = "images/*"

    def file(self, name: str) -> RelativePath:
        """Return the path of an entry's file, relative to a root of the catalog. Raises UnsafeValueError."""
        return RelativePath(self.value.replace("*", name))


def is_valid_name(name: str) -> bool:
    """Return whether a catalog entry may have this name; names appear in paths and messages."""
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class Catalog:
    """The directories that contain `profiles`, `patches` and `images`; earlier ones take precedence."""

    roots: tuple[Path, ...]

    @classmethod
    def of(cls, home: Home) -> "Catalog":
        """Return the catalog of a home and the shipped files, preceded by the saved inputs of a run, if any."""
        return cls((*([home.inputs] if home.inputs else []), home.root, data_root()))

    @classmethod
    def shipped(cls) -> "Catalog":
        """Return the catalog of the shipped files only."""
        return cls((data_root(),))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Catalog":
        """Return the catalog of the home in the environment. Raises HostError as `Home.from_environment` does."""
        return cls.of(Home.from_environment(environ))

    def find(self, kind: EntryKind, name: str) -> Path | None:
        """Return the file of an entry, None if there is none. Raises ProfileError if it is not a file, or too large.

        An unusable entry in the user's home is an error; the shipped file does not silently replace it.
        """
        if not is_valid_name(name):
            return None
        paths = [path for root in self.roots if _is_entry(root, path := root / kind.file(name))]
        if len(paths) > 1 and not filecmp.cmp(paths[0], paths[1], shallow=False):
            _note_override(*paths[:2])
        return paths[0] if paths else None

    def path(self, kind: EntryKind, name: str, *, location: str = "") -> Path:
        """Return the file of an entry as `find` does. Raises ProfileError, with the nearest name, if there is none."""
        if path := self.find(kind, name):
            return path
        kind_name = kind.name.lower().replace("_", " ")
        hint = did_you_mean(name, self.names(kind)) or "`deploy profiles` lists them"
        raise ProfileError(f"no {kind_name} `{name}` found", location=location, hint=hint)

    def names(self, kind: EntryKind) -> tuple[str, ...]:
        """Return the names of all entries of a kind, sorted."""
        return tuple(sorted({name for root in self.roots for name in _names(root, kind)}))

    def all(self, kind: EntryKind) -> tuple[Path, ...]:
        """Return the files of all entries of a kind, sorted by name."""
        return tuple(self.path(kind, name) for name in self.names(kind))

    def display_path(self, path: Path) -> str:
        """Return a path for messages: relative to the tool's root for shipped files."""
        root = self.roots[-1]
        return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _is_entry(root: Path, path: Path) -> bool:
    """Return whether `path`, below `root`, exists. Raises ProfileError if it is not a file, or too large."""
    if not path.is_file():
        below = (*takewhile(lambda folder: folder != root, path.parents), root)
        nearest = next(filter(os.path.lexists, below), None)
        if nearest and not nearest.is_dir():
            raise ProfileError(f"`{nearest}` is not a directory", hint=_AWAY)
        if os.path.lexists(path):
            raise ProfileError(f"`{path}` is not a file", hint=_AWAY)
        return False
    if (size := path.stat().st_size) > _MAX_FILE:
        raise ProfileError(f"`{path}` has {size:,} bytes, more than {_MAX_FILE:,}", hint=_AWAY)
    return True


def _names(root: Path, kind: EntryKind) -> Iterator[str]:
    before, _, after = kind.value.partition("*")
    for path in root.glob(kind.value):
        name = path.relative_to(root).as_posix().removeprefix(before).removesuffix(after)
        if _NAME.fullmatch(name) and path.is_file():
            yield name


@cache
def _note_override(used: Path, hidden: Path) -> None:
    """Print the note once per process, because a command may look up the same file several times."""
    note(f"using `{used}` instead of `{hidden}`")
