"""What one version of sglang refuses of its options after parsing them, read from the sources of its `ServerArgs`.

Each `assert` and each `raise` that `ServerArgs` reaches is a refusal. Its condition is the tests above it, joined by
`and`: a Python expression over options (their first names, with underscores) and sglang's own tests of the platform
(`is_hip`). `UNKNOWN` stands for whatever is neither, such as a model's config. A refusal that is never certain is left
out.

`changes` are the conditions under which sglang may give an option another value before such a test.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

UNKNOWN = "unknown"
_ENTRIES = ("__post_init__", "resolve_once", "check_server_args")
_OTHER_VENDORS = {"npu", "xpu", "mps", "mlx", "hpu", "musa"}  # their functions return at once on the GPUs of others
_VIEWS = {"resolved_view", "resolving_view", "_resolved"}  # the arguments, as far as sglang has decided them
_CALLERS = {"run_hook", "run_post_process_pass"}  # call their first argument, or their second
_OPERATIONS = (ast.BoolOp, ast.UnaryOp, ast.Compare, ast.BinOp, ast.Tuple, ast.List, ast.Set)
_LONGEST = 400  # characters of a condition: a longer one is about a model


@dataclass
class _Scope:
    """What names mean inside a function: the arguments themselves, and what was computed from them."""

    file: str
    arguments: set[str]
    locals: dict[str, ast.expr] = field(default_factory=dict)


class Sources:
    """The sources in the unpacked wheel at `root`. `options` are the first names by attribute of `ServerArgs`."""

    def __init__(self, root: Path, options: Mapping[str, str]) -> None:
        """Parse the modules that decide arguments."""
        self._options = options
        self._methods: dict[str, tuple[str, ast.FunctionDef]] = {}
        self._functions: dict[str, tuple[str, ast.FunctionDef]] = {}
        self._constants: dict[str, ast.expr] = {}
        self._open: list[ast.FunctionDef] = []
        self._seen: set[ast.FunctionDef] = set()
        self._refusals: dict[str, dict[str, object]] = {}
        self._changed_before: dict[str, set[str]] = {}
        self._changes: dict[str, set[str]] = {}
        folder = root / "sglang" / "srt"
        for path in [folder / "server_args.py", *sorted((folder / "arg_groups").rglob("*.py"))]:
            self._index(path)

    def refusals(self) -> dict[str, dict[str, object]]:
        """sglang's message and the line that says so, by condition.

        `as_written` are options in it that sglang may change, and never before that line.
        """
        for name in _ENTRIES:
            if name in self._methods:
                self._call(self._methods[name], [])
        followed, self._changes = self._changes, {}
        for called in (*self._methods.values(), *self._functions.values()):
            if called[1] not in self._seen:  # it is called in a way that is not followed, such as by a model's name
                self._call(called, [ast.Name(UNKNOWN)])
        for when, refusal in self._refusals.items():
            later = (names_in(when) & {*followed}) - self._changed_before[when] - {*self._changes}
            if later:
                refusal["as_written"] = sorted(later)
        for name, conditions in followed.items():
            self._changes.setdefault(name, set()).update(conditions)
        return self._refusals

    def changes(self, names: set[str]) -> dict[str, list[str]]:
        """The conditions by option, for options among `names` and those that the conditions need; "" for always.

        Known once the refusals are.
        """
        found: dict[str, list[str]] = {}
        waiting = sorted(names)
        while waiting:
            name = waiting.pop()
            if name in self._changes and name not in found:
                conditions = self._changes[name]
                found[name] = [""] if "" in conditions else sorted(conditions)
                waiting += sorted(set().union(*map(names_in, found[name])))
        return dict(sorted(found.items()))

    def _index(self, path: Path) -> None:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                self._functions[node.name] = path.name, node
            elif isinstance(node, ast.ClassDef) and node.name == "ServerArgs":
                methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
                self._methods |= {method.name: (path.name, method) for method in methods}
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_literal(node.value):
                self._constants[node.targets[0].id] = node.value

    def _call(self, called: tuple[str, ast.FunctionDef], guards: Sequence[ast.expr]) -> None:
        file, function = called
        if function.args.args and function not in self._open and not _is_of_another_vendor(function.name):
            self._open.append(function)
            self._seen.add(function)
            self._walk(function.body, list(guards), _Scope(file, {function.args.args[0].arg}))
            self._open.pop()

    def _walk(self, body: Sequence[ast.stmt], guards: list[ast.expr], scope: _Scope) -> bool:
        """Note what the statements refuse and change. Return whether they return from the function on every way."""
        for statement in body:
            returns: bool | None = None
            if isinstance(statement, ast.Return):
                self._note_changes(statement, guards)
                return True
            if isinstance(statement, ast.Raise):
                self._refuse(statement, guards, _message(statement.exc), scope)
                return False  # after it the tests above it are false, or sglang has refused
            if isinstance(statement, ast.Assert):
                refused = [*guards, _not(self._read(statement.test, scope))]
                self._refuse(statement, refused, _text(statement.msg) or ast.unparse(statement.test), scope)
            elif isinstance(statement, ast.If):
                returns, more = self._branches(statement, guards, scope)
                guards = [*guards, *more]
            elif bodies := list(_bodies(statement)):
                returns = self._blocks(statement, bodies, guards, scope)
                guards = [*guards, *([ast.Name(UNKNOWN)] if _may_return(statement) else [])]
            else:
                self._simple(statement, guards, scope)
            if returns:
                return True
        return False

    def _branches(self, statement: ast.If, guards: list[ast.expr], scope: _Scope) -> tuple[bool, list[ast.expr]]:
        """Whether both branches return, and what is certain of what follows."""
        test = self._read(statement.test, scope)
        returns = self._walk(statement.body, [*guards, test], scope)
        others_return = self._walk(statement.orelse, [*guards, _not(test)], scope)
        if returns or others_return or not _may_return(statement):
            more = [*([_not(test)] if returns else []), *([test] if others_return else [])]
            return returns and others_return, more
        return False, [ast.Name(UNKNOWN)]

    def _blocks(self, statement: ast.stmt, bodies: list[list[ast.stmt]], guards: list[ast.expr], scope: _Scope) -> bool:
        """Whether a statement with blocks returns: certainly only from a `try` whose handlers raise."""
        certain = isinstance(statement, ast.Try) and all(_raises(each) for each in statement.handlers)
        unknown = [*guards, ast.Name(UNKNOWN)]
        returns = self._walk(bodies[0], guards if certain else unknown, scope)
        for each in bodies[1:]:
            self._walk(each, unknown, scope)
        return certain and returns

    def _simple(self, statement: ast.stmt, guards: list[ast.expr], scope: _Scope) -> None:
        self._note_changes(statement, guards)
        if isinstance(statement, ast.Expr):
            if (called := self._called(statement.value, scope)) is not None:
                self._call(called, guards)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            self._assign(statement.targets[0].id, statement.value, scope)
        else:
            for name in (node.id for node in ast.walk(statement) if isinstance(node, ast.Name)):
                if name in scope.locals:
                    scope.locals[name] = ast.Name(UNKNOWN)

    def _assign(self, name: str, value: ast.expr, scope: _Scope) -> None:
        if self._is_view(value):
            scope.arguments.add(name)
        else:  # the second value of a name may be that of a branch
            again = name in scope.locals or isinstance(value, ast.List | ast.Dict | ast.Set)  # which are added to
            scope.locals[name] = ast.Name(UNKNOWN) if again else self._read(value, scope)

    def _called(self, call: ast.expr, scope: _Scope) -> "tuple[str, ast.FunctionDef] | None":
        """The function that is called with the arguments: `self.f()`, `f(self)` or `run_hook(f, self)`."""
        if not isinstance(call, ast.Call):
            return None
        if isinstance(call.func, ast.Attribute):
            return self._methods.get(call.func.attr) if self._is_arguments(call.func.value, scope) else None
        names = [each.id for each in (call.func, *call.args) if isinstance(each, ast.Name)]
        if not scope.arguments & {*names[1:]}:
            return None
        functions = [name for name in names if name not in scope.arguments and name not in _CALLERS]
        return self._functions.get(functions[0]) if functions else None

    def _is_arguments(self, node: ast.expr, scope: _Scope) -> bool:
        return self._is_view(node) or (isinstance(node, ast.Name) and node.id in scope.arguments)

    def _is_view(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in _VIEWS

    def _refuse(self, node: ast.stmt, guards: Sequence[ast.expr], message: str, scope: _Scope) -> None:
        parts = [*dict.fromkeys(map(ast.unparse, guards))]
        when = _joined(parts)
        if when in self._refusals:
            return  # the first line that says so counts
        if when and UNKNOWN not in parts and len(when) <= _LONGEST and names_in(when) & {*self._options.values()}:
            self._changed_before[when] = {*self._changes}
            self._refusals[when] = {"message": " ".join(message.split()), "place": f"{scope.file}:{node.lineno}"}

    def _note_changes(self, statement: ast.stmt, guards: Sequence[ast.expr]) -> None:
        when = _joined([part for part in dict.fromkeys(map(ast.unparse, guards)) if part != UNKNOWN])
        for name in _changed(statement):
            if name in self._options:
                self._changes.setdefault(self._options[name], set()).add(when if len(when) <= _LONGEST else "")

    def _read(self, node: ast.expr, scope: _Scope) -> ast.expr:
        """An expression over options, with UNKNOWN for each part that is none."""
        if isinstance(node, ast.Name):
            return scope.locals.get(node.id) or self._constants.get(node.id) or ast.Name(UNKNOWN)
        if isinstance(node, ast.Attribute):
            return self._read_attribute(node, scope)
        if isinstance(node, ast.Call):
            return self._read_call(node, scope)
        if isinstance(node, _OPERATIONS):
            return _rebuilt(node, [self._read(each, scope) for each in _operands(node)])
        return node if isinstance(node, ast.Constant) else ast.Name(UNKNOWN)

    def _read_attribute(self, node: ast.Attribute, scope: _Scope) -> ast.expr:
        if self._is_arguments(node.value, scope) and node.attr in self._options:
            return ast.Name(self._options[node.attr])
        platform = node.attr.startswith("is_") and ast.unparse(node.value) == "get_platform()"  # since 0.5.21
        return ast.Name(node.attr if platform else UNKNOWN)

    def _read_call(self, node: ast.Call, scope: _Scope) -> ast.expr:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "lower":
            text = self._read(node.func.value, scope)
            return text if _is_unknown(text) else ast.Call(ast.Attribute(text, node.func.attr), [], [])
        name = getattr(node.func, "id", "")
        if name == "getattr" and isinstance(node.args[1], ast.Constant) and str(node.args[1].value).startswith("_"):
            return node.args[-1]  # a note of an earlier run: there is none
        if name in {"str", "bool"} and node.args:
            return self._read(node.args[0], scope)
        return ast.Name(name if name.startswith("is_") and not node.args else UNKNOWN)


def names_in(condition: str) -> set[str]:
    """The names in a condition."""
    return {node.id for node in ast.walk(ast.parse(condition)) if isinstance(node, ast.Name)}


def _joined(parts: Sequence[str]) -> str:
    """All of them; what is about a dummy model is left out, since a server of a profile has one."""
    parts = [part for part in parts if part != "not False" and names_in(part) != {"model_path"}]
    return " and ".join(f"({part})" if len(parts) > 1 and " " in part else part for part in parts)


def _is_unknown(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == UNKNOWN


def _not(node: ast.expr) -> ast.expr:
    if _is_unknown(node):
        return node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    return ast.UnaryOp(ast.Not(), node)


def _may_return(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Return) for node in ast.walk(statement))


def _raises(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise)


def _bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The statements inside a compound one."""
    for name in ("body", "orelse", "finalbody"):
        if found := getattr(statement, name, None):
            yield found
    for handler in getattr(statement, "handlers", ()):
        yield handler.body


