"""Test that only the `streams` module writes to the standard streams."""

import ast
from collections.abc import Iterator

import pytest
from sources import Nodes, nodes_in, nodes_of

from orchestrator.core.paths import data_root

PACKAGE = data_root() / "orchestrator"
# `remote_fetch` runs on remote hosts, where only `safe_paths` exists beside it.
ALLOWED = {"core/streams.py", "checkpoints/remote_fetch.py"}
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
PRINTING = {"print", "echo", "secho", "StreamHandler", "basicConfig", "print_exc", "print_exception"}
WRITING = {"write", "writelines", "flush", "buffer", "detach", "reconfigure"}


def prints(nodes: Nodes) -> Iterator[str]:
    """Yield each expression that prints or writes to a standard stream."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            forbidden = names & STREAMS if node.module == "sys" else names & PRINTING
            yield from (f"from {node.module} import {name}" for name in sorted(forbidden))
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in PRINTING or _writes_to_descriptor(node):
                yield ast.unparse(node)
        elif isinstance(node, ast.Attribute | ast.Assign) and _is_stream(node.value):
            yield from () if isinstance(node, ast.Attribute) and node.attr not in WRITING else (ast.unparse(node),)


def _is_stream(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in STREAMS and ast.unparse(node.value) == "sys"


def _writes_to_descriptor(call: ast.Call) -> bool:
    """Return whether a call is like `os.write(1, …)`, `os.fdopen(2, "w")` or `open(1, "w")`."""
    first = call.args[0] if call.args else None
    opens = ast.unparse(call.func) in {"os.write", "os.fdopen", "open"}
    return opens and isinstance(first, ast.Constant) and first.value in {1, 2}


def test_only_streams_module_prints() -> None:
    printing = {
        str(path.relative_to(PACKAGE)): lines
        for path in sorted(PACKAGE.rglob("*.py"))
        if "_data" not in path.parts and (lines := [*prints(nodes_of(path))])
    }
    assert {module: lines for module, lines in printing.items() if module not in ALLOWED} == {}


@pytest.mark.parametrize(
    "source",
    [
        *("print(x)", "print(x, file=sys.stderr)", "typer.echo(x)", "typer.secho(x)", "from typer import echo"),
        *("sys.stdout.write(x)", "sys.stderr.flush()", "sys.stdout.buffer.write(x)", "from sys import stdout"),
        *("stream = sys.stderr", "write = sys.stdout.write", "os.write(1, x)", "open(2, 'w')"),
        *("traceback.print_exc()", "logging.StreamHandler()", "logging.basicConfig()"),
    ],
)
def test_print_is_detected(source: str) -> None:
    assert [*prints(nodes_in(source))]


@pytest.mark.parametrize("source", ["file.write(x)", "write(sys.stderr, x)", "os.write(pipe, x)", "done.stdout"])
def test_other_calls_are_not_taken_for_prints(source: str) -> None:
    assert not [*prints(nodes_in(source))]
