"""Compare texts with golden files; `UPDATE_GOLDEN=1` writes the files instead."""

import os
from collections.abc import Callable, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Final

_REVIEW: Final = "`UPDATE_GOLDEN=1 pytest tests/golden` updates it: review the change"


def check_folder(folder: Path, actual: Mapping[str, str]) -> None:
    """Compare texts by relative path with the files of a folder."""
    if os.environ.get("UPDATE_GOLDEN"):
        for path in folder.rglob("*"):
            if path.is_file() and str(path.relative_to(folder)) not in actual:
                path.unlink()
        for path, text in actual.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    expected = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert actual == expected, _REVIEW


def check_file(path: Path, actual: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(actual)
    assert path.is_file(), _REVIEW
    assert actual == path.read_text(), _REVIEW


def differences(
    base: Mapping[str, str], actual: Mapping[str, str], *, counterpart: Callable[[str], str] = lambda path: path
) -> str:
    """Return the differences from a base, file by file, with one line of context.

    `counterpart` returns the path in the base for a file. A file without a counterpart is shown in full; a file of the
    base that was compared with nothing is listed.
    """
    blocks = [_difference(base.get(counterpart(path), ""), actual[path], path) for path in sorted(actual)]
    compared = {counterpart(path) for path in actual}
    blocks += [f"--- {path}\nnot there\n" for path in sorted(base.keys() - compared)]
    return "".join(blocks)


def _difference(before: str, after: str, path: str) -> str:
    lines = unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
    # Line numbers would change with every line that is added above.
    shown = ["@@" if line.startswith("@@ ") else line for line in list(lines)[2:]]
    return "\n".join([f"--- {path}", *shown, ""]) if shown else ""
