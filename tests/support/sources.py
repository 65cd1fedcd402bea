"""Syntax trees of modules, each parsed once for all architecture tests."""

import ast
from functools import cache
from pathlib import Path
from typing import TypeAlias

Nodes: TypeAlias = tuple[ast.AST, ...]


@cache
def nodes_of(path: Path) -> Nodes:
    return nodes_in(path.read_text(encoding="utf-8"))


def nodes_in(source: str) -> Nodes:
    """Return all nodes of a source text, the module first."""
    return tuple(ast.walk(ast.parse(source)))
