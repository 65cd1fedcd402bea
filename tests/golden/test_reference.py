"""The pages in docs/reference match the code; `UPDATE_GOLDEN=1 pytest tests/golden` writes them."""

import inspect
import json
import os
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from orchestrator.checkpoints.quantize.recipe import load_recipe
from orchestrator.cli.main import app
from orchestrator.cli.schema import json_outputs, output_schema
from orchestrator.core import errors
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.json_output import DRAFT
from orchestrator.core.paths import data_root
from orchestrator.patches.ledger import read_ledger
from orchestrator.profiles import schema
from orchestrator.profiles.settings import Setting

ROOT = data_root()
SCHEMAS = "json-schemas.json"


def table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def exit_codes() -> str:
    """Return one row for each code, from its error class."""
    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if "exit_code" in vars(kind)]
    rows = sorted((kind.exit_code, (kind.__doc__ or "").partition("\n")[0]) for kind in classes)  # type: ignore[attr-defined]
    return table(("code", "when"), ((str(code), text) for code, text in rows))


def commands() -> str:
    """Return one row for each command or group, from the first sentence of its help."""
    return table(("command", "what it does"), _commands())


def _commands() -> Iterator[tuple[str, ...]]:
    for name in _listed(_help(())):
        page = _help((name,))
        usage, summary, _ = page.split("\n\n", 2)
        words = " ".join(usage.removeprefix("Usage: ").replace(" [OPTIONS]", "").split())
        if "COMMAND [ARGS]" in usage:
            words = f"deploy {name} {'|'.join(_listed(page))}"
        first, stop, _ = " ".join(summary.split()).partition(". ")
        yield f"`{words}`", first + stop.strip()


def _listed(page: str) -> list[str]:
    return re.findall(r"^  ([a-z]+)  ", page.partition("-h, --help")[2], re.MULTILINE)


def _help(words: tuple[str, ...]) -> str:
    return CliRunner().invoke(app, [*words, "--help"], prog_name="deploy", env={"COLUMNS": "200"}).stdout


def profile_keys() -> str:
    rows = (row for row in _keys(schema.Profile, "") if not row[0].startswith(("`layout.prefill.", "`layout.decode.")))
    return table(("key", "default", "meaning"), rows)


