"""Test `deploy reproduce --from`: it measures a running server and leaves it running."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.bench.published import load_published
from orchestrator.core.errors import UsageError
from orchestrator.experiments.reproduce import ReproducePlan, ReproduceRequest, plan_steps
from orchestrator.planner.planning import load

CLOUD = ("runtime=process", "engine.python=python3", "server.host=0.0.0.0", "server.api_key_env=DEPLOY_API_KEY")
NO_DRAFTS = tuple(
    f"flags.speculative-{name}=null" for name in ("algorithm", "num-steps", "eagle-topk", "num-draft-tokens")
)


def plan_for(profile_name: str, *overrides: str, **options: object) -> ReproducePlan:
    """Return the plan for a server in the cloud, started as by `render --runtime skypilot`."""
    request = ReproduceRequest(published_name="wafer-glm52")
    plan = load(profile_name, overrides=(*CLOUD, *overrides)).plan
    request = replace(request, running=("mine", plan), **options)  # type: ignore[arg-type]
    return plan_steps(load_published("wafer-glm52"), Path("results"), request)


def test_running_server_gets_only_measurement_steps() -> None:
    steps = plan_for("mi355x-tp4dp2").steps
    assert [" ".join(step.argv) for step in steps] == [
        "smoke mine",
        "bench mine --workload wafer-20k-1k --output results/mine/wafer-20k-1k",
        "report results --published wafer-glm52",
    ]


def test_published_run_is_selected_by_running_settings() -> None:
    steps = plan_for("mi355x-tp4dp2", *NO_DRAFTS).steps
    assert [step.stage for step in steps] == ["smoke", "eval", "eval", "report"]
    (server,) = plan_for("mi355x-tp8").servers
    assert server.workloads == ("single-stream-10k-1.5k",)


def test_server_with_different_plan_is_rejected_with_differences() -> None:
    with pytest.raises(UsageError, match="`mine` runs another plan than `mi355x-tp4dp2`") as error:
        plan_for("mi355x-tp4dp2", "flags.max-running-requests=7")
    assert "flags.max-running-requests: 7, not 80" in str(error.value)
    same_settings = plan_for(
        "mi355x-tp4dp2", "flags.max-running-requests=7", overrides=("flags.max-running-requests=7",)
    )
    assert [step.stage for step in same_settings.steps] == ["smoke", "bench", "report"]
    with pytest.raises(UsageError, match="runs another plan than"):
        plan_for("b200-tp8")
    assert plan_for("b200-tp8", profile="b200-tp8").servers[0].workloads == ("wafer-20k-1k",)
