"""Test with mypy that every value joined to a path has a type that was validated when it was created."""

import ast
import gc
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeGuard

import pytest
from mypy import build
from mypy.config_parser import parse_config_file
from mypy.find_sources import create_source_list
from mypy.modulefinder import BuildSource
from mypy.nodes import ARG_STAR, CallExpr, ConditionalExpr, Expression, ListExpr, MemberExpr, OpExpr, StrExpr
from mypy.options import Options
from mypy.plugin import FunctionContext, MethodContext, Plugin
from mypy.types import Instance, LiteralType, Type, UnionType, get_proper_type

from orchestrator.core.paths import data_root

ROOT: Final = data_root()
PATHS: Final = {"pathlib.Path", "pathlib.PurePath", "pathlib.PurePosixPath"}
CHECKED: Final = {f"orchestrator.core.safe_paths.{name}" for name in ("RelativePath", "CommitHash", "ContentHash")}
DIVISIONS: Final = {"__truediv__", "__rtruediv__"}
PATH_NAMES: Final = {"name", "stem", "suffix"}  # each is a single valid path component
# `safe_paths` validates the values itself; the others run alone in a container.
ALLOWED: Final = {
    "orchestrator/core/safe_paths.py",
    "orchestrator/engine/liveness.py",
    "orchestrator/engine/drain.py",
    "orchestrator/engine/first_sample.py",
}


class JoinCheck(Plugin):
    """A mypy plugin that collects each line where an unchecked value becomes part of a path."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.unchecked: set[str] = set()
        self._known: set[tuple[str, int, int]] = set()  # path, line, column of each typed operand

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        owner, _, method = fullname.rpartition(".")
        joins = owner in PATHS and method in {*DIVISIONS, "joinpath", "with_name", "with_stem", "with_suffix"}
        return self._check if joins else self._record if method in DIVISIONS else None

    def untyped(self, path: str, source: str) -> set[str]:
        """Return each `/` of a module that mypy does not check because an operand has the type Any."""
        divisions = (node for node in ast.walk(ast.parse(source)) if path not in ALLOWED and _divides(node))
        return {
            f"{path}:{node.lineno}"
            for node in divisions
            if not any((path, operand.lineno, operand.col_offset) in self._known for operand in _operands(node))
        }

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        return self._check_after_first if fullname in {*PATHS, "posixpath.join"} else None

    def _record(self, context: MethodContext) -> Type:
        self._known.update(
            (_path(context), argument.line, argument.column) for some in context.args for argument in some
        )
        return context.default_return_type

    def _check(self, context: MethodContext) -> Type:
        self._record(context)
        self._report(context, (argument for some in context.args for argument in some))
        return context.default_return_type

    def _check_after_first(self, context: FunctionContext) -> Type:
        given = [argument for some in context.args for argument in some]
        has_star = ARG_STAR in [kind for some in context.arg_kinds for kind in some]
        self._report(context, given if has_star or any(map(is_composed, given[:1])) else given[1:])
        return context.default_return_type

    def _report(self, context: MethodContext | FunctionContext, given: Iterable[Expression]) -> None:
        path = _path(context)
        ours = path.startswith(("orchestrator/", "planted.py"))
        if ours and path not in ALLOWED and not all(is_checked(argument, context) for argument in given):
            self.unchecked.add(f"{path}:{context.context.line}")


def _path(context: MethodContext | FunctionContext) -> str:
    return context.api.path.removeprefix(f"{ROOT}/")


def _divides(node: ast.AST) -> TypeGuard[ast.BinOp | ast.AugAssign]:
    """Return whether a node is a `/` whose operands may be paths."""
    if not isinstance(node, ast.BinOp | ast.AugAssign) or not isinstance(node.op, ast.Div):
        return False
    return not any(map(_is_number, _operands(node)))


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return not isinstance(node.op, ast.Div | ast.Add)
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _operands(node: ast.BinOp | ast.AugAssign) -> list[ast.expr]:
    """Return the operands that mypy may pass to the plugin; for `__rtruediv__` it is the left one."""
    return [node.right, node.left] if isinstance(node, ast.BinOp) else [node.value]


def is_checked(node: Expression, context: MethodContext | FunctionContext) -> bool:  # noqa: PLR0911 - one return per form
    """Return whether an expression consists of constants, numbers and values of checked types."""
    match node:
        case StrExpr():
            return True
        case ConditionalExpr():
            return is_checked(node.if_expr, context) and is_checked(node.else_expr, context)
        case OpExpr(op="+"):
            return is_checked(node.left, context) and is_checked(node.right, context)
        case CallExpr(callee=MemberExpr(expr=StrExpr(), name="join"), args=[ListExpr(items=pieces)]):  # an f-string
            return all(is_checked(piece, context) for piece in pieces)
        case CallExpr(callee=MemberExpr(expr=StrExpr(value="{:{}}"), name="format"), args=[value, StrExpr()]):
            return is_checked(value, context) or has_type(value, {"builtins.int"}, context)
        case MemberExpr() if node.name in PATH_NAMES and has_type(node.expr, PATHS, context):
            return not isinstance(node.expr, CallExpr)  # the name of `Path("..")` is `..`
    return has_type(node, CHECKED, context)


def is_composed(node: Expression) -> bool:
    """Return whether an expression composes a text: an f-string, a sum or `"/".join(…)`."""
    if isinstance(node, CallExpr):
        return isinstance(node.callee, MemberExpr) and isinstance(node.callee.expr, StrExpr)
    return isinstance(node, OpExpr) and node.op in {"+", "%"}


def has_type(node: Expression, names: set[str], context: MethodContext | FunctionContext) -> bool:
    """Return whether an expression is a constant, a member of an Enum, or an instance of one of these classes."""
    type_ = get_proper_type(context.api.lookup_type(node))  # type: ignore[attr-defined]  # only the checker has it
    kinds = [get_proper_type(kind_) for kind_ in type_.items] if isinstance(type_, UnionType) else [type_]
    return all(
        isinstance(kind, LiteralType)
        or (
            isinstance(kind, Instance)
            and (
                kind.last_known_value is not None
                or kind.type.is_enum
                or bool({base.fullname for base in kind.type.mro} & names)
            )
        )
        for kind in kinds
    )


def find_unchecked_joins(sources: list[BuildSource], options: Options) -> set[str]:
    options.incremental = False
    joins = JoinCheck(options)
    result = build.build(sources, options, extra_plugins=[joins])
    assert not result.errors or options.follow_imports == "skip", result.errors[:5]
    texts = ((source.path, source.text or Path(source.path or "").read_text()) for source in sources)
    untyped = (joins.untyped(str(path).removeprefix(f"{ROOT}/"), text) for path, text in texts)
    unchecked = joins.unchecked.union(*untyped)
    del result, joins
    gc.collect()
    gc.freeze()  # the million objects of mypy would slow each later garbage collection
    return unchecked


def project_options() -> Options:
    options = Options()
    parse_config_file(options, lambda: None, str(ROOT / "pyproject.toml"), io.StringIO(), io.StringIO())
    return options


@pytest.mark.timeout(0)
def test_every_joined_path_component_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Path(value)` with one argument is allowed: a user's own path enters there."""
    monkeypatch.chdir(ROOT)
    options = project_options()
    options.follow_imports = "skip"  # values from libraries are then of type Any, which never counts as checked
    assert find_unchecked_joins(create_source_list(["orchestrator"], options), options) == set()


