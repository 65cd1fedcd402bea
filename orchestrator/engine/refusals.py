"""Rejections of options after parsing: the conditions in the flag table of an sglang version, evaluated.

`profiles/engines/flags/refusals.py` extracts the conditions from the version's sources. A condition counts as true only
if all its inputs are known: the platform, and the set or default values of options that sglang does not change.
"""

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from orchestrator.core.text import parse_json
from orchestrator.engine.flags import FlagTable, FlagValue, flag_words

_UNKNOWN: Final = "unknown"  # the name of an unknown input in a condition
_OTHERS: Final = frozenset({"is_npu", "is_xpu", "is_hpu", "is_musa", "is_mps"})
_NVIDIA: Final = frozenset({
    "is_cuda", "is_blackwell", "is_blackwell_supported", "is_sm90", "is_sm90_supported", "is_sm100",
    "is_sm100_supported", "is_sm120", "is_sm120_supported",
})  # fmt: skip
# Results of sglang's platform tests; tests that depend on the GPU or on installed packages are left out.
_PLATFORMS: Final[Mapping[str, Mapping[str, bool]]] = {
    "rocm": {**dict.fromkeys(_OTHERS | _NVIDIA, False), "is_hip": True},
    "cuda": {**dict.fromkeys(_OTHERS, False), "is_hip": False, "is_cuda": True},
    "cpu": dict.fromkeys(_OTHERS | _NVIDIA | {"is_hip"}, False),
}
_OPERATIONS: Final[Mapping[type[ast.AST], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b, ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitAnd: operator.and_,
}  # fmt: skip
_READ: Final[Mapping[str | None, Callable[[str], Any]]] = {"int": int, "float": float, "json": parse_json, None: str}


class _NotKnownError(Exception):
    """A value cannot be known before a start."""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A rejection by sglang: the option, sglang's message, and the line of its sources."""

    name: str
    message: str
    place: str


def refused(
    table: FlagTable, flags: Mapping[str, FlagValue], decided: Mapping[str, FlagValue], platform: str
) -> Iterator[Refused]:
    """Yield the rejections of `flags`, at most one per option; `decided` holds values set outside the flags."""
    settings = _Settings(table, flags, decided, platform)
    said = set()
    for condition, source in table.refusals.items():
        name = next((name for name in _names(condition) if name in settings.given), None)
        if name is not None and name not in said and settings.holds(condition, source.get("as_written", ())):
            said.add(name)
            message = source["message"] or f"`{condition}`"
            yield Refused(name=settings.given[name], message=message, place=source["place"])


class _Settings:
    """The known values of options, for evaluating conditions."""

    def __init__(
        self, table: FlagTable, flags: Mapping[str, FlagValue], decided: Mapping[str, FlagValue], platform: str
    ) -> None:
        self._table, self._flags, self._decided = table, flags, decided
        self._tests = _PLATFORMS[platform]
        self._as_written: list[str] = []  # options whose value before any change by sglang counts
        self.given = {table.first_name(name).replace("-", "_"): name for name in flags}  # by the name in conditions

    def holds(self, condition: str, as_written: Sequence[str] = ()) -> bool:
        """Return whether a condition is certainly true, for the options `as_written` before any change by sglang."""
        self._as_written = [*as_written]
        return self._truth(_parsed(condition)) is True

    def _truth(self, node: ast.expr) -> bool | None:
        """Return whether an expression is true; None if an unknown value decides."""
        if isinstance(node, ast.BoolOp):
            decides = isinstance(node.op, ast.Or)
            truths = [self._truth(each) for each in node.values]
            return decides if decides in truths else None if None in truths else not decides
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            truth = self._truth(node.operand)
            return None if truth is None else not truth
        try:
            return bool(self._value(node))
        except _NotKnownError:
            return None

    def _value(self, node: ast.expr) -> Any:  # noqa: ANN401 - of any type that an option has
        match node:
            case ast.Constant():
                value: Any = node.value
            case ast.Name():
                value = self._named(node.id)
            case ast.Tuple() | ast.List() | ast.Set():
                value = [self._value(each) for each in node.elts]
            case ast.BoolOp():
                value = self._joined(node)
            case ast.UnaryOp():
                value = not self._value(node.operand) if isinstance(node.op, ast.Not) else -self._value(node.operand)
            case ast.BinOp():
                value = _applied(node.op, self._value(node.left), self._value(node.right))
            case ast.Compare():
                values = [self._value(each) for each in (node.left, *node.comparators)]
                pairs = zip(node.ops, values, values[1:], strict=False)
                value = all(_applied(each, left, right) for each, left, right in pairs)
            case ast.Call(func=ast.Attribute(value=text, attr="lower")):
                value = str(self._value(text)).lower()
            case _:
                raise _NotKnownError
        return value

    def _joined(self, node: ast.BoolOp) -> Any:  # noqa: ANN401 - see above
        value: Any = None
        for each in node.values:
            value = self._value(each)
            if bool(value) == isinstance(node.op, ast.Or):
                break
        return value

    def _named(self, name: str) -> Any:  # noqa: ANN401 - see above
        if name in self._tests:
            return self._tests[name]
        if name == _UNKNOWN or self._may_change(name):
            raise _NotKnownError
        if name in self.given:
            return self._given(self.given[name])
        if f"no_{name}" in self.given:
            return False
        known = self._decided if name in self._decided else self._table.defaults
        if name not in known:
            raise _NotKnownError
        return known[name]

    def _may_change(self, name: str) -> bool:
        """Return whether sglang may change an option: unless every condition for a change is certainly false.

        An option under examination counts as written, because the first change sees every option as written. If no
        change can be the first, there is none.
        """
        if name in self._as_written:
            return False
        self._as_written.append(name)
        try:
            return any(
                condition == "" or self._truth(_parsed(condition)) is not False
                for condition in self._table.changes.get(name, ())
            )
        finally:
            self._as_written.pop()

    def _given(self, name: str) -> Any:  # noqa: ANN401 - see above
        spec, words = self._table.flags[name], flag_words(self._flags[name])
        if not words:
            return True
        try:
            values = [_READ[spec.type](word) for word in words]
        except ValueError:
            raise _NotKnownError from None  # sglang's parser rejects the value itself
        return values if spec.multiple else values[0]


def _applied(kind: ast.AST, left: Any, right: Any) -> Any:  # noqa: ANN401 - see above
    try:
        return _OPERATIONS[type(kind)](left, right)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise _NotKnownError from error


@cache
def _parsed(condition: str) -> ast.expr:
    return ast.parse(condition, mode="eval").body


@cache
def _names(condition: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node.id for node in ast.walk(_parsed(condition)) if isinstance(node, ast.Name)))
