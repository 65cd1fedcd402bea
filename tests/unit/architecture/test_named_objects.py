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
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            yield node.lineno, node.value


def exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_each_named_object_exists() -> None:
    found = [(path, *each) for path in TESTS.rglob("*.py") if path.name not in INVENTED for each in named(path)]
    assert len(found) > 100
    missing = [f"{path.relative_to(TESTS)}:{line}: {name}" for path, line, name in found if not exists(name)]
    assert missing == []
