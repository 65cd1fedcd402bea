"""tau2-bench: the commands that run it against a server, and the parser of its results.

`deploy` does not run tau2-bench: there is no package (`tau2` on PyPI is another project), and another model plays the
user. Source: sierra-research/tau2-bench at `COMMIT` (v1.0.1): README.md, docs/cli-reference.md, `Results` and
`SimulationRun` in src/tau2/data_model/simulation.py, src/tau2/metrics/agent_metrics.py.
"""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from orchestrator.bench.result import parse_strict
from orchestrator.bench.result_files import read_result_text
from orchestrator.core.errors import BenchError, UsageError
from orchestrator.core.safe_paths import path_named_in
from orchestrator.evals.eval_result import EVAL_RESULT_SCHEMA, AnsweredQuestion, EvalResult

NAME: Final = "tau2"
COMMIT: Final = "a2c024725189473d2d7cea3a5cfdbcc67478e41f"
DOMAINS: Final = {"airline": 50, "retail": 114, "telecom": 114}  # number of tasks, from `base` in split_tasks.json
TRIALS: Final = 4  # per task, as required by docs/leaderboard-submission.md
_USER: Final = "gpt-4.1-2025-04-14"  # DEFAULT_LLM_USER in config.py
_CONCURRENCY: Final = 32
RESULTS: Final = "results.json"
_MAX_BYTES: Final = 1 << 30  # limit of a file with all conversations; 40 short conversations have 0.4 MB
_NEVER_RAN: Final = "infrastructure_error"  # excluded from tau2's metrics
_NEARLY: Final = 1e-6  # tolerance of a reward of 1, as in `is_successful`


class _Fields(BaseModel):
    """The used fields of a tau2 file; other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Model(_Fields):
    llm: str | None = None


class _Environment(_Fields):
    domain_name: str


class _Info(_Fields):
    git_commit: str
    user_info: _Model
    agent_info: _Model
    environment_info: _Environment


class _Reward(_Fields):
    reward: float


class _Simulation(_Fields):
    task_id: str
    termination_reason: str
    trial: int | None = None
    reward_info: _Reward | None = None


class _Results(_Fields):
    info: _Info
    simulations: tuple[_Simulation, ...]


@dataclass(frozen=True, kw_only=True)
class Tau2Runs:
    """The parsed simulations; `skipped` counts simulations that never ran."""

    result: EvalResult
    skipped: int


def tau2_script(url: str, model: str, *, key_env: str | None, name: str, trials: int) -> str:
    """Return the commands that run all domains and save their results under `name`.

    The API key comes from the variable `key_env`, and appears in no argument or result.
    """
    url, name = shlex.quote(f"{url.rstrip('/')}/v1"), shlex.quote(name)
    key = f'export HOSTED_VLLM_API_KEY="${key_env}"' if key_env else "unset HOSTED_VLLM_API_KEY"
    agent = shlex.quote(f"hosted_vllm/{model}")
    return f"""\
# tau2-bench v1.0.1 needs git, uv and Python 3.12. It is on no package index: `tau2` on PyPI is another project.
git clone https://github.com/sierra-research/tau2-bench
cd tau2-bench && git checkout {COMMIT} && uv sync
# LiteLLM finds the server by these two; the user of each task is another model, here tau2's default.
export HOSTED_VLLM_API_BASE={url}
{key}
export OPENAI_API_KEY  # of the user's model, if it is one of OpenAI's
for domain in {" ".join(DOMAINS)}; do
  uv run tau2 run --domain "$domain" --agent-llm {agent} --user-llm {_USER} \\
    --num-trials {trials} --max-concurrency {_CONCURRENCY} --save-to {name}-"$domain" --auto-resume
