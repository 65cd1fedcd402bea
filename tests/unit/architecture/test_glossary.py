"""Test that retired words appear neither in names nor in texts and comments: one concept has one word."""

import ast
import io
import re
import tokenize
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
# These modules map old names to new ones, or test that.
WITH_OLD_NAMES: Final = {
    ROOT / "orchestrator/cli/commands.py",
    ROOT / "orchestrator/core/validation.py",
    Path(__file__),
}


def words(text: str) -> Iterator[str]:
    """Return the words of a name or text in lower case; `CamelCase` and `snake_case` are split."""
    return (word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text))


def names_in(nodes: Nodes) -> Iterator[tuple[int, str]]:
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def texts_in(nodes: Nodes, source: str) -> Iterator[tuple[int, str]]:
    """Yield the strings and the comments of a module, with their lines."""
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)):
                yield node.lineno, text
    if RETIRED.keys().isdisjoint(words(source)):  # tokenizing is slow
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def retired_in(path: Path) -> list[str]:
    source = path.read_text(encoding="utf-8")
    python = path.suffix == ".py"
    # Parse only files that contain such a word; the `n` of `\n` is not part of a word.
    if RETIRED_IN_NAMES.keys().isdisjoint(words(f"{path.stem} {ESCAPE.sub(' ', source)}")):
        return []
    nodes = nodes_in(source) if python else ()
    names = [(0, path.stem), *names_in(nodes)]
    texts = texts_in(nodes, source) if python else enumerate(source.splitlines(), start=1)
    # The name of a test is a sentence: only the words that are retired everywhere count.
    matches = [(line, name, RETIRED if line and name.startswith("test_") else RETIRED_IN_NAMES) for line, name in names]
    matches += [(*text, RETIRED) for text in texts]
    return [
        f"{path}:{line}: write `{table[word]}`, not `{word}`"
        for line, text, table in sorted(matches, key=lambda item: item[0])
        for word in words(text)
        if word in table
    ]


def test_no_retired_word_is_used() -> None:
    paths = {
        *(path for suffix in ("py", "j2", "yaml") for path in ROOT.glob(f"orchestrator/**/*.{suffix}")),
        *(path for folder in ("patches", "profiles") for path in ROOT.glob(f"{folder}/**/*.yaml")),
        *(path for folder in ("images", "tests") for path in ROOT.glob(f"{folder}/**/*.py")),
        *(path for path in ROOT.glob(".ci/*") if path.is_file()),
        *(path for suffix in ("md", "yml") for path in ROOT.glob(f".github/**/*.{suffix}")),
        *ROOT.glob("docs/**/*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml")),
    }
    assert len(paths) > 1000
    assert [problem for path in sorted(paths - WITH_OLD_NAMES) for problem in retired_in(path)] == []


def test_retired_word_is_detected_in_names_and_text(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        'class ServerVigil:\n    def heal_it(self, knock):\n        """Heal it."""\n        return f"{knock} hazard"\n'
        '    def told(self, whose): self.why = "why"\n'
        "def test_each_vigil(each): ...\n"
        "# a lookalike\n"
    )
    assert [problem.split(":", 1)[1] for problem in retired_in(path)] == [
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
        "7: write `secret match`, not `lookalike`",
    ]
