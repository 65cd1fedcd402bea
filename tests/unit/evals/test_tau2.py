"""Test the commands for tau2-bench and the parsing of its results.

tau2-bench itself wrote `recorded/tau2/results.json` (commit a2c0247, `tau2 run --domain mock --num-trials 4`) with an
endpoint that sometimes calls the right tool; conversations, tasks and checks were removed.
"""

import json
import shutil
from pathlib import Path

import pytest

from orchestrator.core.errors import BenchError, UsageError
from orchestrator.evals.significance import compare_results, score_interval
from orchestrator.evals.tau2 import COMMIT, read_simulations, tau2_script

RECORDED = Path(__file__).parent / "recorded" / "tau2" / "results.json"


def write_run(folder: Path, name: str, domain: str, **changes: object) -> Path:
    """Write the recorded run under another name and domain; `changes` apply to its `info`, `rewards` to its trials."""
    data = json.loads(RECORDED.read_text())
    data["info"]["environment_info"]["domain_name"] = domain
    rewards = changes.pop("rewards", None)
    data["info"].update(changes)
    for simulation in data["simulations"] if isinstance(rewards, list) else ():
        simulation["reward_info"]["reward"] = rewards[simulation["trial"]]
    file = folder / f"{name}-{domain}" / "results.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(data))
    return file


def test_score_equals_pass_1_printed_by_tau2() -> None:
    """tau2 printed `Pass^1 0.250` for 40 simulations of 10 tasks."""
    result = read_simulations(RECORDED, "glm", "deploy eval glm").result
    assert (result.score, len(result.answered), len(result.answers)) == (0.25, 40, 10)
    assert (result.model, result.task) == ("glm-5.2", "mock; user hosted_vllm/user")
    interval = score_interval(result)
    assert interval.low < 0.25 < interval.high
    assert 10 <= result.effective_answers < 40, "four trials of a task do not count as four tasks"


def test_domains_count_equally_and_names_are_separate(tmp_path: Path) -> None:
    write_run(tmp_path, "glm", "airline", rewards=[1.0, 1.0, 1.0, 0.0])
    write_run(tmp_path, "glm", "retail", rewards=[1.0, 0.0, 0.0, 0.0])
    write_run(tmp_path, "glm-fp8", "airline", rewards=[1.0] * 4)
    assert read_simulations(tmp_path, "glm", "").result.score == pytest.approx((0.75 + 0.25) / 2)
    assert read_simulations(tmp_path, "glm-fp8", "").result.score == 1.0


def test_results_of_two_servers_are_paired_by_task(tmp_path: Path) -> None:
    write_run(tmp_path, "fp8", "airline", rewards=[1.0] * 4)
    write_run(tmp_path, "mxfp4", "airline", rewards=[1.0, 1.0, 0.0, 0.0])
    judgment = compare_results(*(read_simulations(tmp_path, name, "").result for name in ("fp8", "mxfp4")))
    assert (judgment.difference, judgment.lost, judgment.gained) == (-0.5, 10, 0)
    assert judgment.p_value == pytest.approx(2 / 2**10)


def test_infrastructure_errors_are_skipped_like_tau2(tmp_path: Path) -> None:
    data = json.loads(RECORDED.read_text())
    data["simulations"][0]["termination_reason"] = "infrastructure_error"
    del data["simulations"][0]["reward_info"]
    (tmp_path / "results.json").write_text(json.dumps(data))
    runs = read_simulations(tmp_path, "glm", "")
    assert (runs.skipped, len(runs.result.answered)) == (1, 39)


def test_simulation_without_reward_counts_as_failed(tmp_path: Path) -> None:
    data = json.loads(RECORDED.read_text())
    for simulation in data["simulations"]:
        simulation["termination_reason"] = "max_steps"
        simulation["reward_info"] = None
    (tmp_path / "results.json").write_text(json.dumps(data))
    assert read_simulations(tmp_path, "glm", "").result.score == 0.0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"info": {}, "simulations": []}', "\xff", "[" * 100_000])
def test_invalid_tau2_results_are_rejected(text: str, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(text, encoding="latin-1")
    with pytest.raises(BenchError, match="tau2 results") as caught:
        read_simulations(tmp_path, "glm", "")
    assert caught.value.location == str(tmp_path / "results.json")


def test_inconsistent_tau2_runs_are_rejected(tmp_path: Path) -> None:
    write_run(tmp_path, "a", "airline")
    write_run(tmp_path, "b", "retail", user_info={"llm": "another-user"})
    with pytest.raises(BenchError, match="different simulated users: `another-user`, `hosted_vllm/user`"):
        read_simulations(tmp_path, "neither", "")
    shutil.rmtree(tmp_path / "b-retail")
    shutil.copytree(tmp_path / "a-airline", tmp_path / "b-airline")
    with pytest.raises(BenchError, match="several runs of `airline`"):
        read_simulations(tmp_path, "neither", "")


def test_baseline_requires_results_of_named_run(tmp_path: Path) -> None:
    """With results of only one server, its score was once compared with itself."""
    file = write_run(tmp_path, "glm", "airline")
    assert read_simulations(tmp_path, "glm", "", require_name=True).result.score == 0.25
    for path in (tmp_path, file):
        with pytest.raises(UsageError, match="no tau2 results named `fp8-DOMAIN` found"):
            read_simulations(path, "fp8", "", require_name=True)


def test_duplicate_simulation_is_rejected(tmp_path: Path) -> None:
    data = json.loads(RECORDED.read_text())
    data["simulations"].append(data["simulations"][0])
    (tmp_path / "results.json").write_text(json.dumps(data))
    with pytest.raises(BenchError, match="duplicate tau2 simulation: task `create_task_1`, trial 0"):
        read_simulations(tmp_path, "glm", "")


def test_nan_reward_is_rejected(tmp_path: Path) -> None:
    write_run(tmp_path, "glm", "airline", rewards=[1.0, float("nan"), 1.0, 1.0])
    with pytest.raises(BenchError, match="not a valid file of tau2 results"):
        read_simulations(tmp_path, "glm", "")


def test_empty_results_directory_hints_at_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no tau2 results found") as caught:
        read_simulations(tmp_path, "glm", "")
    assert "`deploy eval glm --suite tau2`" in caught.value.hint


def test_tau2_commands_contain_no_key() -> None:
    script = tau2_script("http://h:1/", "glm 5", key_env="GLM_KEY", name="mine", trials=4)
    assert f"git checkout {COMMIT}" in script
    assert "HOSTED_VLLM_API_BASE=http://h:1/v1\n" in script
    assert 'HOSTED_VLLM_API_KEY="$GLM_KEY"' in script
    assert "--agent-llm 'hosted_vllm/glm 5'" in script
    assert script.endswith("deploy eval mine --suite tau2 --simulations data/simulations\n")
    without_key = tau2_script("http://h:1/", "glm 5", key_env=None, name="mine", trials=4)
    assert 'HOSTED_VLLM_API_KEY="' not in without_key
