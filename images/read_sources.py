"""The text of source files as patterns search it: preprocessed C++, normalized Python. Imported by apply_patches.py.

Runs with the image's own Python (3.10 or newer) and the standard library only.
"""

import ast
import functools
import operator
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

Macros = dict[str, "str | None"]  # name -> body, None if undefined; macros not listed are unknown
Truth = bool | int | None  # None: unknown

_COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|(?P<open>/\*)|R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)
_GUARD = re.compile(r"(?:\s*#\s*pragma once)?\s*#\s*ifndef (\w+)\s*\n\s*#\s*define \1[ \t]*$", re.MULTILINE)
_DIRECTIVE = re.compile(r"\s*#\s*(\w*)\s*(.*?)\s*$", re.DOTALL)
_DEFINED = re.compile(r"\bdefined\b\s*(?:\(\s*(\w+)\s*\)|(\w+))")
_CONDITIONS = {"if", "ifdef", "ifndef", "elif", "elifdef", "elifndef", "else"}
_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


_MAX_LINE = 120  # characters of a line that are quoted


class SourceError(Exception):
    """A patch that cannot be applied or verified, or sources that cannot be read."""


class Reading(NamedTuple):
    """The text of a file for a pattern, in three variants with equal line numbers."""

    text: str
    certain: str  # lines that are compiled whatever else is defined
    possible: str  # lines that may be compiled
    lines: dict[int, int]  # line in the text -> line in the file; empty if they are equal


def find(root: Path, name: str) -> Path | None:
    """Return the file of a pattern: a path below `root`, or for a bare name the only file of that name below `root`."""
    candidates = [root / name] if "/" in name else sorted(root.rglob(name), reverse=True)
    files = {candidate.resolve(): candidate for candidate in candidates if candidate.is_file()}
    if len(files) > 1:
        raise SourceError(f"`{name}` exists in {len(files)} places below {root}")
    return next(iter(files.values()), None)


def decoded(path: Path) -> str:
    """Return the text of a file. Bytes that are not UTF-8 are kept as surrogates; `encoded` restores them."""
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise SourceError(f"cannot read `{path}`: {error.strerror}") from error


def encoded(text: str) -> bytes:
    """Return the bytes of a text from `decoded`."""
    return text.encode("utf-8", "surrogateescape")


def sought(probe: dict[str, Any]) -> str:
    """Return a readable description of what a pattern searches for."""
    suffix = f", given {', '.join(probe['defines'])}" if probe.get("defines") else ""
    inactive_match = f"{probe['inactive_match']} (left out)" if probe.get("inactive_match") else ""
    return " and ".join(part for part in (probe.get("match"), inactive_match) if part) + suffix


def match(root: Path, probe: dict[str, Any]) -> str | None:
    """Return `path:line: text` of the match of a pattern; None if the pattern does not match.

    `match` must occur in lines that are certainly compiled. `inactive_match` must occur in the file, but not in lines
    that may be compiled.
    """
    path = find(root, probe["file"])
    if path is None:
        return None
    seen = read(path, probe.get("defines"))
    evidence = None
    if pattern := probe.get("inactive_match"):
        inactive = re.search(pattern, seen.text, re.MULTILINE)
        if inactive is None or re.search(pattern, seen.possible, re.MULTILINE):
            return None
        evidence = f"{_quoted(root, path, seen.text, seen, inactive)} (left out)"
    if pattern := probe.get("match"):
        hit = re.search(pattern, seen.certain, re.MULTILINE)
        return _quoted(root, path, seen.certain, seen, hit) if hit else None
    return evidence


def _quoted(root: Path, path: Path, text: str, seen: Reading, hit: "re.Match[str]") -> str:
    """Return the line in which a match ends, because a pattern may start before the relevant line."""
    line = text.count("\n", 0, max(hit.start(), hit.end() - 1))
    quoted = encoded(text.split("\n")[line].strip()).decode("utf-8", "replace")
    begun = max((known for known in seen.lines if known <= line + 1), default=0)
    quoted = quoted if len(quoted) <= _MAX_LINE else f"{quoted[:_MAX_LINE]}…"
    return f"{path.relative_to(root).as_posix()}:{seen.lines.get(begun, line + 1)}: {quoted}"


