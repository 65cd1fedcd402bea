"""Test that only two modules change the disk."""

import ast
from collections.abc import Iterator

import pytest
from sources import Nodes, nodes_in, nodes_of

from orchestrator.core.paths import data_root

PACKAGE = data_root() / "orchestrator"
# `liveness` and `drain` run alone in a container of an image that `deploy` did not build, from a ConfigMap.
ALLOWED = {"core/safe_paths.py", "core/files.py", "engine/liveness.py", "engine/drain.py"}
FLAGS = {"O_CREAT", "O_TRUNC", "O_APPEND"}  # of `os.open`
METHODS = {"unlink", "rmdir", "rename", "write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "link_to"}
METHODS |= {"rmtree", "copytree", "make_archive", "FileHandler"}  # under any module name
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
PROGRAMS = {"rm", "rmdir", "mv", "cp", "ln", "unlink", "truncate", "tee", "dd", "install"}
OF_ARCHIVES = {"extractall", "extract"}


def changes(nodes: Nodes) -> Iterator[str]:
    """Yield each expression that changes a file or directory, but not creating directories or temporary files."""
    modules = {"os": OF_OS, "shutil": OF_SHUTIL}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            changing = modules[node.module] | {"*"}
            yield from (f"from {node.module} import {a.name}" for a in node.names if a.name in changing)
        elif isinstance(node, ast.Import):  # after a renaming import, the calls would not be detected
            yield from (f"import {a.name} as {a.asname}" for a in node.names if a.name in modules and a.asname)
        elif isinstance(node, ast.Attribute):
            owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            if node.attr in METHODS | FLAGS | OF_ARCHIVES | modules.get(owner, set()):
                yield ast.unparse(node)
        if isinstance(node, ast.Call) and any(
            finder(node) for finder in (_writes, _replaces_a_file, _removes_anything)
        ):
            yield ast.unparse(node)


def _removes_anything(call: ast.Call) -> bool:
    """Return whether a call is `remove_tree(path, within=path.parent)`, which allows every path, or a program that
    removes or moves files.
    """
    if isinstance(call.func, ast.Name | ast.Attribute) and ast.unparse(call.func).endswith("remove_tree"):
        within = {ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "within"}
        return any(f"{ast.unparse(path)}.parent" in within for path in call.args)
    words = [arg.elts[0] for arg in call.args if isinstance(arg, ast.List | ast.Tuple) and arg.elts]
    return any(isinstance(word, ast.Constant) and word.value in PROGRAMS for word in words)


def _writes(call: ast.Call) -> bool:
    """Return whether a call opens a file with a mode other than reading.

    An archive in memory (`fileobj=`) is not a file. A mode in a variable counts as writing.
    """
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    match call.func:
        case ast.Name("open") | ast.Attribute(ast.Name("io" | "codecs" | "gzip" | "bz2" | "lzma" | "builtins"), "open"):
            modes = [*call.args[1:2]]
            if any(isinstance(arg, ast.Starred) for arg in call.args) or None in keywords:
                return True
        case ast.Name("ZipFile") | ast.Attribute(_, "ZipFile"):
            modes = [*call.args[1:2]]
        case ast.Attribute(owner, "open") if not (isinstance(owner, ast.Name) and owner.id in {"os", "servers"}):
            # Other objects have `open` too: a server by its name, a connection by a call or its own options.
            kinds = ast.Constant | ast.Name | ast.IfExp | ast.JoinedStr
            modes = [mode for mode in call.args[:1] if isinstance(mode, kinds)]
            if set(keywords) - {"mode", "buffering", "encoding", "errors", "newline"}:
                return False
        case _:
            return False
    modes += [keywords["mode"]] if "mode" in keywords else []
    return any(not isinstance(mode, ast.Constant) or bool(set(str(mode.value)) & set("wax+")) for mode in modes)


def _replaces_a_file(call: ast.Call) -> bool:
    """Return whether a call is `path.replace(other)`; `str.replace` takes two arguments."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "replace" or call.keywords:
        return False
    return len(call.args) == 1 or ast.unparse(call.func.value).endswith("Path")


def test_only_file_modules_write_to_disk() -> None:
    writes = {
        str(path.relative_to(PACKAGE)): lines
        for path in sorted(PACKAGE.rglob("*.py"))
        if "_data" not in path.parts and (lines := [*changes(nodes_of(path))])
    }
    assert {module: lines for module, lines in writes.items() if module not in ALLOWED} == {}


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
        *("import os as o", "import shutil as s", "from shutil import *", "Path.replace(a, b)", "o.path.os.remove(x)"),
        *('io.open("p", "w")', "open(x, **more)", "open(*all)", 'ZipFile(x, "w")', 'zipfile.ZipFile(x, mode="a")'),
        *('x.open("w" if a else "r")', 'x.open(f"{m}b")', "logging.FileHandler(x)", 'run(["rm", "-rf", x])'),
        *("remove_tree(x, within=x.parent)", "files.remove_tree(self.root, within=self.root.parent)"),
    ],
)
def test_disk_write_is_detected(source: str) -> None:
    assert [*changes(nodes_in(source))]


@pytest.mark.parametrize(
    "source",
    [
        *('text.replace("a", "b")', "replace(plan, x=1)", "open(x)", 'open(x, "rb")', 'x.open("rb")'),
        *("ZipFile(x)", "remove_tree(x, within=y)", 'docker.run("rm", x)', "io.open(x)"),
    ],
)
def test_reads_are_not_taken_for_writes(source: str) -> None:
    assert not [*changes(nodes_in(source))]
