"""The architecture, held: an import points to the same or a lower level, and the parts of level 4 stand alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.paths import data_root

PACKAGE = data_root() / "orchestrator"
LEVELS = {
    0: ("errors", "secret", "nearest"),
    1: ("faults", "profile", "plan", "artifacts", "patches", "kernels", "results", "scores"),
    2: ("planner", "render"),
    3: ("runtimes.base", "shell", "paths", "files", "safetensors", "console"),
    4: (
        "catalog", "host", "checkpoint", "images", "environments", "runtimes", "health", "smoke", "bench", "diagnose",
        "state", "tuning", "report", "evals",
    ),
    5: ("deploy",),
    6: ("cli", "__main__"),
}  # fmt: skip
PURE = (
    "profile",
    "plan",
    "artifacts",
    "results",
    "scores",
    "patches",
    "kernels",
    "planner",
    "render",
    "errors",
    "faults",
    "nearest",
)
IMPURE_IMPORTS = {"os", "subprocess", "socket", "time", "httpx", "docker", "datetime", "random", "tempfile", "shutil"}


def part_of(module: str) -> str:
    """`orchestrator.runtimes.base` is a part of its own, any other module belongs to the folder it stands in."""
    name = module.removeprefix("orchestrator.")
    return name if name == "runtimes.base" else name.split(".")[0]


def level_of(part: str) -> int:
    return next(level for level, parts in LEVELS.items() if part in parts)


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_data" not in path.parts:
            dotted = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            yield dotted.removesuffix(".__init__"), path


MODULES = tuple(modules())


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "orchestrator.runtimes":
                yield from (f"orchestrator.runtimes.{alias.name}" for alias in node.names)
            elif node.module == "orchestrator":
                yield from (f"orchestrator.{alias.name}" for alias in node.names)
            else:
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize(("module", "path"), MODULES)
def test_an_import_points_down(module: str, path: Path) -> None:
    if module == "orchestrator":
        return
    part = part_of(module)
    for imported in imports(path):
        if not imported.startswith("orchestrator.") or imported == "orchestrator.__version__":
            continue
        other = part_of(imported)
        assert level_of(other) <= level_of(part), f"{module} (level {level_of(part)}) imports {imported}"
        if level_of(part) == level_of(other) == 4:
            assert other == part, f"{module} imports its sibling {imported}"


@pytest.mark.parametrize(("module", "path"), [found for found in MODULES if part_of(found[0]) in PURE])
def test_pure_parts_touch_nothing(module: str, path: Path) -> None:
    """No clock, no environment, no network, no processes below level 3."""
    touched = {imported.split(".")[0] for imported in imports(path)} & IMPURE_IMPORTS
    assert not touched, f"{module} imports {sorted(touched)}"


def test_the_levels_name_every_part() -> None:
    parts = {part_of(module) for module, _ in MODULES if module != "orchestrator"}
    assert parts == {part for level in LEVELS.values() for part in level} & parts
    assert not {part for level in LEVELS.values() for part in level} - parts, "a part that no longer exists"


@pytest.mark.parametrize(("module", "path"), MODULES)
def test_files_and_functions_stay_short(module: str, path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400, f"{module} has more than 400 lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 80, f"{module}.{node.name} has {length} lines"