def _keys(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        inner = _section(field.annotation)
        if inner is not None:
            yield from _keys(inner, f"{prefix}{name}.")
            continue
        default = "required" if field.is_required() else _default(field.default)
        yield f"`{prefix}{name}`", default, field.description or ""


def _default(value: object) -> str:
    shown = value.value if isinstance(value, Setting) else value
    return "" if shown in (None, "", [], {}) else f"`{str(shown).lower() if isinstance(shown, bool) else shown}`"


def _section(annotation: object) -> type[BaseModel] | None:
    """Return the model of a section; None for a setting, which is a value."""
    for part in (annotation, *typing.get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel) and not issubclass(part, Setting):
            return part
    return None


def patches() -> str:
    rows = (
        (f"`{patch.id}`", patch.apply.kind, patch.title, patch.applies.engine or "any", patch.upstream.reference)
        for patch in read_ledger()
    )
    return table(("patch", "kind", "what it repairs", "sglang", "upstream"), rows)


def recipes() -> str:
    rows = (
        (f"`{name}`", recipe.description, ", ".join(f"`{pattern}`" for pattern in recipe.exclude), recipe.source)
        for name in Catalog.shipped().names(EntryKind.RECIPE)
        for recipe in (load_recipe(name, Catalog.shipped()),)
    )
    return table(("recipe", "what it does", "excluded", "source"), rows)


def json_schemas() -> str:
    """Return one line for each command, as `deploy schema COMMAND` prints it, and one for each shared class.

    If one command omits empty fields and another prints null, the class requires only the fields that both print.
    """
    outputs = json_outputs()
    found = (pair for output in outputs.values() for pair in output.schema["$defs"].items())
    shared = dict(sorted(found, key=lambda pair: (pair[0], -len(pair[1].get("required", ())))))
    lines = [f'"{name}": {json.dumps(definition, ensure_ascii=False)}' for name, definition in shared.items()]
    commands = {words: json.loads(output_schema(words, outputs[words])) for words in sorted(outputs)}
    of_commands = [
        f'"{words}": {json.dumps({"title": command["title"], "anyOf": command["anyOf"]})}'
        for words, command in commands.items()
    ]
    return f'{{"$schema": "{DRAFT}",\n' + ",\n".join([*of_commands, '"$defs": {' + ",\n".join(lines) + "}"]) + "}\n"


_ROLE_KEYS = ", ".join(f"`{name}`" for name in schema.RoleSection.model_fields)

# The pages in docs/reference: file, title, introduction, table.
REFERENCE: dict[str, tuple[str, str, Callable[[], str]]] = {
    "commands.md": (
        "Commands",
        """`deploy COMMAND --help` has all options. `--profile P` and `-p P` mean the same as the argument `P`.
`--json` prints one JSON document (`top` and `watch`: lines of JSON), after an error `{"error": {…}}`.
`deploy schema COMMAND` prints its schema ([all](json-schemas.json)). Messages go to standard error.
`NO_COLOR` is honored. SIGTERM and a closed terminal count as Ctrl-C. `deploy --show-completion` prints the
completion script for your shell.""",
        commands,
    ),
    "exit-codes.md": ("Exit codes", "0 means success.", exit_codes),
    "profile-keys.md": (
        "Profile keys",
        f"""`required`: some layer states it. `layout.prefill` and `layout.decode` have the keys {_ROLE_KEYS};
`tp` to `nodes` have the values of `layout` as defaults, `replicas` 1.""",
        profile_keys,
    ),
    "patches.md": ("Patches", "What each is for, and how to add one: [patches](../how-to/patches.md).", patches),
    "recipes.md": (
        "Recipes of quantization",
        "`{mtp}` is the number of the MTP layer. How to use them: [quantize](../how-to/quantize.md).",
        recipes,
    ),
}


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_reference_page_matches_code(name: str) -> None:
    title, text, generate = REFERENCE[name]
    expected = f"# {title}\n\n{text}\n\n{generate()}\n"
    page = ROOT / "docs/reference" / name
    if os.environ.get("UPDATE_GOLDEN"):
        page.write_text(expected)
        return
    assert page.read_text() == expected, "UPDATE_GOLDEN=1 pytest tests/golden writes the pages"


def test_json_output_schemas_match_code() -> None:
    """A change of the schemas affects every program that reads a command's JSON."""
    page = ROOT / "docs/reference" / SCHEMAS
    if os.environ.get("UPDATE_GOLDEN"):
        page.write_text(json_schemas())
    assert page.read_text() == json_schemas(), "UPDATE_GOLDEN=1 pytest tests/golden writes the schemas"


def test_every_reference_page_is_generated() -> None:
    assert {page.name for page in (ROOT / "docs/reference").glob("*")} == {*REFERENCE, SCHEMAS}


_NOT_OURS = {".venv", ".pytest_cache"}
PAGES = sorted(path for path in ROOT.glob("**/*.md") if not _NOT_OURS & {*path.parts})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    """External addresses are not checked."""
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        file, _, heading = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{link} leads nowhere"
        if heading:
            found = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", line).lower().replace(" ", "-") for line in found}, link


OWN_PAGES = [page for page in PAGES if page.parent.name != "recorded"]  # recorded pages name other projects' modules


@pytest.mark.parametrize("page", OWN_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_documented_module_exists(page: Path) -> None:
    roots = (ROOT, ROOT / "orchestrator", ROOT / "tests", ROOT / "tests/unit", ROOT / "tests/integration", page.parent)
    for named in re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", page.read_text()):
        assert any((root / named).exists() for root in roots), f"`{named}` does not exist"


def test_documentation_pages_stay_short() -> None:
    assert (ROOT / "README.md").read_text().count("\n") <= 120
    for folder in ("profiles", "patches", "images", "tests"):
        assert (ROOT / folder / "README.md").read_text().count("\n") <= 40, folder
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]  # grows with each change
    assert sum(len(re.findall(r"[A-Za-z0-9][^\s|]*", page.read_text())) for page in pages) <= 18_250