def _operands(node: ast.expr) -> list[ast.expr]:
    return [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]


def _rebuilt(node: ast.expr, parts: list[ast.expr]) -> ast.expr:
    """The same operation on other operands; UNKNOWN where it needs one that is not known."""
    if isinstance(node, ast.BoolOp):
        return ast.Name(UNKNOWN) if all(map(_is_unknown, parts)) else ast.BoolOp(node.op, parts)
    if any(map(_is_unknown, parts)):
        return ast.Name(UNKNOWN)
    if isinstance(node, ast.UnaryOp):
        return _not(parts[0]) if isinstance(node.op, ast.Not) else ast.UnaryOp(node.op, parts[0])
    if isinstance(node, ast.BinOp):
        return ast.BinOp(parts[0], node.op, parts[1])
    if isinstance(node, ast.Compare):
        return ast.Compare(parts[0], node.ops, parts[1:])
    return ast.Tuple(parts, ast.Load())


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def _is_of_another_vendor(name: str) -> bool:
    return not _OTHER_VENDORS.isdisjoint(name.split("_"))


def _changed(statement: ast.stmt) -> Iterator[str]:
    """What a statement gives a value: attributes, and whatever an override names."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield node.attr if isinstance(node, ast.Attribute) else ast.unparse(node.slice).strip("'")
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "declare_resolution":
            yield from (each.arg for each in node.keywords if each.arg)
        elif isinstance(node, ast.Dict):
            yield from (str(key.value) for key in node.keys if isinstance(key, ast.Constant))


def _message(raised: "ast.expr | None") -> str:
    return _text(raised.args[0]) if isinstance(raised, ast.Call) and raised.args else ""


def _text(node: "ast.expr | None") -> str:
    """What a message says, with `…` for what is only known as it is raised."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return ""
