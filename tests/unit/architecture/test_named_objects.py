"""Test that each module and object that a test names in a string exists."""

import ast
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.core.paths import data_root

TESTS: Final = data_root() / "tests"
DOTTED: Final = re.compile(r"orchestrator(\.[A-Za-z_]\w*)+")
EXEMPT: Final = {"test_named_objects.py"}  # contains no name of a module


def named_objects(path: Path) -> Iterator[tuple[int, str]]:
    """Yield dotted names and the attributes that `setattr(module, "name", …)` replaces."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    modules: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("orchestrator"):
            modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)) if DOTTED.fullmatch(text):
                yield node.lineno, text
            case ast.Call(
                func=ast.Attribute(attr="setattr"), args=[ast.Name(id=module), ast.Constant(value=str(name)), _]
            ):
                if module in modules:
                    yield node.lineno, f"{modules[module]}.{name}"


def exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_each_named_object_exists() -> None:
    names = [(path, *name) for path in TESTS.rglob("*.py") if path.name not in EXEMPT for name in named_objects(path)]
    assert len(names) > 100
    missing = [f"{path.relative_to(TESTS)}:{line}: {name}" for path, line, name in names if not exists(name)]
    assert missing == []
