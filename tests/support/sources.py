"""The syntax trees of the tool's modules, each parsed once for all rules of the architecture."""

import ast
from functools import cache
from pathlib import Path
from typing import TypeAlias

Nodes: TypeAlias = tuple[ast.AST, ...]


@cache
def nodes_of(path: Path) -> Nodes:
    """All nodes of a module, the module itself first."""
    return nodes_in(path.read_text(encoding="utf-8"))


def nodes_in(source: str) -> Nodes:
    """All nodes of a text, the module itself first."""
    return tuple(ast.walk(ast.parse(source)))
