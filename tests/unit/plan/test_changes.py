"""The diff of the running plan and the requested plan."""

from dataclasses import replace

from plan_flags import flag_of

from orchestrator.plan.diff import render_diff
from orchestrator.planner.planning import load


def test_diff_shows_changed_values_as_written() -> None:
    old = load("mi355x-tp8", overrides=["flags.cuda-graph-bs-decode=[1,2]"]).plan
    new = load(
        "mi355x-tp8",
        overrides=[
            "flags.cuda-graph-bs-decode=[1,2,4]",
            "flags.max-running-requests=9",
            "flags.trust-remote-code=false",
        ],
    ).plan
    new = replace(new, hardware=replace(new.hardware, container=replace(new.hardware.container, groups=())))
    assert render_diff(old.to_dict(), new.to_dict()).splitlines() == [
        "- flags.cuda-graph-bs-decode: 1 2",
        "+ flags.cuda-graph-bs-decode: 1 2 4",
        f"- flags.max-running-requests: {flag_of(old, 'max-running-requests')}",
        "+ flags.max-running-requests: 9",
        "- flags.trust-remote-code: true",
        "- hardware.container.groups: video render",
        "+ hardware.container.groups: none",
    ]


def test_equal_plans_have_empty_diff() -> None:
    plan = load("cpu-tiny").plan
    assert render_diff(plan.to_dict(), plan.to_dict()) == ""


def test_diff_reports_that_only_origins_differ() -> None:
    """The digest differs too: `--set` is the new origin of the value."""
    old, new = load("cpu-tiny").plan, load("cpu-tiny", overrides=["env.OMP_NUM_THREADS=1"]).plan
    assert old.digest != new.digest
    assert render_diff(old.to_dict(), new.to_dict()).startswith("no value differs; only origins or descriptions do")
