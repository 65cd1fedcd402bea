"""Test what is known of a plan's tuned kernels before a download, and the rejection of untuned plans."""

import json
import os
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path

import pytest
from kernel_samples import FUSED_TP8, UNFUSED_TP8, every_bucket, glm_plan
from plan_flags import flag_of
from quark_samples import Tiny, write_tiny
from typer.testing import CliRunner

from orchestrator.checkpoints.verify import checkpoint_directory
from orchestrator.cli.kernels.tune import command as tune
from orchestrator.cli.main import app
from orchestrator.cli.render import command as render
from orchestrator.cli.reproduce import command as reproduce
from orchestrator.cli.show import command as show
from orchestrator.cli.up import command as up
from orchestrator.core.errors import KernelsError, ProfileError, UsageError
from orchestrator.core.origin import Origin
from orchestrator.core.paths import Home
from orchestrator.kernels.coverage import to_text, workload_buckets
from orchestrator.kernels.disk.store import Store
from orchestrator.kernels.keys import buckets
from orchestrator.kernels.plan_coverage import (
    TABLE_PATCH,
    TUNING_HOURS,
    RowSources,
    compute_coverage,
    report_coverage,
    require_tuned,
    tuning_options,
)
from orchestrator.kernels.plan_table import make_table
from orchestrator.plan.facts import NO_FACTS, Facts
from orchestrator.plan.fusion import inferred_fusion_flag
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load, read_profile
from orchestrator.planner.source import RunSource, profile_source
from orchestrator.runs.run_dir import RunDir
from orchestrator.runtimes.base import HostRef
from orchestrator.servers.start.prepare import known_experts


def plan_of(profile: str, *overrides: str) -> Plan:
    return load(profile, overrides=overrides).plan


@pytest.mark.parametrize(
    ("profile", "missing", "untuned"),
    [
        ("mi355x-tp8", (), ()),
        ("mi355x-tp4dp2", (), ()),
        ("mi355x-tp8-july", (1, 2, 4, 8, 32, 128, 256, 512), (8, 32, 128)),
        ("mi355x-tp4dp2-july", (1, 2, 8), (8,)),
    ],
)
def test_coverage_of_each_aiter_pin_is_known(
    profile: str, missing: tuple[int, ...], untuned: tuple[int, ...], tmp_path: Path
) -> None:
    coverage = compute_coverage(plan_of(profile), RowSources(), Home(tmp_path))
    for key in coverage.keys:
        assert tuple(bucket.key.token for bucket in key.buckets if not bucket.state.runs_tuned) == missing
    assert coverage.untuned_in_workload == untuned