SOURCE = """
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal
from orchestrator.core.safe_paths import CommitHash, RelativePath

NAME: Final = "name"

class Folder(Enum):
    ONE = "one"

def joined(
    root: Path, value: str, safe: RelativePath, commit: CommitHash, n: int, kind: Literal["a", "b"],
    told: Any, several: list[str],
) -> list[Path]:
    return [{}]

def replaced(root: Path, value: str, told: Any) -> Path:
    root /= value
    root /= told
    return root

def divided(n: int, share: float, many: list[int]) -> float:
    share /= n
    return share / n / sum(many) + max(many) / 2 - share**2 / n
"""


@pytest.mark.timeout(0)
def test_unchecked_path_component_is_detected() -> None:
    wrong = (
        *("root / value", "root / str(safe)", 'root / f"x-{value}"', 'root / (value + ".json")', "root / safe / value"),
        *("Path(root, value)", "root.joinpath(value)", "root.with_name(value)", 'root / ("a" if n else value)'),
        *("root / value.strip()", "root / Path(value)", "root / PurePosixPath(value)", 'root / "/".join([value])'),
        *("root / told", "root / told['name']", "Path(root, told)", "root.joinpath(told)", "value / root"),
        *("Path(*several)", "Path(root, *several)", "root.joinpath(*several)", "root / Path(value).name"),
        *(
            'Path(f"{root}/{value}")',
            'Path(str(root) + "/" + value)',
            'Path("/".join([value]))',
            'Path("%s/x" % value)',
        ),
    )
    right = (
        *('root / "x"', "root / NAME", "root / safe", "root / commit", "root / kind", 'root / f"{commit}-{n}.json"'),
        *("Path(root, safe)", "root / root.name", 'root.with_name(f"{root.stem}.lock")', 'root / ("a" if n else safe)'),
        *("Path(value)", "root / Folder.ONE.value", 'Path(f"/proc/{n}/{commit}")', "Path(safe)"),
    )
    text = SOURCE.format(",\n".join(("root", *wrong, *right)))
    first = text[: text.index("[root")].count("\n") + 2
    unchecked = find_unchecked_joins([BuildSource("planted.py", "planted", text)], project_options())
    replaced = text[: text.index("root /= value")].count("\n") + 1
    lines = (*range(first, first + len(wrong)), replaced, replaced + 1)
    assert unchecked == {f"planted.py:{line}" for line in lines}
