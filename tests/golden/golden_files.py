"""Expected texts on disk, and what a test compares with them. `UPDATE_GOLDEN=1` writes them instead."""

import os
from collections.abc import Callable, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Final

_REVIEW: Final = "`UPDATE_GOLDEN=1 pytest tests/golden` writes it anew: review the change"


def check_folder(folder: Path, found: Mapping[str, str]) -> None:
    """Hold texts by relative path against the files of a folder."""
    if os.environ.get("UPDATE_GOLDEN"):
        for path in folder.rglob("*"):
            if path.is_file() and str(path.relative_to(folder)) not in found:
                path.unlink()
        for path, text in found.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    expected = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert found == expected, _REVIEW


def check_file(path: Path, found: str) -> None:
    """Hold a text against a file."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found)
    assert path.is_file(), _REVIEW
    assert found == path.read_text(), _REVIEW


def differences(
    base: Mapping[str, str], found: Mapping[str, str], *, counterpart: Callable[[str], str] = lambda path: path
) -> str:
    """What differs from a base, file by file, with one line of context.

    `counterpart` gives the file of the base that a file is compared with. A file whose counterpart is missing is shown
    whole. A file of the base that nothing was compared with is named.
    """
    blocks = [_difference(base.get(counterpart(path), ""), found[path], path) for path in sorted(found)]
    compared = {counterpart(path) for path in found}
    blocks += [f"--- {path}\nnot there\n" for path in sorted(base.keys() - compared)]
    return "".join(blocks)


def _difference(before: str, after: str, path: str) -> str:
    lines = unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
    # Line numbers would change with every line added above.
    shown = ["@@" if line.startswith("@@ ") else line for line in list(lines)[2:]]
    return "\n".join([f"--- {path}", *shown, ""]) if shown else ""
