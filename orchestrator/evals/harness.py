"""lm-evaluation-harness as a subprocess: command line, files and answers; the package is never imported."""

import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.core import subprocesses
from orchestrator.core.console import Progress
from orchestrator.core.errors import BenchError, UsageError
from orchestrator.core.files import atomic_write
from orchestrator.core.paths import Home, data_root
from orchestrator.core.safe_paths import RelativePath
from orchestrator.core.secrets import HUB_TOKEN, Secret, hub_token
from orchestrator.core.text import parse_json
from orchestrator.engine import endpoints
from orchestrator.evals.eval_result import EVAL_RESULT_SCHEMA, AnsweredQuestion, EvalResult
from orchestrator.evals.suites import Suite, local_files
from orchestrator.hosts.venvs.venv import ensure_venv

REQUIREMENTS: Final = "lm-eval-0.4.13.txt"  # requirements of its venv, below images/
CONCURRENCY: Final = 32
LOCAL_TASK: Final = "deploy_local"
_METRIC: Final = "exact_match"
_FILTER: Final = "flexible-extract"  # takes the last number, or the last choice, in an answer
_HUB_LOGIN: Final = Path("~/.cache/huggingface/token")  # written by `hf auth login`
_MAX_MEMORY: Final = 8 << 30  # bytes; its client buffers answers of any length


@dataclass(frozen=True, kw_only=True)
class EvalRequest:
    """One run of a suite against a server.

    `python` belongs to a venv with the harness, `url` is the base URL of the server, `data` a local dataset, `limit`
    the number of questions, `seed` the sampling seed.
    """

    python: Path
    suite: Suite
    url: str
    model: str
    key: Secret | None
    limit: int | None
    data: Path | None
    command: str
    seed: int | None = None


def harness_python(home: Home) -> Path:
    """Return the interpreter of the harness, from a venv in `home`; the first call creates it. Raises BuildError."""
    return ensure_venv(data_root() / "images" / REQUIREMENTS, home=home, progress=Progress()).python


def evaluate(request: EvalRequest, notify: Callable[[str], None]) -> EvalResult:
    """Run the suite and score the answers; `notify` receives each line of output.

    Raises UsageError if a file is missing, BenchError if the harness fails.
    """
    with tempfile.TemporaryDirectory(prefix="deploy-eval-") as folder:
        work, task = Path(folder), request.suite.task
        if request.data is not None:
            task = LOCAL_TASK
            atomic_write(work / "task.yaml", local_task(request, request.data))
        _run(argv(request, task=task, work=work), request, notify)
        return read_eval_result(work, request, task=task)


def argv(request: EvalRequest, *, task: str, work: Path) -> list[str]:
    """Return the command line (lm-eval 0.4.13, `lm-eval run`); it does not contain the API key."""
    suite = request.suite
    path = endpoints.CHAT_COMPLETIONS if suite.chat else endpoints.COMPLETIONS
    model = {
        "model": request.model,
        "base_url": request.url.rstrip("/") + path,
        "num_concurrent": str(CONCURRENCY),
        "max_retries": "3",
        "timeout": "3600",
    }
    if not suite.chat:  # the server tokenizes the text; no tokenizer is downloaded
        model |= {"tokenizer_backend": "None", "tokenized_requests": "False"}
    if request.seed is not None:
        model["seed"] = str(request.seed)
    return [
        *("prlimit", f"--data={_MAX_MEMORY}:"),
        *subprocesses.python_module_argv("lm_eval", "run", python=str(request.python)),
        *("--model", "local-chat-completions" if suite.chat else "local-completions"),
        *("--model_args", _pairs(model)),
        *("--tasks", task),
        *("--num_fewshot", str(suite.few_shot)),
        *("--gen_kwargs", _pairs({**suite.generation, "max_gen_toks": str(suite.max_tokens)})),
        *(("--apply_chat_template",) if suite.chat else ()),
        *(("--limit", str(request.limit)) if request.limit is not None else ()),
        *(("--include_path", str(work)) if request.data is not None else ()),
        *("--log_samples", "--output_path", str(work / "out")),
    ]


