"""`deploy show --explain`: each flag that a profile sets, with the help of the engine's own parser."""

import json

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.engine.flags import parse_flags, read_flags
from orchestrator.planner.explain import explained, explained_text
from orchestrator.planner.planning import load, profile_names

MEANING = "The maximum number of running requests."


def test_every_flag_of_every_profile_has_help() -> None:
    for profile in profile_names():
        for row in explained(load(profile)):
            assert bool(row.help) is (row.key.split(".")[-2:-1] == ["flags"]), row
            assert "no help" not in row.help, row


def test_flags_are_explained_with_their_meaning() -> None:
    rows = explained(load("mi355x-tp8", overrides=["flags.max-running-requests=8"]))
    for width in (None, 80):
        lines = explained_text(rows, width=width).splitlines()
        index = lines.index("flags.max-running-requests = 8")
        assert lines[index + 1].startswith("    --set flags.max-running-requests: user; ")
        assert lines[index + 2] == f"    {MEANING}"
    assert MEANING in [row.help for row in rows]


def test_shipped_flag_tables_have_help_for_visible_flags() -> None:
    catalog = Catalog.shipped()
    for version in catalog.names(EntryKind.FLAGS):
        table = read_flags(version, catalog)
        hidden = {name for name, spec in table.flags.items() if spec.deprecated}
        missing = {name for name in table.flags if "no help" in table.help_of(name)}
        assert missing <= hidden, version


def test_alias_has_help_of_its_flag() -> None:
    table = read_flags("0.5.16", Catalog.shipped())
    assert table.flags["tensor-parallel-size"].alias_of == "tp-size"
    assert table.help_of("tensor-parallel-size") == table.help_of("tp-size") == "The tensor parallelism size."


def test_table_without_help_hints_at_rewriting_it() -> None:
    old = json.dumps({"sglang": "0.5.1", "flags": {"x": {"takes_value": True}}})
    assert (
        parse_flags("0.5.1", old).help_of("x")
        == "the flag table has no help; `deploy add engine 0.5.1 --flags-only` rewrites it"
    )
