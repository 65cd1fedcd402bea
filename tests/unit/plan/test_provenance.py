"""The origin and source of every value of a plan."""

from pathlib import Path

import pytest

from orchestrator.bench.published import Published, all_published
from orchestrator.cli.show import command as show
from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import ProfileError
from orchestrator.plan.plan import EnvVar, Flag, Plan
from orchestrator.planner.explain import Explained, explained
from orchestrator.planner.planning import load, profile_names

ENTRIES = "hardware: mi355x\nmodel: glm-5.2-mxfp4\nengine: sglang-0.5.14-rocm\nlayout: {tp: 8}\n"


def setting(plan: Plan, name: str) -> Flag | EnvVar:
    return next(item for item in (*plan.flags, *plan.env) if item.name == name)  # type: ignore[attr-defined]


def row(profile: str, key: str, *overrides: str) -> Explained:
    return next(row for row in explained(load(profile, overrides=overrides)) if row.key == key)


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("flags.kv-cache-dtype=auto", "kv-cache-dtype", "auto"),
        ("flags.kv-cache-dtype.value=auto", "kv-cache-dtype", "auto"),
        ("flags.kv-cache-dtype.origin=published", "kv-cache-dtype", "fp8_e4m3"),
        ("flags.kv-cache-dtype.source=somebody", "kv-cache-dtype", "fp8_e4m3"),
        ("flags.kv-cache-dtype.note=on a whim", "kv-cache-dtype", "fp8_e4m3"),
        ("env.SGLANG_USE_AITER.value=0", "SGLANG_USE_AITER", "0"),
    ],
)
def test_overriding_any_part_of_a_setting_sets_user_origin(override: str, name: str, value: str) -> None:
    result = setting(load("mi355x-tp8", overrides=[override]).plan, name)
    assert (result.values if isinstance(result, Flag) else (result.value,)) == (value,)
    section = override.partition(".")[0]
    assert (result.origin, result.source) == ("user", f"--set {section}.{name}")


def test_override_cannot_forge_published_origin() -> None:
    forged = ["flags.kv-cache-dtype=auto", "flags.kv-cache-dtype.origin=published", "flags.kv-cache-dtype.source=wafer"]
    assert setting(load("mi355x-tp8", overrides=forged).plan, "kv-cache-dtype").origin == "user"


def test_overridden_layout_has_user_origin() -> None:
    assert row("mi355x-tp4dp2", "layout.tp", "layout.tp.value=2", "flags.context-length=131072").origin == "user"
    assert row("mi355x-tp4dp2", "layout.tp").origin == "published"


def test_overridden_hardware_fact_has_user_origin() -> None:
    assert "data sheet" in row("mi355x-tp8", "hardware.vram").source
    overridden = row("mi355x-tp8", "hardware.vram", "hardware.vram=512GiB")
    assert (overridden.origin, overridden.source) == ("user", "--set hardware.vram")


def test_source_of_catalog_entry_cannot_be_overridden() -> None:
    with pytest.raises(ProfileError, match="cannot set the source of a file's facts"):
        load("mi355x-tp8", overrides=["hardware.source=wafer.ai"])


def test_origin_without_value_is_rejected(tmp_path: Path) -> None:
    """Otherwise the setting would pass its origin to the value of the layer below."""
    path = tmp_path / "mine.yaml"
    path.write_text(ENTRIES + "flags:\n  reasoning-parser: {origin: published, source: wafer.ai}\n")
    with pytest.raises(ProfileError) as caught:
        load(str(path))
    assert [problem.message for problem in caught.value.problems] == ["`flags.reasoning-parser.value` is missing"]


def test_speculation_settings_are_not_marked_published() -> None:
    """wafer.ai/blog/glm52-amd names no algorithm and gives 5/1/6 only as a suggestion of z-ai."""
    for profile in ("mi355x-tp8", "mi355x-tp4dp2"):
        plan = load(profile).plan
        assert setting(plan, "speculative-algorithm").origin == "inferred"
        for name in ("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"):
            assert setting(plan, name).origin == "recipe"


QUOTES = {entry.source: entry.quotes for entry in all_published(Published)}


@pytest.mark.parametrize("name", profile_names(Catalog.shipped()))
def test_every_published_value_has_a_quote_for_its_layout(name: str) -> None:
    loaded = load(name)
    published = [row for row in explained(loaded) if row.origin == "published"]
    unquoted = [
        f"{row.key}={row.value}"
        for row in published
        if not any(
            quote.layout == loaded.plan.layout.label and str(quote.values.get(row.key)).lower() == row.value
            for quote in QUOTES.get(row.source.partition(";")[0], ())
        )
    ]
    assert not unquoted
    assert bool(published) == (
        loaded.plan.model.name.startswith("glm-5.2-mxfp4") and name not in {"mi355x-tp4x2", "mi355x-1p1d"}
    )


def test_quote_text_contains_its_values() -> None:
    for quote in (quote for quotes in QUOTES.values() for quote in quotes):
        assert quote.subject or quote.values
        for key, value in quote.values.items():
            section, _, name = key.partition(".")
            wanted = [f"{name.upper()}{value}"] if section == "layout" else [f"--{name}"]
            assert all(text in quote.text for text in [*wanted, "" if value is True else str(value)]), key


def test_environment_variable_may_be_named_value() -> None:
    assert row("cpu-tiny", "env.value", "env.value=1").value == "1"
    assert row("cpu-tiny", "env.TORCHDYNAMO_DISABLE", "env.value=1").value == "1"


def test_show_reports_model_without_questions(capsys: pytest.CaptureFixture[str]) -> None:
    show("h200-glm-mtp")
    assert "model `glm4-moe-random` has no questions" in capsys.readouterr().out
    show("cpu-tiny")
    assert "no questions" not in capsys.readouterr().out


@pytest.mark.parametrize("profile", profile_names())
def test_inferred_values_of_shipped_profiles_have_a_reason(profile: str) -> None:
    merged = load(profile).composed.data
    for section in ("flags", "env", "layout"):
        for name, setting in merged.get(section, {}).items():  # type: ignore[union-attr]
            if isinstance(setting, dict) and setting.get("origin") == "inferred":
                assert setting.get("note") or setting.get("source"), f"{profile}: {section}.{name}"
