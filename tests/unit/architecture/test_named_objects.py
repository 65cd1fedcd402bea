"""Tests name modules and objects of the tool in strings; each of them exists."""

import ast
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.core.paths import data_root

TESTS: Final = data_root() / "tests"
DOTTED: Final = re.compile(r"orchestrator(\.[A-Za-z_]\w*)+")
INVENTED: Final = {"test_named_objects.py"}  # names no module, on purpose


def named(path: Path) -> Iterator[tuple[int, str]]:
    """Dotted names, and the attributes that `setattr(module, "name", …)` replaces."""
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
    found = [(path, *name) for path in TESTS.rglob("*.py") if path.name not in INVENTED for name in named(path)]
    assert len(found) > 100
    missing = [f"{path.relative_to(TESTS)}:{line}: {name}" for path, line, name in found if not exists(name)]
    assert missing == []
