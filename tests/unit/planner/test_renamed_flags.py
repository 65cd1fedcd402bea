"""A profile that moves to a newer engine: its flags get the names that sglang gave them, with a note."""

import pytest

from orchestrator.core.errors import ProfileError
from orchestrator.planner.planning import load

NEWER = ("engine=sglang-0.5.20-rocm", "flags.dsa-prefill-backend=null", "flags.cuda-graph-max-bs-decode=null")


def flags(*overrides: str) -> dict[str, tuple[str, ...]]:
    return {flag.name: flag.values for flag in load("mi355x-tp8", overrides=overrides).plan.flags}


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        ("nsa-prefill-backend=tilelang", "dsa-prefill-backend", ("tilelang",)),
        ("cuda-graph-max-bs=16", "cuda-graph-max-bs-decode", ("16",)),
        ("disable-piecewise-cuda-graph=true", "cuda-graph-backend-prefill", ("disabled",)),
        ("mamba-scheduler-strategy=no_buffer", "mamba-radix-cache-strategy", ("no_buffer",)),
    ],
)
def test_a_renamed_flag_is_translated_with_a_note(
    old: str, new: str, values: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    found = flags(*NEWER, f"flags.{old}")
    name = old.partition("=")[0]
    assert found[new] == values
    assert name not in found
    assert f"note: `--{name}` is `--{new}" in capsys.readouterr().err
    assert name in flags("engine=sglang-0.5.16-rocm", *NEWER[1:], f"flags.{old}")


def test_the_origin_of_a_translated_flag_is_kept() -> None:
    plan = load("mi355x-tp8", overrides=[*NEWER, "flags.cuda-graph-max-bs=16"]).plan
    [flag] = [flag for flag in plan.flags if flag.name == "cuda-graph-max-bs-decode"]
    assert flag.origin == "user"


@pytest.mark.parametrize(
    "overrides",
    [
        ("flags.prefill-round-robin-balance=true",),  # removed, without a successor
        ("flags.cuda-graph-max-bs=16", "flags.cuda-graph-max-bs-decode=32"),  # both: which one is meant is not known
    ],
)
def test_a_flag_that_cannot_be_translated_is_refused(overrides: tuple[str, ...]) -> None:
    with pytest.raises(ProfileError) as refused:
        flags(*NEWER, *overrides)
    assert "sglang 0.5.20 has no option" in str([problem.message for problem in refused.value.problems_or_self()])