def read(path: Path, defines: "list[str] | None") -> Reading:
    """Read a file for a pattern: preprocessed if it defines macros, else normalized Python, else plain text."""
    text = decoded(path).replace("\r\n", "\n")
    try:
        if defines is not None:
            return preprocessed(text, dict.fromkeys(defines, "1"))
        return canonical(text) if path.suffix == ".py" else Reading(text, text, text, {})
    except (SourceError, SyntaxError, ValueError) as error:
        raise SourceError(f"`{path}` cannot be compiled: {error}") from error


def canonical(text: str) -> Reading:
    """Return Python source as `ast.unparse` formats it: uniform quotes and line breaks, no comments."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(encoded(text))
        plain = ast.unparse(tree)
        written = ast.parse(plain)
    new_nodes, old_nodes = ([node for node in ast.walk(one) if isinstance(node, ast.stmt)] for one in (written, tree))
    lines: dict[int, int] = {}
    for new, old in zip(new_nodes, old_nodes, strict=True):
        lines.setdefault(new.lineno, old.lineno)
    return Reading(plain, plain, plain, lines)


def preprocessed(text: str, macros: Macros) -> Reading:
    """Return C++ source without comments, with conditions evaluated by `macros`; line numbers are unchanged.

    Includes are not followed, so all other macros are unknown, except the include guard of the file. Raises
    SourceError if the preprocessor would fail.
    """
    code = _without_comments(text)
    guard = _GUARD.match(code.replace("\0", ""))
    conditions = _Conditions(macros={guard[1]: None, **macros} if guard else dict(macros))
    texts: tuple[list[str], list[str], list[str]] = ([], [], [])
    for logical in code.split("\n"):
        counts = conditions.counts
        line = conditions.process_line(logical.replace("\0", ""), len(texts[0]) + 1)
        for rows, shows in zip(texts, (True, counts is True, counts is not False), strict=True):
            rows += [line if shows else "", *[""] * logical.count("\0")]
    if conditions.branches:
        raise SourceError(f"line {conditions.branches[-1].line}: a condition without `#endif`")
    full_text, certain, possible = ("\n".join(rows) for rows in texts)
    return Reading(full_text, certain, possible, {})


def _without_comments(text: str) -> str:
    """Replace each comment by a space, and the line end of each continued line by NUL."""

    def put(hit: "re.Match[str]") -> str:
        if hit["open"]:
            raise SourceError("unterminated comment")
        return " " + hit[0].count("\n") * "\0" + hit[0].count("\0") * "\0" if hit[0][:2] in {"//", "/*"} else hit[0]

    return _COMMENT_OR_STRING.sub(put, re.sub(r"\\[ \t]*\n", "\0", text))


@dataclass
class _Branch:
    """The current branch of a condition; `done`: whether its condition or an earlier one holds."""

    line: int
    around: Truth
    counts: Truth
    done: Truth
    last: bool = False


@dataclass
class _Conditions:
    """The macros and open conditions at one line of a file."""

    macros: Macros
    branches: list[_Branch] = field(default_factory=list)

    @property
    def counts(self) -> Truth:
        """Whether the present line is compiled."""
        return self.branches[-1].counts if self.branches else True

    def process_line(self, line: str, number: int) -> str:
        """Process one line and return its visible text; empty for conditions and definitions."""
        directive = _DIRECTIVE.match(line)
        if directive is None:
            return line
        name, rest = directive.groups()
        if name in _CONDITIONS or name == "endif":
            self._condition(name, rest, number)
        elif name in {"define", "undef"}:
            self._define(name, rest)
        elif name in {"include", "include_next", "import"}:
            return "#include " + (rest if rest[:1] in {"<", '"'} else self._expanded(rest).strip())
        elif name == "error" and self.counts is True:
            raise SourceError(f"line {number}: #error {rest}")
        else:
            return line
        return ""

    def _condition(self, name: str, rest: str, number: int) -> None:
        if name.startswith("if"):
            value = self._value(name, rest) if self.counts is not False else False
            counts = _and(self.counts, value)
            self.branches.append(_Branch(line=number, around=self.counts, counts=counts, done=value))
            return
        if not self.branches or (self.branches[-1].last and name != "endif"):
            raise SourceError(f"line {number}: `#{name}` without its `#if`")
        if name == "endif":
            self.branches.pop()
            return
        branch = self.branches[-1]
        open_yet = _and(branch.around, _not(branch.done))
        value = self._value(name, rest) if open_yet is not False else False
        branch.counts = _and(open_yet, value)
        branch.done = _not(_and(_not(branch.done), _not(value)))
        branch.last = name == "else"

    def _value(self, name: str, rest: str) -> Truth:
        if name == "else":
            return True
        if name in {"if", "elif"}:
            return _truth(self._expanded(_DEFINED.sub(self._is_defined, rest)))
        known = self._defined(rest.partition(" ")[0])
        return known if name.endswith("ifdef") else _not(known)

    def _defined(self, name: str) -> Truth:
        return self.macros[name] is not None if name in self.macros else None

    def _is_defined(self, hit: "re.Match[str]") -> str:
        known = self._defined(hit[1] or hit[2])
        return "?" if known is None else str(int(known))

    def _define(self, name: str, rest: str) -> None:
        """Define or undefine a macro. A macro with parameters gets an unknown body."""
        found = re.match(r"(\w+)(\(?)\s*(.*)", rest)
        if found is None or self.counts is False:
            return
        if self.counts is None:
            self.macros.pop(found[1], None)
        else:
            self.macros[found[1]] = None if name == "undef" else "?" if found[2] else found[3]

    def _expanded(self, text: str, seen: tuple[str, ...] = ()) -> str:
        def put(hit: "re.Match[str]") -> str:
            name = hit[0]
            if name not in self.macros or name in seen:
                return name
            body = self.macros[name]
            return "0" if body is None else self._expanded(body, (*seen, name))

        return re.sub(r"\b[A-Za-z_]\w*", put, text)


def _truth(expression: str) -> Truth:
    """Evaluate an expanded `#if` as Python, which has the same operator precedence if `!` is replaced by `~`."""
    text = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", expression)
    text = re.sub(r"!(?!=)", "~", text.replace("&&", " and ").replace("||", " or "))
    text = text.replace("?", " unknown ")
    try:
        value = _evaluated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return None if value is None else bool(value)


def _evaluated(node: ast.AST) -> Truth:
    result: Truth = None
    match node:
        case ast.Constant(value=int(value)):
            result = value
        case ast.Name(id="true" | "false" as word):
            result = word == "true"
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            result = _not(_evaluated(operand))
        case ast.BoolOp(op=ast.And(), values=operands):
            result = functools.reduce(_and, map(_evaluated, operands))
        case ast.BoolOp(op=ast.Or(), values=operands):
            result = _not(functools.reduce(_and, (_not(_evaluated(operand)) for operand in operands)))
        case ast.Compare(left=left, ops=[kind], comparators=[right]) | ast.BinOp(left=left, op=kind, right=right):
            result = _computed(type(kind), _evaluated(left), _evaluated(right))
    return result


def _computed(kind: type[ast.AST], left: Truth, right: Truth) -> Truth:
    known = kind in _OPERATORS and left is not None and right is not None
    return _OPERATORS[kind](left, right) if known else None


def _not(value: Truth) -> Truth:
    return None if value is None else not value


def _and(one: Truth, other: Truth) -> Truth:
    """Return the conjunction of two values; False if either is false, even if the other is unknown."""
    if (one is not None and not one) or (other is not None and not other):
        return False
    return None if one is None or other is None else True