done
deploy eval {name} --suite tau2 --simulations data/simulations
"""


def read_simulations(folder: Path, name: str, command: str, *, require_name: bool = False) -> Tau2Runs:
    """Read the simulations of `name` below tau2's `data/simulations`, or a single file.

    Without simulations of that name, read all, unless `require_name`. Domains have equal weight. Raises UsageError if
    there are none, BenchError for invalid files, two runs of one domain, or runs of different models.
    """
    files = _files(folder, name, compared=require_name)
    results = [_read(file) for file in files]
    _require_one_evaluation(files, results)
    simulations = [
        (run.info.environment_info.domain_name, simulation) for run in results for simulation in run.simulations
    ]
    completed = [
        (domain, simulation) for domain, simulation in simulations if simulation.termination_reason != _NEVER_RAN
    ]
    if not completed:
        raise BenchError("no tau2 simulation was run", location=str(folder), hint="see the errors in its results")
    info = results[0].info
    domains = ", ".join(sorted({domain for domain, _ in completed}))
    result = EvalResult(
        schema_version=EVAL_RESULT_SCHEMA,
        suite=NAME,
        task=f"{domains}; user {info.user_info.llm}",
        metric="pass^1, macro average of the domains",
        model=(info.agent_info.llm or "unknown").partition("/")[2] or (info.agent_info.llm or "unknown"),
        harness=f"tau2-bench {info.git_commit[:7]}",
        command=command,
        answered=tuple(
            AnsweredQuestion(id=item.task_id, correct=_succeeded(item), seed=item.trial, group=domain)
            for domain, item in sorted(completed, key=lambda pair: (pair[0], pair[1].task_id, pair[1].trial or 0))
        ),
    )
    return Tau2Runs(result=result, skipped=len(simulations) - len(completed))


def _succeeded(simulation: _Simulation) -> bool:
    return simulation.reward_info is not None and abs(simulation.reward_info.reward - 1) <= _NEARLY


def _files(folder: Path, name: str, *, compared: bool) -> list[Path]:
    if folder.is_file() and not compared:
        return [folder]
    results = [file for domain in DOMAINS if (file := path_named_in(folder, f"{name}-{domain}") / RESULTS).exists()]
    if not results and not compared:
        results = sorted(folder.rglob(RESULTS))
    if not results:
        raise UsageError(
            f"no tau2 results{f' named `{name}-DOMAIN`' if compared else ''} found",
            location=str(folder),
            hint=f"use its `data/simulations`; `deploy eval {name} --suite tau2` prints the commands to run",
        )
    return results


def _read(file: Path) -> _Results:
    text = read_result_text(file, "tau2 results", max_bytes=_MAX_BYTES)
    return parse_strict(_Results, text, description="file of tau2 results", location=str(file))


def _require_one_evaluation(files: Sequence[Path], results: Sequence[_Results]) -> None:
    """Raise BenchError unless all runs belong to one evaluation."""
    values: dict[str, set[str | None]] = {
        "models": {run.info.agent_info.llm for run in results},
        "simulated users": {run.info.user_info.llm for run in results},
        "versions of tau2": {run.info.git_commit for run in results},
    }
    for setting, names in values.items():
        if len(names) > 1:
            listed = ", ".join(sorted(f"`{name}`" for name in names))
            location, hint = str(files[0].parent.parent), "specify the file of one run"
            raise BenchError(f"the runs use different {setting}: {listed}", location=location, hint=hint)
    by_domain: dict[str, Path] = {}
    for file, run in zip(files, results, strict=True):
        domain = run.info.environment_info.domain_name
        if (other := by_domain.setdefault(domain, file)) != file:
            hint = "specify the file of one run"
            raise BenchError(f"several runs of `{domain}` found", location=f"{other}, {file}", hint=hint)
        trials = Counter((simulation.task_id, simulation.trial) for simulation in run.simulations)
        (task, trial), count = trials.most_common(1)[0] if trials else (("", 0), 0)
        if count > 1:
            raise BenchError(f"duplicate tau2 simulation: task `{task}`, trial {trial}", location=str(file))
