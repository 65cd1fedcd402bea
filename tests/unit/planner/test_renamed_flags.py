"""Flags of a profile that moves to a newer engine: they get sglang's new names, with a note."""

import pytest

from orchestrator.core.errors import ProfileError
from orchestrator.planner.planning import load, render_artifacts

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
def test_renamed_flag_is_translated_with_note(
    old: str, new: str, values: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    translated = flags(*NEWER, f"flags.{old}")
    name = old.partition("=")[0]
    assert translated[new] == values
    assert name not in translated
    assert f"note: `--{name}` is `--{new}" in capsys.readouterr().err
    assert name in flags("engine=sglang-0.5.16-rocm", *NEWER[1:], f"flags.{old}")


def test_dp_attention_flags_are_translated_with_note(capsys: pytest.CaptureFixture[str]) -> None:
    engine = ("engine.image=rocm/sgl-dev:mine", "flags.dsa-prefill-backend=null", "flags.cuda-graph-max-bs-decode=null")
    issues = "allow_known_issues=[dp-attention-mtp-topk]"
    layout = ("layout.tp=8", "layout.dp=8", "layout.dp_attention=true", issues, *engine)
    lines = {}
    for version in ("0.5.21", "0.5.22"):
        plan = load("mi355x-tp8", overrides=[f"engine.version={version}", *layout]).plan
        lines[version] = " ".join(render_artifacts(plan).command.argv)
        stderr = capsys.readouterr().err
        note = f"`--dp-size --enable-dp-attention` is `--attn-dp-size` in sglang {version} (--set layout.dp_attention)"
        assert (note in stderr) == (version == "0.5.22")
    assert "--dp-size 8 --enable-dp-attention" in lines["0.5.21"]
    assert "--attn-dp-size 8" in lines["0.5.22"]
    assert "enable-dp-attention" not in lines["0.5.22"]


def test_removed_flag_hints_at_removal() -> None:
    with pytest.raises(ProfileError) as caught:
        flags(*NEWER, "flags.prefill-round-robin-balance=true")
    [problem] = caught.value.problems_or_self()
    assert problem.hint == "remove it: sglang 0.5.19 has it, newer versions neither have nor replace it"


def test_translated_flag_keeps_its_origin() -> None:
    plan = load("mi355x-tp8", overrides=[*NEWER, "flags.cuda-graph-max-bs=16"]).plan
    [flag] = [flag for flag in plan.flags if flag.name == "cuda-graph-max-bs-decode"]
    assert flag.origin == "user"


@pytest.mark.parametrize(
    "overrides",
    [
        ("flags.prefill-round-robin-balance=true",),  # removed, without a successor
        ("flags.cuda-graph-max-bs=16", "flags.cuda-graph-max-bs-decode=32"),  # two values for one flag
    ],
)
def test_untranslatable_flag_is_rejected(overrides: tuple[str, ...]) -> None:
    with pytest.raises(ProfileError) as caught:
        flags(*NEWER, *overrides)
    assert "sglang 0.5.20 has no option" in str([problem.message for problem in caught.value.problems_or_self()])
