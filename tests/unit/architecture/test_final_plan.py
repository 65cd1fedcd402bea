"""Test that only `plan/` and `planner/` create plans or derive one from another."""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from sources import Nodes, nodes_in, nodes_of

from orchestrator.core.paths import data_root

PACKAGE = data_root() / "orchestrator"
PLANNING = ("plan", "planner")


def modules() -> Iterator[Path]:
    """Yield the modules outside the planning packages."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] not in (*PLANNING, "_data"):
            yield path


def is_plan(annotation: ast.expr | None) -> bool:
    """Return whether an annotation contains a plan, such as `tuple[ImageTables, Plan]`."""
    if isinstance(annotation, ast.Name):
        return annotation.id == "Plan"
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            return is_plan(ast.parse(annotation.value, mode="eval").body)
        except SyntaxError:  # of a `Literal`
            return False
    if isinstance(annotation, ast.Subscript):  # a callable's parameters do not count
        return ast.unparse(annotation.value) != "Callable" and is_plan(annotation.slice)
    parts = ast.iter_child_nodes(annotation) if annotation is not None else ()
    return any(is_plan(part) for part in parts if isinstance(part, ast.expr))


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.arg]:
    parameters = function.args
    return [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs]


def creates_plan(call: ast.Call, plans: set[str]) -> bool:
    """Return whether a call is `Plan(…)` or a `replace(…)` of a plan."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name == "Plan":
        return True
    if name != "replace" or not call.args or (isinstance(call.func, ast.Attribute) and not _is_dataclasses(call.func)):
        return False
    value = call.args[0]
    called = getattr(value, "attr", getattr(value, "id", "")).lstrip("_")
    return called in plans or called == "plan" or called.endswith("_plan")


def _is_dataclasses(function: ast.Attribute) -> bool:
    return isinstance(function.value, ast.Name) and function.value.id in {"dataclasses", "copy"}


def functions_returning_plans() -> frozenset[str]:
    nodes = (node for path in sorted(PACKAGE.rglob("*.py")) for node in nodes_of(path))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if is_plan(function.returns))


def plan_creations(nodes: Nodes, sources: Collection[str] = ()) -> Iterator[str]:
    """Yield the calls that create a plan and the functions that take and return one.

    `sources` are the names of functions that return plans.
    """
    annotated = {node.target.id for node in nodes if isinstance(node, ast.AnnAssign)
                 if isinstance(node.target, ast.Name) and is_plan(node.annotation)}  # fmt: skip
    for node in nodes:
        if isinstance(node, ast.Assign | ast.NamedExpr) and isinstance(node.value, ast.Call):
            called = node.value.func
            if getattr(called, "attr", getattr(called, "id", "")) in sources:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                annotated |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    for function in (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
        annotated |= {argument.arg for argument in arguments(function) if is_plan(argument.annotation)}
        if is_plan(function.returns) and any(is_plan(argument.annotation) for argument in arguments(function)):
            yield f"{function.lineno}: `{function.name}` makes a plan from a plan"
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        if creates_plan(call, annotated):
            yield f"{call.lineno}: `{ast.unparse(call)[:60]}` makes a plan"


def test_only_planner_creates_plans() -> None:
    sources = functions_returning_plans()
    creations = [
        f"{path.relative_to(PACKAGE)}:{name}" for path in modules() for name in plan_creations(nodes_of(path), sources)
    ]
    assert not creations


@pytest.mark.parametrize(
    "source",
    [
        "def f(plan: Plan): return replace(plan, prebuilt_image=None)",
        "def f(start): return dataclasses.replace(start.artifacts.plan, flags=())",
        "def f(self): return replace(self._plan, flags=())",
        "def f(asked: 'Plan'): return replace(asked, flags=())",
        "def settled(given: Plan, profile: Profile) -> Plan: ...",
        "def found(image: str, of: Plan) -> tuple[ImageTables, Plan]: ...",
        "def seen(of: 'Plan | None') -> 'Plan | None': ...",
        "made = Plan(profile='x')",
        "made = plan.Plan(profile='x')",
        "final = require_plan(run, name); replace(final, flags=())",
        "if final := server.read_plan(run): replace(final, flags=())",
    ],
)
def test_plan_creation_is_detected(source: str) -> None:
    assert [*plan_creations(nodes_in(source), ("read_plan", "require_plan"))]


@pytest.mark.parametrize(
    "source",
    [
        "def f(plan: Plan) -> Artifacts: return replace(artifacts, command=command(plan))",
        "def f(command: Callable[[Plan], Command]): return replace(command, env=())",
        "def read_plan(run: RunDir) -> Plan | None: ...",
        "text.replace('plan', 'x')",
        "def f(plan: Plan): return plan.profile.replace('.', '-')",
    ],
)
def test_other_code_is_not_taken_for_plan_creation(source: str) -> None:
    assert not [*plan_creations(nodes_in(source))]
