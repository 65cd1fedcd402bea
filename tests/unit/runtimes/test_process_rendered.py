"""The script of the process runtime before its environment is built."""

from plan_samples import plan_of

from orchestrator.plan.facts import Facts
from orchestrator.planner.planning import load, read_profile
from orchestrator.render.scripts import files
from orchestrator.runtimes.supervisor.prepare import rendered

PROCESS = ("runtime=process", "engine.python=python3")


def test_script_requires_patched_sources() -> None:
    """The interpreter's sources are unpatched, so a manual start needs the path of the patched copy."""
    plan = read_profile("mi355x-tp4dp2-july", overrides=PROCESS).build(Facts(inputs={"moe-table": "0" * 64}))
    script = next(file for file in files(rendered(plan, {"moe-table": b"rows"})) if file.path == "server.sh")
    text = script.content.decode()
    assert "#   rocm-cuda-runtime-guard" in text
    assert ': "${PATCHED_SGLANG:?' in text
    assert 'export PYTHONPATH="$PATCHED_SGLANG/python${PYTHONPATH:+:$PYTHONPATH}"' in text
    assert 'export AITER_CONFIG_FMOE="$PATCHED_SGLANG/tables/tuned_fmoe.csv"' in text
    assert "/opt/deploy" not in text.partition("set -eu")[2]


def test_plan_without_patches_needs_no_script() -> None:
    artifacts = rendered(plan_of("cpu-tiny"), {})
    assert artifacts.spec is None
    assert artifacts.command.script == ()


def test_configured_interpreter_appears_in_launch_line() -> None:
    plan = load("h200-tiny", overrides=["engine.python=/opt/engine/bin/python"]).plan
    assert rendered(plan, {}).command.argv[:2] == ("/opt/engine/bin/python", "-m")
    assert rendered(load("h200-tiny").plan, {}).command.argv[0] == "python3"
