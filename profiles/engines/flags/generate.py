"""Print the options and metrics of one sglang version, as JSON: `python generate.py UNPACKED_WHEEL VERSION`.

`deploy add engine VERSION --flags-only` runs this and keeps what it prints. The wheel's own argument parser is asked
(`ServerArgs.add_cli_args`, sglang/srt/server_args.py), so it takes a Python that has torch and sglang's pure
dependencies: the environment of `images/sglang-cpu-0.5.14.txt`, for every version. What is missing there (compiled GPU
packages) is replaced by empty modules: the parser is made of names and types alone.

An option is `deprecated` when the parser hides it or warns about it, and `successor` is what its warning names;
`takes_value` is false for a bare switch. `nargs` is argparse's own, for an option that takes several values (`+`, `*`)
or may go without one (`?`); `type` is `int`, `float` or `json`. `same_as` is the first name of an option that has
several. `help` is what `--help` prints, without line breaks; it stands at the first name. `--help` is left out: it
starts nothing.

Metrics are read from the sources: each is made by a call that names it, `Gauge(name="sglang:…", …)`. Whether a server
exports one depends on its options too.
"""

import argparse
import ast
import contextlib
import importlib.abc
import importlib.machinery
import json
import re
import sys
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from unittest.mock import MagicMock

# Imported at the top of modules the parser needs, absent from a CPU environment.
COMPILED = {"flashinfer", "sgl_kernel", "triton", "tvm_ffi", "xgrammar"}

# What makes a metric (prometheus_client), and what Prometheus calls its type.
_METRICS = {
    "Counter": "counter",
    "Gauge": "gauge",
    "Histogram": "histogram",
    "Summary": "summary",
    "GaugeHistogram": "gaugehistogram",  # of sglang's own
}
_METRIC = re.compile(r"sglang:\w+")

# By the name of argparse's `type`. sglang's `human_readable_int` also reads `4k`; the table does not.
_TYPES = {
    "int": "int",
    "human_readable_int": "int",
    "float": "float",
    "loads": "json",
    "json_list_type": "json",
    "parse_cuda_graph_config_arg": "json",
}


class _Empty(types.ModuleType):
    """A module that has every name."""

    __path__: Sequence[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Anything,), {}) if name[:1].isupper() else MagicMock()


class _Anything:
    """A class that pydantic takes as a field's type."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> dict[str, str]:
        return {"type": "any"}


class _EmptyFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module for a package of `names` that nobody else finds."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        known = name.partition(".")[0] in self._names
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to do."""


def server_parser(root: Path) -> argparse.ArgumentParser:
    """The parser of `sglang serve` in the unpacked wheel at `root`."""
    stubs_triton = (root / "sglang" / "_triton_stub.py").is_file()  # 0.5.14, 0.5.16: the CPU shim installs it
    sys.meta_path.append(_EmptyFinder(COMPILED - {"triton"} if stubs_triton else COMPILED))
    sys.path.insert(0, str(root))
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser


def options(parser: argparse.ArgumentParser) -> dict[str, dict[str, object]]:
    """Every long option by name without dashes, sorted."""
    table = {}
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to ask
        names = [text.removeprefix("--") for text in action.option_strings if text.startswith("--")]
        for name in [] if action.dest == "help" else names:
            table[name] = _describe(action)
            if name != names[0] and not isinstance(action, argparse.BooleanOptionalAction):  # `no-…` is the opposite
                table[name]["same_as"] = names[0]
                table[name].pop("help", None)
    if "speculative-algorithm" in table:
        table["speculative-algorithm"]["choices"] = speculative_algorithms()
    return dict(sorted(table.items()))


def speculative_algorithms() -> list[str]:
    """What `--speculative-algorithm` takes: the parser takes any text, and the start rejects what is not among these.

    NEXTN is another name of EAGLE (srt/arg_groups/speculative_hook.py). Lower case, which sglang takes too, is left
    out, and so is what plugins register.
    """
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    return sorted({*SpeculativeAlgorithm.__members__, "NEXTN"} - {"NONE"})


def _describe(action: argparse.Action) -> dict[str, object]:
    described: dict[str, object] = {"takes_value": action.nargs != 0}
    if action.nargs not in (None, 0):
        described["nargs"] = action.nargs
    if kind := _TYPES.get(getattr(action.type, "__name__", "")):
        described["type"] = kind
    if action.choices is not None:
        described["choices"] = sorted(str(choice) for choice in action.choices)  # some are sets
    if action.help == argparse.SUPPRESS or "deprecated" in type(action).__name__.lower():
        described["deprecated"] = True
    if successor := getattr(action, "new_flag", None):
        described["successor"] = successor.removeprefix("--")
    if help_text := _help(action):
        described["help"] = help_text
    return described


def _help(action: argparse.Action) -> str:
    """Return the help of an option in one line, with its values put in; empty where the parser hides it or has none."""
    if not action.help or action.help == argparse.SUPPRESS:
        return ""
    try:
        text = argparse.HelpFormatter("sglang")._expand_help(action)  # noqa: SLF001 - as `--help` prints it
    except (KeyError, TypeError, ValueError):  # a bare `%`: `--help` of that version fails
        text = action.help
    return " ".join(text.split())


def metrics(root: Path) -> dict[str, str]:
    """The type of every metric that the sources in the unpacked wheel at `root` make, by name, sorted."""
    found = {}
    for path in (root / "sglang" / "srt").rglob("*.py"):
        source = path.read_bytes()
        if b'"sglang:' in source:
            found |= dict(_made(ast.parse(source)))
    return dict(sorted(found.items()))


def _made(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        maker = getattr(call.func, "id", getattr(call.func, "attr", ""))
        named = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "name")]
        for value in named if maker in _METRICS else ():
            if isinstance(value, ast.Constant) and _METRIC.fullmatch(str(value.value)):
                yield str(value.value), _METRICS[maker]


def write(version: str, parts: Mapping[str, Mapping[str, object]]) -> str:
    """JSON with one option or one metric a line."""
    return f'{{\n  "sglang": {json.dumps(version)},\n' + ",\n".join(map(_part, parts, parts.values())) + "\n}\n"


def _part(name: str, entries: Mapping[str, object]) -> str:
    lines = ",\n".join(f"    {json.dumps(key)}: {json.dumps(entry)}" for key, entry in entries.items())
    return f'  "{name}": {{\n{lines}\n  }}'


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: generate.py UNPACKED_WHEEL VERSION")
    with contextlib.redirect_stdout(sys.stderr):  # what modules print while they are imported
        root = Path(sys.argv[1]).absolute()
        parser = server_parser(root)
        parts = {"flags": options(parser), "metrics": metrics(root)}
    sys.stdout.write(write(sys.argv[2], parts))