def local_task(request: EvalRequest, data: Path) -> str:
    """Return a task file that applies the harness's task to local files. Raises UsageError for a missing file.

    The format is YAML, of which JSON is a subset.
    """
    suite, venv = request.suite, request.python.parent.parent
    harness = next(venv.glob("lib/python*/site-packages/lm_eval"))
    task = {
        "include": str(harness / "tasks" / RelativePath(suite.task_file)),
        "task": LOCAL_TASK,
        "tag": None,
        "dataset_path": suite.loader,
        "dataset_name": None,
        "dataset_kwargs": {"data_files": local_files(suite, data)},
    }
    return json.dumps(task, indent=2) + "\n"


def read_eval_result(work: Path, request: EvalRequest, *, task: str) -> EvalResult:
    """Read the answers that the harness logged below `work`. Raises BenchError if there are none."""
    samples = sorted((work / "out").rglob(f"samples_{task}_*.jsonl"))
    results = sorted((work / "out").rglob("results_*.json"))
    if not samples or not results:
        raise BenchError("lm-eval wrote no answers", location=str(work), hint="check its output above")
    answered = read_answers(samples[-1].read_text(encoding="utf-8"), seed=request.seed)
    version = parse_json(results[-1].read_text(encoding="utf-8")).get("lm_eval_version", "of unknown version")
    return EvalResult(
        schema_version=EVAL_RESULT_SCHEMA,
        suite=request.suite.name,
        task=request.suite.task,
        metric=f"{_METRIC},{_FILTER}",
        model=request.model,
        harness=f"lm-eval {version}",
        command=request.command,
        answered=answered,
        limit=request.limit,
        max_tokens=request.suite.max_tokens,
    )


def read_answers(samples: str, *, seed: int | None = None) -> tuple[AnsweredQuestion, ...]:
    """Parse a samples file of the harness, which has one JSON object per answered question, in order.

    `doc_hash` identifies a question by its text and its order of choices. Raises BenchError for another format or
    without a scored answer.
    """
    try:
        rows = [parse_json(line) for line in samples.splitlines() if line.strip()]
        answered = tuple(
            AnsweredQuestion(id=row["doc_hash"], correct=row[_METRIC] > 0.5, seed=seed, answer=_digest(row, seed))
            for row in rows
            if row["filter"] == _FILTER
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(
            "the answers of lm-eval have an unknown format", hint="`pip install lm-eval==0.4.13`"
        ) from error
    if not answered:
        raise BenchError(f"lm-eval scored no answer with `{_FILTER}`", hint="`pip install lm-eval==0.4.13`")
    return answered


def _digest(row: dict[str, object], seed: int | None) -> str:
    """Return a digest prefix of an answer, to compare seeds; "" without a seed."""
    return "" if seed is None else hashlib.sha256(json.dumps(row["resps"]).encode()).hexdigest()[:16]


def _run(command: list[str], request: EvalRequest, notify: Callable[[str], None]) -> None:
    tail = ""

    def on_line(line: str) -> None:
        nonlocal tail
        tail = line if line.strip() else tail
        notify(line)

    env = {"OPENAI_API_KEY": request.key.reveal() if request.key else "none"}
    if request.data is not None:
        env |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    elif token := hub_token():
        env |= {HUB_TOKEN: token.reveal()}
    code = subprocesses.follow(command, on_line, env=env)
    if code != 0:
        raise BenchError(
            f"lm-eval failed with exit code {code}",
            location=request.url,
            details=tail,
            hint="" if request.data else "if the questions cannot be downloaded, use a local copy with `--dataset`",
        )


def has_hub_token() -> bool:
    """Return whether a hub token is set, or saved by `hf auth login`."""
    return hub_token() is not None or _HUB_LOGIN.expanduser().is_file()


def require_questions(suite: Suite, data: Path | None) -> None:
    """Raise UsageError if a suite's questions are neither local nor downloadable; gated questions need a token."""
    if data is not None:
        local_files(suite, data)
    elif suite.gated is not None and not has_hub_token():
        raise UsageError(
            f"the questions of `{suite.name}` are gated, and no hub token is set",
            location=suite.hub_page,
            hint=f"accept its terms on the hub and set {HUB_TOKEN}, or give `{suite.file}` with --dataset",
        )


def _pairs(values: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in values.items())
