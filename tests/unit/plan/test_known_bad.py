"""Layouts that are reported broken are refused with the report, and only those."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from plan_samples import flag, plan_of

from orchestrator.commands.planning import load, read_known_bad
from orchestrator.core.catalogue import Catalogue
from orchestrator.core.errors import ProfileError
from orchestrator.plan import Plan
from orchestrator.plan.known_bad import image_date, known_bad

REPORTS = read_known_bad(Catalogue.shipped())


def ids(plan: Plan) -> set[str]:
    """The reports that speak of a plan."""
    return {report.id for report in REPORTS if known_bad([report], plan)}


def on(plan: Plan, version: str) -> Plan:
    return replace(plan, engine=replace(plan.engine, version=version))


@pytest.mark.parametrize("profile", ["mi355x-tp8", "mi355x-tp4dp2", "b200-tp8", "cpu-tiny"])
def test_the_shipped_profiles_are_good(profile: str) -> None:
    assert ids(plan_of(profile)) == set()


def test_dp_attention_on_rocm_in_the_versions_it_was_reported_for() -> None:
    plan = plan_of("mi355x-tp8")
    spread = replace(plan, layout=replace(plan.layout, dp=8, dp_attention=True))
    assert "dsa-dp-attention-hang" in ids(on(spread, "0.5.14"))
    assert "dp-attention-mtp-topk" in ids(on(spread, "0.5.15.post1"))
    assert ids(on(spread, "0.5.16")) == set()
    assert "dsa-dp-attention-hang" not in ids(on(plan, "0.5.14"))
    cuda = replace(spread, engine=replace(spread.engine, platform="cuda"))
    assert "dsa-dp-attention-hang" not in ids(on(cuda, "0.5.14"))


def test_a_variable_that_makes_it_good_is_looked_for() -> None:
    plan = on(plan_of("mi355x-tp8"), "0.5.15.post1")
    kept = tuple(variable for variable in plan.env if variable.name != "SGLANG_OPT_USE_TOPK_V2")
    assert "topk-v2-without-header" in ids(replace(plan, env=kept))


def test_values_of_flags_and_dates_of_images() -> None:
    plan = plan_of("mi355x-tp8", flags=(flag("chunked-prefill-size", "131072"), flag("mem-fraction-static", "0.85")))
    assert "prefill-131072-out-of-memory" in ids(plan)
    lower = replace(plan, flags=(flag("chunked-prefill-size", "131072"), flag("mem-fraction-static", "0.80")))
    assert "prefill-131072-out-of-memory" not in ids(lower)
    fp8 = replace(plan, model=replace(plan.model, quantisation="fp8"))
    old = replace(fp8, engine=replace(fp8.engine, image="lmsysorg/sglang-rocm:v0.5.13-rocm720-mi35x-20260611"))
    assert "gfx950-block-fp8-miscompiled" in ids(old)
    assert "gfx950-block-fp8-miscompiled" not in ids(fp8)
    assert image_date("lmsysorg/sglang:v0.5.16-cu130") == 0


def test_a_refusal_names_its_source_and_the_way_around() -> None:
    with pytest.raises(ProfileError) as caught:
        load("mi355x-tp8-july", overrides=["layout.dp=8", "layout.dp_attention=true"])
    (problem,) = caught.value.problems
    assert "sglang #33973" in problem.message
    assert "accept_known_bad=[dsa-dp-attention-hang]" in problem.hint
    assert problem.where == "--set layout.dp_attention"


def test_a_refusal_names_the_key_that_is_known_bad() -> None:
    with pytest.raises(ProfileError) as caught:
        load("mi355x-tp8", overrides=["flags.chunked-prefill-size=131072", "flags.mem-fraction-static=0.85"])
    (problem,) = caught.value.problems
    assert problem.where == "--set flags.chunked-prefill-size"


def test_a_report_that_the_user_accepts_is_not_raised() -> None:
    plan = plan_of("mi355x-tp8")
    spread = replace(plan, layout=replace(plan.layout, dp=8, dp_attention=True))
    assert known_bad(REPORTS, on(spread, "0.5.14"), accepted=["dsa-dp-attention-hang"]) == ()


@pytest.mark.parametrize(
    "entry",
    [
        '{id: x, what: w, source: s, hint: h, when: {engine: "0.5"}}',
        "{id: x, what: w, source: s, hint: h, when: {dp-attention: true}}",
        "{id: x, what: w, hint: h, when: {}}",
        "{id: x, what: w, source: s, instead: i, when: {}}",
    ],
)
def test_a_report_that_is_not_well_formed_is_refused_at_its_line(entry: str, tmp_path: Path) -> None:
    path = tmp_path / "profiles/reports/known-bad.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"known_bad:\n\n  - {entry}\n")
    with pytest.raises(ProfileError) as caught:
        read_known_bad(Catalogue((tmp_path,)))
    assert "known_bad.0." in caught.value.problems[0].message
    assert caught.value.problems[0].where == "profiles/reports/known-bad.yaml:3"


def test_every_report_has_a_source_and_a_condition() -> None:
    assert len({report.id for report in REPORTS}) == len(REPORTS)
    assert all(report.when.model_fields_set and re.search(r"\d", report.source) for report in REPORTS)