@pytest.mark.parametrize(("layout", "label", "keys"), [("tp8", "TP8", 17), ("tp4dp2", "TP4×DP2", 16)])
def test_published_checkpoint_uses_derived_kernels_until_tuned(
    layout: str, label: str, keys: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shared experts are BF16, so the key is 256/8, for which no table is published."""
    name, home = f"mi355x-{layout}-routed", Home(tmp_path)
    report_coverage(plan_of(name), home)
    plan = capsys.readouterr().err
    assert f"{label}, unfused 256/8: 0 tuned, {keys} derived, 0 fallback, 0 untuned of {keys};" in plan
    assert "257/9" not in plan
    assert f"`deploy kernels tune PROFILE --retune-derived` on a node with these GPUs: {keys} keys of 1 to" in plan
    assert tuning_options(plan_of(name)) == ("--retune-derived",)
    result = CliRunner().invoke(app, ["kernels", "coverage", name], env={"DEPLOY_HOME": str(tmp_path)})
    assert f"topk 8 (looked up; {keys} derived" in result.stdout
    assert f"`deploy kernels tune {name} --retune-derived`" in result.stderr
    assert tuning_options(plan_of(f"mi355x-{layout}")) is None
    report_coverage(plan_of(f"mi355x-{layout}"), home)
    assert "--retune-derived" not in capsys.readouterr().err


def test_coverage_line_counts_each_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_coverage(plan_of("mi355x-tp8-july"), Home(tmp_path))
    line = capsys.readouterr().err
    assert "TP8, fused 257/9: 8 tuned, 0 derived, 1 fallback, 8 untuned of 17;" in line
    assert "unfused 256/8: 0 tuned, 9 derived, 0 fallback, 8 untuned of 17;" in line
    assert "workload uses 8, 16, 32, 64, 128, 131072; untuned in workload: 8, 32, 128" in line


@pytest.mark.parametrize(
    ("flags", "buckets"),
    [
        ({"speculative_algorithm": "EAGLE", "speculative_num_steps": "5", "max_running_requests": "1"}, (8,)),
        ({"speculative_algorithm": "EAGLE", "max_running_requests": "2"}, (4, 8)),
        ({"max_running_requests": "3"}, (1, 2, 4)),
        ({"speculative_algorithm": "EAGLE"}, (4, 8, 16, 32, 64, 128, 256)),
    ],
)
def test_workload_buckets_include_all_draft_tokens(flags: dict[str, str], buckets: tuple[int, ...]) -> None:
    assert workload_buckets(glm_plan(chunked_prefill_size="8192", **flags)) == (*buckets, 8192)


def test_untuned_workload_is_rejected_with_alternatives(tmp_path: Path) -> None:
    with pytest.raises(
        KernelsError, match="no tuned MoE kernel for batches of `mi355x-tp4dp2-july`: 8 tokens"
    ) as caught:
        require_tuned(plan_of("mi355x-tp4dp2-july"), Home(tmp_path))
    alternatives = (
        "`deploy kernels tune PROFILE` on a node with these GPUs: 6 keys of 1, 2, 8 tokens, at most 12 hours",
        "11.84 USD each, up to 142 USD (InferenceX total cost of ownership",
        "`--allow-untuned`",
    )
    for alternative in alternatives:
        assert alternative in caught.value.hint
    assert signature(tune).parameters["hours"].default == TUNING_HOURS
    require_tuned(plan_of("mi355x-tp4dp2"), Home(tmp_path))
    require_tuned(plan_of("cpu-tiny"), Home(tmp_path))


def test_dry_run_rejects_untuned_plan_like_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("plan_warnings", "estimate"):
        monkeypatch.setattr(f"orchestrator.planner.{module}.local_config", lambda _: None)
    with pytest.raises(KernelsError, match="8, 32, 128 tokens"):
        up(profile="mi355x-tp8-july", dry_run=True)
    assert "untuned in workload: 8, 32, 128; `deploy up` requires tuned kernels" in capsys.readouterr().err
    up(profile="mi355x-tp8-july", dry_run=True, allow_untuned=True)


@pytest.mark.parametrize("command", [show, partial(render, output=Path("out"))])
def test_show_and_render_report_untuned_kernels(
    command: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("orchestrator.planner.plan_warnings.local_config", lambda _: None)
    command(profile="mi355x-tp4dp2-july")
    output = " ".join("".join(capsys.readouterr()).split())
    assert "no tuned MoE kernel for batches of `mi355x-tp4dp2-july`: 8 tokens" in output
    assert "on a node with these GPUs: 6 keys of 1, 2, 8 tokens, at most 12 hours (no duration is published)" in output
    assert "11.84 USD each, up to 142 USD (InferenceX total cost of ownership" in output
    command(profile="mi355x-tp4dp2")
    assert "no tuned MoE kernel" not in "".join(capsys.readouterr())


def test_tune_dry_run_prints_limit_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    tune(profile="mi355x-tp4dp2-july", hours=2, dry_run=True, price=["2"])
    assert "6 keys, at most 2 hours; no duration is published; up to 32.00 USD, at 16.00" in capsys.readouterr().err


def test_reproduce_includes_tuning_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reproduce("wafer-glm52", set_=["engine=sglang-0.5.14-rocm"], tune=True, dry_run=True, output=tmp_path / "new")
    captured = capsys.readouterr()
    tuned = [line for line in captured.out.splitlines() if line.startswith("deploy kernels tune ")]
    assert [line.split()[4:5] + line.split()[-1:] for line in tuned if "142.08" in line] == [
        ["mi355x-tp8", "142.08"],
        ["mi355x-tp4dp2", "142.08"],
    ], "one step per shape"
    assert "the estimate includes 12 hours, the limit, for `kernels tune`" in captured.err
    with pytest.raises(UsageError, match="on this host"):
        reproduce("wafer-glm52", tune=True, dry_run=True, host="node1", output=tmp_path / "new")


def test_untuned_reproduce_is_rejected_before_first_step(tmp_path: Path) -> None:
    with pytest.raises(KernelsError, match="8, 32, 128 tokens") as caught:
        reproduce("wafer-glm52", set_=["engine=sglang-0.5.14-rocm"], dry_run=True, output=tmp_path / "new")
    assert "--allow-untuned" not in caught.value.hint, "`reproduce` has no such option"
    assert caught.value.hint.startswith(
        "`--tune` runs `deploy kernels tune` as a step for each layout: 16 keys of 1 to 512"
    )


def test_plan_skipping_table_patch_is_not_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server of such a plan would not read a table."""
    plan = plan_of("mi355x-tp8-july", f"skip_patches=[{TABLE_PATCH}]")
    report_coverage(plan, Home(tmp_path))
    require_tuned(plan, Home(tmp_path))
    assert not make_table(plan, Home(tmp_path), lambda: pytest.fail("the engine was queried"), allow_untuned=False)
    assert "aiter's own tables only, without `aiter-fp4-moe-table`" in capsys.readouterr().err


def test_unknown_aiter_is_not_rejected_before_image_inspection(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = plan_of("mi355x-tp8", "engine.aiter_commit=c16d44b93a528b2a4bfd6d8d3409116d465872a9")
    require_tuned(unknown, Home(tmp_path))
    report_coverage(unknown, Home(tmp_path))
    assert "tuned kernels of `mi355x-tp8`: unknown for aiter c16d44b93a52; " in (plan := capsys.readouterr().err)
    assert f"`deploy kernels coverage mi355x-tp8 --image {unknown.engine.image}` reads the image" in plan


def test_untuned_fp8_experts_are_reported_but_not_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An aiter with rows only for MXFP4 counts as untuned, even if its own tables were not read."""
    for commit, message in (
        (
            "4ad99832823dde2315b361cbd3b54b1c5c12acd5",
            "unknown for aiter 4ad99832823d; `deploy kernels coverage mi325x",
        ),
        (
            "9127c94a18e4398e1eba91f6639e910f0994ad02",
            "0 tuned, 0 derived, 0 fallback, 17 untuned of 17; workload uses 4",
        ),
    ):
        plan = plan_of("mi325x-tp8", f"engine.aiter_commit={commit}")
        require_tuned(plan, Home(tmp_path))
        report_coverage(plan, Home(tmp_path))
        stderr = capsys.readouterr().err
        assert message in stderr
        assert "on the way" not in stderr
        assert "rejects" not in stderr


C16D44B, B9127C94 = "c16d44b93a528b2a4bfd6d8d3409116d465872a9", "9127c94a18e4398e1eba91f6639e910f0994ad02"
ALL_BUCKETS = (*buckets(32768), 131072)


@pytest.mark.parametrize(
    ("profile", "choices", "commit", "missing"),
    [
        ("mi325x-tp8", (), C16D44B, (32768, 131072)),
        ("mi325x-tp8", ("flags.disable-shared-experts-fusion=true",), C16D44B, tuple({*ALL_BUCKETS} - {4, 8})),
        ("mi300x-tp8", (), C16D44B[:12], (32768,)),  # with smaller prefill chunks
        ("mi325x-tp8", (), B9127C94, ALL_BUCKETS),
        ("mi355x-tp8", ("model=glm-5.2-fp8",), B9127C94, ()),  # 131072 falls back to 32768
        ("mi355x-tp8", ("model=glm-5.2-fp8",), C16D44B, ()),
        ("mi355x-tp4dp2", ("model=glm-5.2-fp8",), C16D44B, buckets(32768)),  # another width, for which there is no row
    ],
)
def test_fp8_coverage_of_aiter_tables_is_known(
    profile: str, choices: tuple[str, ...], commit: str, missing: tuple[int, ...], tmp_path: Path
) -> None:
    """The expected keys follow from the tables in aiter's repository at that commit."""
    coverage = compute_coverage(
        plan_of(profile, *choices, f"engine.aiter_commit={commit}"), RowSources(), Home(tmp_path)
    )
    assert not coverage.unknown
    assert f"tables of aiter {commit[:12]}" in coverage.tables
    assert {key.token for key in coverage.untuned_keys} == {*missing}
    assert "kernel names not checked" not in to_text(coverage)


def test_measured_rows_count_without_built_table(tmp_path: Path) -> None:
    plan, home = plan_of("mi355x-tp8-july"), Home(tmp_path)
    store = Store.of(home, plan)
    store._write(store._measured, [*every_bucket(FUSED_TP8), *every_bucket(UNFUSED_TP8)])
    require_tuned(plan, home)


def test_kernel_table_belongs_to_model_and_layout(tmp_path: Path) -> None:
    """With the table of another layout, every lookup would miss."""
    home = Home(tmp_path)
    plan = plan_of("mi355x-tp8")
    Store.of(home, plan).write(plan, every_bucket(FUSED_TP8))
    assert set(profile_source("mi355x-tp8", (), home).planned()[1]) == {"moe-table"}
    assert profile_source("mi355x-tp8", ("layout.tp=4", "layout.dp=2"), home).planned()[1] == {}
    assert profile_source("mi355x-tp4dp2", (), home).planned()[1] == {}


def test_table_older_than_measurements_is_rebuilt(tmp_path: Path) -> None:
    plan = glm_plan()
    store = Store.of(Home(tmp_path), plan)
    assert not store.is_fresh(plan)
    path = store.write(plan, every_bucket(FUSED_TP8))
    assert store.is_fresh(plan)
    store._write(store._measured, every_bucket(UNFUSED_TP8))
    os.utime(store._measured, (path.stat().st_atime, path.stat().st_mtime + 1))
    assert not store.is_fresh(plan)


def stage_config(home: Home, plan: Plan, *exclude: str) -> None:
    folder = checkpoint_directory(plan.model, home)
    folder.mkdir(parents=True)
    config = {
        "num_hidden_layers": 78, "num_nextn_predict_layers": 1, "hidden_size": 6144, "moe_intermediate_size": 2048,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "quantization_config": {"quant_method": "quark", "exclude": list(exclude)},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


BF16_SHARED = "model.layers.3.mlp.shared_experts.up_proj"


def facts_of(home: Home, plan: Plan) -> Facts:
    return Facts(experts=known_experts(plan.model, HostRef(home=home)))


def run_source(plan: Plan, home: Home) -> RunSource:
    return RunSource(run=RunDir(home.root / "run"), plan=plan, home=home, inputs={})


def test_separate_shared_experts_require_fusion_flag(tmp_path: Path) -> None:
    plan = plan_of("mi355x-tp8-july")
    stage_config(Home(tmp_path), plan, "lm_head", BF16_SHARED)

    facts = facts_of(Home(tmp_path), plan)

    with pytest.raises(ProfileError, match="would fuse shared experts that its checkpoint keeps separate") as caught:
        run_source(plan, Home(tmp_path)).build(facts)
    assert "`deploy up PROFILE` sets `--disable-shared-experts-fusion`" in caught.value.hint

    adjusted = read_profile("mi355x-tp8-july").build(facts)
    assert run_source(adjusted, Home(tmp_path)).build(facts) is adjusted
    (added,) = set(adjusted.flags) - set(plan.flags)
    assert (added.name, added.values, added.origin) == ("disable-shared-experts-fusion", (), Origin.INFERRED)
    assert f"exclude entry `{BF16_SHARED}`" in added.source
    assert [flag.name for flag in adjusted.flags] == sorted(flag.name for flag in adjusted.flags)
    set_by_user = "flags.disable-shared-experts-fusion=true"
    assert inferred_fusion_flag(read_profile("mi355x-tp8-july", overrides=[set_by_user]).build(facts)) is None


def test_coverage_warns_about_checkpoint_problems(tmp_path: Path) -> None:
    config, header = Tiny(experts=256).quantized("glm5")
    incomplete = {name: kind for name, kind in header.items() if ".layers.2.mlp.experts.7." not in name}
    folder = write_tiny(tmp_path / "lacking", config, incomplete)
    result = CliRunner().invoke(app, ["kernels", "coverage", "mi355x-tp8", "--model", str(folder)])
    assert "lacking: layer 2 lacks some of 256 experts" in result.stderr
    assert "routed ones as U8" in result.stderr
    assert "shared expert: not fused: dtype" in result.stdout
    config_dir = tmp_path / "config-only"
    config_dir.mkdir()
    (config_dir / "config.json").write_text((folder / "config.json").read_text())
    assert (
        "warning"
        not in CliRunner().invoke(app, ["kernels", "coverage", "mi355x-tp8", "--model", str(config_dir)]).stderr
    )


@pytest.mark.parametrize("profile", ["mi355x-tp8-july", "mi355x-tp8", "b200-tp8"])
@pytest.mark.parametrize(("recipe", "shared"), [("sharedfp8", "F8_E4M3"), ("wafer", "BF16"), ("amd52", "")])
def test_shared_expert_dtype_sets_fusion_flag_for_every_engine(
    recipe: str, shared: str, profile: str, tmp_path: Path
) -> None:
    plan, home = plan_of(profile), Home(tmp_path)
    write_tiny(checkpoint_directory(plan.model, home), *Tiny(experts=256).quantized(recipe))
    adjusted = read_profile(profile).build(facts_of(home, plan))
    assert (flag_of(adjusted, "disable-shared-experts-fusion") is not None) == bool(shared)
    if shared:
        added = next(flag for flag in adjusted.flags if flag.name == "disable-shared-experts-fusion")
        assert added.source == f"dtype: the checkpoint stores shared experts as {shared} and routed experts as U8"


def test_fusion_flag_is_added_only_when_required(
    tmp_path: Path,
) -> None:
    plan = plan_of("mi355x-tp8-july")
    assert facts_of(Home(tmp_path / "empty"), plan) == NO_FACTS
    stage_config(Home(tmp_path), plan, "lm_head", "model.layers.78.mlp.shared_experts.up_proj")
    assert read_profile("mi355x-tp8-july").build(facts_of(Home(tmp_path), plan)) == plan
    other = Home(tmp_path / "other")
    stage_config(other, plan, BF16_SHARED)
    overrides = ("engine.version=0.5.23", "engine.image=lmsysorg/sglang:v0.5.23-rocm720-mi35x")
    facts = facts_of(other, plan)
    assert read_profile("mi355x-tp8", overrides=overrides).build(facts) == plan_of("mi355x-tp8", *overrides)
    assert read_profile("cpu-tiny").build(facts) == plan_of("cpu-tiny")


def test_bf16_experts_need_no_kernel_table(tmp_path: Path) -> None:
    """The checkpoint in `--model` decides, not the quantized model of the profile."""
    config = {"hidden_size": 128, "moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    name = "model.layers.0.mlp.experts.0.gate_proj.weight"
    header = json.dumps({name: {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    result = CliRunner().invoke(app, ["kernels", "coverage", "mi355x-tp8", "--model", str(tmp_path)])
    assert result.exit_code == 0
    assert "not applicable: the routed experts of" in result.stderr
