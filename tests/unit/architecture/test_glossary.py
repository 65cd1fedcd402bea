"""Retired words do not come back, neither as parts of names nor in texts: one concept has one word."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.core.paths import data_root

ROOT: Final = data_root()
# Each word with the one that is used instead.
RETIRED: Final = {
    "behaviour": "behavior",
    "borrowed": "fallback",
    "catalogue": "catalog",
    "colour": "color",
    "hazard": "warning",
    "hazards": "warnings",
    "heal": "restart",
    "healed": "restarted",
    "healer": "worker",
    "healing": "restart",
    "inexact": "nondeterministic",
    "knock": "check the port",
    "lookalike": "secret match",
    "onboard": "add",
    "pulse": "health",
    "quantisation": "quantization",
    "quantise": "quantize",
    "quantised": "quantized",
    "rekeyed": "derived",
    "sieve": "prefilter",
    "vigil": "watcher",
}
# These lead from an old name to the new one, or test that.
WITH_OLD_NAMES: Final = {
    ROOT / "orchestrator/cli/commands.py",
    ROOT / "orchestrator/core/validation.py",
    Path(__file__),
}


def words(text: str) -> Iterator[str]:
    """The words of a name or a text, in lower case; `CamelCase` and `snake_case` are split."""
    return (word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text))


def names_and_texts(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.Constant(value=str(text)):
                yield node.lineno, text


def retired_in(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    lines = names_and_texts(text) if path.suffix == ".py" else enumerate(text.splitlines(), start=1)
    found = [(0, path.stem), *lines]
    return [
        f"{path}:{line}: write `{RETIRED[word]}`, not `{word}`"
        for line, text in found
        for word in words(text)
        if word in RETIRED
    ]


def test_no_retired_word_is_used() -> None:
    paths = {
        *(path for suffix in ("py", "j2", "yaml") for path in ROOT.glob(f"orchestrator/**/*.{suffix}")),
        *(path for folder in ("patches", "profiles") for path in ROOT.glob(f"{folder}/**/*.yaml")),
        *(path for folder in ("images", "tests") for path in ROOT.glob(f"{folder}/**/*.py")),
        *ROOT.glob("docs/**/*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "Makefile",
    }
    assert len(paths) > 1000
    assert [fault for path in sorted(paths - WITH_OLD_NAMES) for fault in retired_in(path)] == []


def test_retired_word_is_detected_in_names_and_text(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        'class ServerVigil:\n    def heal_it(self, knock):\n        """Heal it."""\n        return f"{knock} hazard"\n'
    )
    assert [fault.split(":", 1)[1] for fault in retired_in(path)] == [
        "1: write `watcher`, not `vigil`",
        "2: write `restart`, not `heal`",
        "2: write `check the port`, not `knock`",
        "3: write `restart`, not `heal`",
        "4: write `warning`, not `hazard`",
    ]
