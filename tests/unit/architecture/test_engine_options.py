"""Test that only the `engine` package names engine options; others use `ServingFacts` or `Meaning`."""

import ast
import importlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from sources import Nodes, nodes_in, nodes_of

from orchestrator.core.paths import data_root
from orchestrator.engine.options import Meaning
from orchestrator.engine.serving import _ALIASES, serving_facts

PACKAGE = data_root() / "orchestrator"
TABLES = sorted((data_root() / "profiles/engines/flags").glob("*.json"))
# Options of one word (`host`, `port`, `model`, `dtype` …) are also ordinary words.
OPTION = re.compile(r"(?<![\w-])[a-z0-9]+(?:-[a-z0-9]+)+(?![\w-])")


@cache
def options() -> frozenset[str]:
    """Return the options of all flag tables that have more than one word."""
    return frozenset(name for table in TABLES for name in json.loads(table.read_text())["flags"] if "-" in name)


def named_options(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each option that occurs in a string; docstrings are exempt."""
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            matches = OPTION.findall(node.value.replace("--", " "))
            yield from ((node.lineno, name) for name in matches if name in options())


def flag_reads(nodes: Nodes) -> Iterator[int]:
    """Yield the lines that read an option of a plan."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "flag":
            yield node.lineno


def option_lookups(nodes: Nodes) -> Iterator[int]:
    """Yield the lines that compare an imported option name, use it as a key, or iterate over the names."""
    constants = {name for node in nodes if isinstance(node, ast.ImportFrom) for name in option_constants(node)}

    def contains_option(node: ast.AST) -> bool:
        if isinstance(node, ast.JoinedStr):  # `flags.NAME`: a key of a profile or a sweep
            return False
        of_this = isinstance(node, ast.Name) and node.id in constants
        return of_this or any(map(contains_option, ast.iter_child_nodes(node)))

    for statement in ast.iter_child_nodes(nodes[0]):  # `_OFF: Final = Meaning.NO_EXPERT_FUSION.value`
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Attribute() as value) if contains_option(value):
                constants.add(name)
    for node in nodes:
        match node:
            case ast.Compare() | ast.comprehension(iter=ast.Name()) | ast.For(iter=ast.Name()):
                parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.iter]
            case ast.Subscript(ctx=ast.Load()):
                parts = [node.slice]
            case ast.Call(func=ast.Attribute(attr="get"), args=[key, *_]):
                parts = [key]
            case _:
                continue
        yield from (part.lineno for part in parts if contains_option(part))


def option_constants(statement: ast.ImportFrom) -> Iterator[str]:
    """Yield the names of the option constants that a statement imports from the engine."""
    module = statement.module or ""
    if module.startswith("orchestrator.engine."):
        values = vars(importlib.import_module(module))
        for name in (alias.name for alias in statement.names):
            value = values.get(name)
            if value is Meaning or (isinstance(value, str) and value in options()):
                yield name


def modules_outside_engine() -> Iterator[tuple[Path, Nodes]]:
    """Yield each module outside the engine, except `core`, whose `api-key` belongs to no engine."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if not {"core", "engine", "_data"} & set(path.relative_to(PACKAGE).parts):
            yield path.relative_to(PACKAGE), nodes_of(path)


def test_only_engine_package_names_options() -> None:
    assert [
        f"{path}:{line} {name}" for path, nodes in modules_outside_engine() for line, name in named_options(nodes)
    ] == []


def test_only_engine_package_reads_flags() -> None:
    """Known issues are exempt: they match options by the names in their YAML files."""
    assert [str(path) for path, nodes in modules_outside_engine() for _ in flag_reads(nodes)] == []


def test_only_engine_package_looks_up_options() -> None:
    assert [f"{path}:{line}" for path, nodes in modules_outside_engine() for line in option_lookups(nodes)] == []


@pytest.mark.parametrize(
    "source",
    [
        "if (name := Meaning.HEAD) in flags: pass",
        "found = {name: flags[name] for name in Meaning if name in flags}",
        "value = flags[Meaning.CONTEXT]",
        "value = flags.get(Meaning.CONTEXT.value)",
        "_OFF: Final = Meaning.NO_EXPERT_FUSION.value\nfound = [flag for flag in flags if flag.name == _OFF]",
    ],
)
def test_every_form_of_option_lookup_is_detected(source: str) -> None:
    imported = "from orchestrator.engine.options import Meaning\n"
    assert [*option_lookups(nodes_in(f"{imported}{source}"))]
    assert not [*option_lookups(nodes_in(f"{imported}hint = f'raise `{{Meaning.CONTEXT}}`'"))]


def test_config_option_appears_only_in_aiperf_runner() -> None:
    """The string `--config` is allowed there because aiperf has an option of that name."""
    config_option = re.compile(r"(?<!`)--config\b(?![.`])")
    paths = {str(path) for path, _ in modules_outside_engine() if config_option.search((PACKAGE / path).read_text())}
    assert paths == {"bench/aiperf/runner.py"}


@pytest.mark.parametrize(
    "source",
    [
        'plan.flag("context-length")',
        'argv = ["--mem-fraction-static", "0.8"]',
        'hint = f"`--set flags.enable-metrics={value}` exports them"',
    ],
)
def test_every_form_of_option_name_is_detected(source: str) -> None:
    assert len(list(named_options(nodes_in(source)))) == 1


def test_other_words_are_not_taken_for_options() -> None:
    assert not list(
        named_options(nodes_in('"""Read `context-length`."""\nkey = ("host", "context_length", "my-context-length")'))
    )


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_option_aliases_match_flag_tables(table: Path) -> None:
    flags = json.loads(table.read_text())["flags"]
    first = {name: spec["same_as"] for name, spec in flags.items() if "same_as" in spec}
    engine = (PACKAGE / "engine/serving.py").read_text()
    read = {name: of for name, of in first.items() if f'"{of}"' in engine}

    assert read == {name: of for name, of in _ALIASES.items() if name in flags}


def test_option_alias_has_same_meaning() -> None:
    def stages(name: str) -> int:
        return serving_facts({name: "2"}, context_length=1, platform="rocm", sparse_attention=False).stages

    assert stages("pipeline-parallel-size") == stages("pp-size") == 2
