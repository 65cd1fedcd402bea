"""What changes the disk stands in two modules; everything else asks them."""

import ast
from collections.abc import Iterator

import pytest

from orchestrator.core.paths import data_root

PACKAGE = data_root() / "orchestrator"
# `life` is a program in a container of somebody else's image, where it is alone: a ConfigMap brings that one file.
ALLOWED = {"core/safe_paths.py", "core/files.py", "engine/liveness.py"}
FLAGS = {"O_CREAT", "O_TRUNC", "O_APPEND"}  # of `os.open`
METHODS = {"unlink", "rmdir", "rename", "write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "link_to"}
OF_OS = {
    "remove",
    "unlink",
    "rename",
    "renames",
    "replace",
    "link",
    "symlink",
    "rmdir",
    "removedirs",
    "truncate",
    "mknod",
}
OF_SHUTIL = {
    "rmtree",
    "move",
    "copy",
    "copy2",
    "copyfile",
    "copytree",
    "copymode",
    "copystat",
    "unpack_archive",
    "chown",
}
OF_ARCHIVES = {"extractall", "extract"}


def changes(tree: ast.AST) -> Iterator[str]:
    """Each place that changes a file or a directory, but for making a directory and a temporary file."""
    modules = {"os": OF_OS, "shutil": OF_SHUTIL}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            yield from (f"from {node.module} import {a.name}" for a in node.names if a.name in modules[node.module])
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in METHODS | FLAGS | OF_ARCHIVES | modules.get(owner, set()):
                yield ast.unparse(node)
        if isinstance(node, ast.Call) and (_writes(node) or _replaces_a_file(node)):
            yield ast.unparse(node)


def _writes(call: ast.Call) -> bool:
    """Whether it opens a file by a mode that is not one for reading, `open(path, "w")` and `path.open("w")` alike.

    An archive in memory (`fileobj=`) is no file. A mode in a variable counts as one that writes.
    """
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    match call.func:
        case ast.Name("open"):
            modes = [*call.args[1:2]]
        case ast.Attribute(owner, "open") if not (isinstance(owner, ast.Name) and owner.id == "os"):
            # Something else may be opened: a connection, by a call or with options that no file has.
            modes = [mode for mode in call.args[:1] if isinstance(mode, ast.Constant | ast.Name)]
            if set(named) - {"mode", "buffering", "encoding", "errors", "newline"}:
                return False
        case _:
            return False
    modes += [named["mode"]] if "mode" in named else []
    return any(not isinstance(mode, ast.Constant) or bool(set(str(mode.value)) & set("wax+")) for mode in modes)


def _replaces_a_file(call: ast.Call) -> bool:
    """`path.replace(other)`: that of a text takes two arguments, that of a dataclass is a function."""
    named = isinstance(call.func, ast.Attribute) and call.func.attr == "replace"
    return named and len(call.args) == 1 and not call.keywords


def test_nothing_else_changes_the_disk() -> None:
    found = {
        str(path.relative_to(PACKAGE)): places
        for path in sorted(PACKAGE.rglob("*.py"))
        if "_data" not in path.parts and (places := [*changes(ast.parse(path.read_text()))])
    }
    assert {module: places for module, places in found.items() if module not in ALLOWED} == {}


@pytest.mark.parametrize(
    "source",
    [
        *(
            "import shutil; shutil.rmtree(x)",
            "from shutil import rmtree",
            "os.remove(x)",
            "os.replace(a, b)",
            "os.link(a, b)",
        ),
        *(
            "x.unlink()",
            "x.rename(y)",
            "x.replace(y)",
            "x.write_text(y)",
            "x.write_bytes(y)",
            "x.symlink_to(y)",
            "x.touch()",
        ),
        *('open(x, "w")', 'open(x, mode="ab")', 'open(x, "r+")', 'x.open("x")', "open(x, mode)", "x.open(mode=m)"),
        *(
            "shutil.copytree(a, b)",
            "shutil.move(a, b)",
            "archive.extractall(x)",
            "from os import symlink",
            "os.open(x, os.O_WRONLY | os.O_CREAT)",
            "f = os.unlink",
        ),
    ],
)
def test_a_change_of_the_disk_is_found(source: str) -> None:
    assert [*changes(ast.parse(source))]


@pytest.mark.parametrize(
    "source", ['text.replace("a", "b")', "replace(plan, x=1)", "open(x)", 'open(x, "rb")', 'x.open("rb")']
)
def test_what_reads_is_not(source: str) -> None:
    assert not [*changes(ast.parse(source))]
