"""Retired words do not come back, neither as parts of names nor in texts: one concept has one word."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml
from sources import Nodes, nodes_in

from orchestrator.core.paths import data_root

ROOT: Final = data_root()
_GLOSSARY: Final = yaml.safe_load(Path(__file__).with_name("glossary.yaml").read_text(encoding="utf-8"))
RETIRED: Final[dict[str, str]] = _GLOSSARY["everywhere"]
RETIRED_IN_NAMES: Final[dict[str, str]] = RETIRED | _GLOSSARY["names"]
ESCAPE: Final = re.compile(r"\\[abfnrtv]")
# These lead from an old name to the new one, or test that.
WITH_OLD_NAMES: Final = {
    ROOT / "orchestrator/cli/commands.py",
    ROOT / "orchestrator/core/validation.py",
    Path(__file__),
}


def words(text: str) -> Iterator[str]:
    """The words of a name or a text, in lower case; `CamelCase` and `snake_case` are split."""
    return (word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text))


def names_in(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """The names that a source defines, with their lines."""
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def texts_in(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """The string literals of a source, with their lines."""
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)):
                yield node.lineno, text


def retired_in(path: Path) -> list[str]:
    """The retired words in the names and the texts of a file."""
    source = path.read_text(encoding="utf-8")
    python = path.suffix == ".py"
    # Few files have such a word at all; the `n` of `\n` belongs to no word.
    if RETIRED_IN_NAMES.keys().isdisjoint(words(f"{path.stem} {ESCAPE.sub(' ', source)}")):
        return []
    nodes = nodes_in(source) if python else ()
    names = [(0, path.stem), *names_in(nodes)]
    texts = texts_in(nodes) if python else enumerate(source.splitlines(), start=1)
    # The name of a test is a sentence.
    found = [(line, name, RETIRED if line and name.startswith("test_") else RETIRED_IN_NAMES) for line, name in names]
    found += [(*text, RETIRED) for text in texts]
    return [
        f"{path}:{line}: write `{table[word]}`, not `{word}`"
        for line, text, table in sorted(found, key=lambda item: item[0])
        for word in words(text)
        if word in table
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
        '    def told(self, whose): self.why = "why"\n'
        "def test_each_vigil(each): ...\n"
    )
    assert [fault.split(":", 1)[1] for fault in retired_in(path)] == [
        "1: write `watcher`, not `vigil`",
        "2: write `restart`, not `heal`",
        "2: write `check the port`, not `knock`",
        "3: write `restart`, not `heal`",
        "4: write `warning`, not `hazard`",
        "5: write `reported`, not `told`",
        "5: write `owner`, not `whose`",
        "5: write `reason`, not `why`",
        "6: write `watcher`, not `vigil`",
        "6: write `the singular of what is iterated`, not `each`",
    ]
