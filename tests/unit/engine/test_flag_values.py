"""Test that option values are validated as in the engine's own parser."""

from pathlib import Path

import pytest
from plan_flags import flag_of

from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import ProfileError
from orchestrator.engine.flags import read_flags
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load
from orchestrator.runtimes import runtime_class


def argv(plan: Plan) -> tuple[str, ...]:
    return runtime_class(plan.runtime).render(plan, {}).command.argv


def test_multi_value_option_accepts_a_list() -> None:
    plan = load("mi355x-tp8", overrides=["flags.cuda-graph-bs-decode=[1,2,4]"]).plan
    assert "--cuda-graph-bs-decode 1 2 4 " in " ".join(argv(plan)) + " "
    assert flag_of(plan, "cuda-graph-bs-decode") == "1 2 4"
    assert Plan.from_json(plan.to_json()) == plan


def test_single_value_and_boolean_options_are_unchanged() -> None:
    plan = load("mi355x-tp8", overrides=["flags.cuda-graph-bs-decode=8"]).plan
    assert "--cuda-graph-bs-decode 8 " in " ".join(argv(plan)) + " "
    assert flag_of(plan, "enable-metrics") == ""


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("kv-cache-dtype=[auto,auto]", "takes one value"),
        ("cuda-graph-bs-decode=[]", "takes at least one value"),
        ("cuda-graph-bs-decode=[1,two]", "takes a whole number, found `two`"),
        ("cuda-graph-bs-decode=true", "takes a value"),
        ("lora-target-modules=[q_proj,nothing]", "does not take `nothing`"),
        ("mem-fraction-static=much", "takes a number, found `much`"),
        ("max-running-requests=1.5", "takes a whole number, found `1.5`"),
        ("enable-metrics=[1]", "takes no value"),
    ],
)
def test_value_rejected_by_parser_is_rejected_early(override: str, message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load("mi355x-tp8", overrides=[f"flags.{override}"])
    assert any(message in problem.message for problem in caught.value.problems)


def test_option_with_optional_value_accepts_both_forms() -> None:
    assert flag_of(load("cpu-tiny", overrides=["flags.model-checksum=true"]).plan, "model-checksum") == ""
    assert flag_of(load("cpu-tiny", overrides=["flags.model-checksum=sums.json"]).plan, "model-checksum") == "sums.json"


def test_deprecated_option_is_noted_with_location(capsys: pytest.CaptureFixture[str]) -> None:
    load("cpu-tiny", overrides=["flags.disable-cuda-graph=true"])
    stderr = capsys.readouterr().err
    assert "`--disable-cuda-graph` is deprecated in sglang 0.5.14: use " in stderr
    assert "(--set flags.disable-cuda-graph)" in stderr
    load("cpu-tiny")
    assert not capsys.readouterr().err


def test_version_without_flag_table_hints_at_add_engine() -> None:
    with pytest.raises(ProfileError) as caught:
        load("cpu-tiny", overrides=["engine.version=0.5.99"])
    assert "`deploy add engine 0.5.99 --flags-only`" in caught.value.hint


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[" * 10_000, '{"sglang": "0.5.13", "flags": {}}', '{"sglang": "0.5.99", "flags": 1}']
)
def test_invalid_flag_table_is_rejected(text: str, tmp_path: Path) -> None:
    path = tmp_path / "profiles/engines/flags/0.5.99.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(ProfileError, match="invalid flag table") as caught:
        read_flags("0.5.99", Catalog((tmp_path,)))
    assert "deploy add engine 0.5.99 --flags-only" in caught.value.hint
