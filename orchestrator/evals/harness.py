"""lm-evaluation-harness as a program: its command line, its files, its answers. It is never imported."""

import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.core import subprocesses
from orchestrator.core.errors import BenchError, UsageError
from orchestrator.core.files import atomic_write, remove_tree
from orchestrator.core.safe_paths import RelativePath
from orchestrator.core.secrets import HUB_TOKEN, Secret, hub_token
from orchestrator.core.text import parse_json
from orchestrator.engine import endpoints
from orchestrator.evals.eval_result import OUTCOME_SCHEMA, AnsweredQuestion, EvalResult
from orchestrator.evals.suites import Suite, local_files

REQUIREMENTS: Final = "lm-eval-0.4.13.txt"  # of the environment that the harness runs in, below images/
CONCURRENCY: Final = 32
LOCAL_TASK: Final = "deploy_local"
_HUB_LOGIN: Final = Path("~/.cache/huggingface/token")  # that `hf auth login` leaves
_TAIL: Final = 12
_MOST_MEMORY: Final = 8 << 30  # bytes: its own client keeps an answer however long it is


@dataclass(frozen=True, kw_only=True)
class EvalRequest:
    """What to evaluate. `url` is the server's base URL, `data` a local copy of the questions, `limit` how many.

    `python` is that of an environment with the harness in it, `seed` that of the sampling.
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


def evaluate(request: EvalRequest, say: Callable[[str], None]) -> EvalResult:
    """Ask every question and score the answers; each line the harness prints goes to `say`.

    Raises UsageError where a file is missing, BenchError where the harness fails.
    """
    work = Path(tempfile.mkdtemp(prefix="deploy-eval-"))
    try:
        task = request.suite.task
        if request.data is not None:
            task = LOCAL_TASK
            atomic_write(work / "task.yaml", local_task(request, request.data))
        _run(argv(request, task=task, work=work), request, say)
        return read_outcome(work, request, task=task)
    finally:
        remove_tree(work, within=Path(tempfile.gettempdir()))


def argv(request: EvalRequest, *, task: str, work: Path) -> list[str]:
    """The harness's command line (lm-eval 0.4.13, `lm-eval run`). The API key is not on it."""
    suite = request.suite
    path = endpoints.CHAT_COMPLETIONS if suite.chat else endpoints.COMPLETIONS
    model = {
        "model": request.model,
        "base_url": request.url.rstrip("/") + path,
        "num_concurrent": str(CONCURRENCY),
        "max_retries": "3",
        "timeout": "3600",
    }
    if not suite.chat:  # the text goes to the server as it is: no tokenizer is fetched
        model |= {"tokenizer_backend": "None", "tokenized_requests": "False"}
    if request.seed is not None:
        model["seed"] = str(request.seed)
    return [
        *("prlimit", f"--data={_MOST_MEMORY}:"),
        *subprocesses.python_module_argv("lm_eval", "run", python=str(request.python)),
        *("--model", "local-chat-completions" if suite.chat else "local-completions"),
        *("--model_args", _pairs(model)),
        *("--tasks", task),
        *("--num_fewshot", str(suite.few_shot)),
        *("--gen_kwargs", _pairs({**suite.generation, "max_gen_toks": str(suite.most_tokens)})),
        *(("--apply_chat_template",) if suite.chat else ()),
        *(("--limit", str(request.limit)) if request.limit is not None else ()),
        *(("--include_path", str(work)) if request.data is not None else ()),
        *("--log_samples", "--output_path", str(work / "out")),
    ]


def local_task(request: EvalRequest, data: Path) -> str:
    """A task file that is the harness's own task on local files, as YAML (which JSON is). Raises UsageError."""
    suite, environment = request.suite, request.python.parent.parent
    harness = next(environment.glob("lib/python*/site-packages/lm_eval"))
    task = {
        "include": str(harness / "tasks" / RelativePath(suite.task_file)),
        "task": LOCAL_TASK,
        "tag": None,
        "dataset_path": suite.loader,
        "dataset_name": None,
        "dataset_kwargs": {"data_files": local_files(suite, data)},
    }
    return json.dumps(task, indent=2) + "\n"


def read_outcome(work: Path, request: EvalRequest, *, task: str) -> EvalResult:
    """The answers the harness logged under `work`. Raises BenchError where there are none."""
    samples = sorted((work / "out").rglob(f"samples_{task}_*.jsonl"))
    results = sorted((work / "out").rglob("results_*.json"))
    if not samples or not results:
        raise BenchError("the harness left no answers", where=str(work), hint="see what it printed above")
    items = read_items(
        samples[-1].read_text(encoding="utf-8"),
        metric=request.suite.metric,
        filter_=request.suite.filter,
        seed=request.seed,
    )
    version = parse_json(results[-1].read_text(encoding="utf-8")).get("lm_eval_version", "of unknown version")
    return EvalResult(
        schema_version=OUTCOME_SCHEMA,
        suite=request.suite.name,
        task=request.suite.task,
        metric=f"{request.suite.metric},{request.suite.filter}",
        model=request.model,
        harness=f"lm-eval {version}",
        command=request.command,
        items=items,
        limit=request.limit,
        most_tokens=request.suite.most_tokens,
    )


def read_items(samples: str, *, metric: str, filter_: str, seed: int | None = None) -> tuple[AnsweredQuestion, ...]:
    """One item an answered question, in the order asked, from a samples file of the harness (one JSON object a line).

    The question is known by `doc_hash`, which covers its text and the order of its choices. Raises BenchError where
    nothing was scored so.
    """
    try:
        rows = [parse_json(line) for line in samples.splitlines() if line.strip()]
        items = tuple(
            AnsweredQuestion(id=row["doc_hash"], right=row[metric] > 0.5, seed=seed, answer=_digest(row, seed))
            for row in rows
            if row["filter"] == filter_
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError("the harness logs its answers in another form", hint="is this lm-eval 0.4.13?") from error
    if not items:
        raise BenchError(f"the harness scored nothing with `{filter_}`", hint="is this lm-eval 0.4.13?")
    return items


def _digest(row: dict[str, object], seed: int | None) -> str:
    """How the digest of an answer begins, where another seed is to give another one; the answer itself is dropped."""
    return "" if seed is None else hashlib.sha256(json.dumps(row["resps"]).encode()).hexdigest()[:16]


def _run(command: list[str], request: EvalRequest, say: Callable[[str], None]) -> None:
    tail: list[str] = []

    def keep(line: str) -> None:
        tail.append(line)
        del tail[:-_TAIL]
        say(line)

    environ = {"OPENAI_API_KEY": request.key.reveal() if request.key else "none"}
    if request.data is not None:
        environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    elif token := hub_token():
        environ |= {HUB_TOKEN: token.reveal()}
    code = subprocesses.follow(command, keep, env=environ)
    if code != 0:
        raise BenchError(
            f"the harness ended with exit code {code}",
            where=request.url,
            details=_last_words(tail),
            hint="" if request.data else "`--dataset` takes a local copy, where the questions could not be downloaded",
        )


def _last_words(tail: list[str]) -> str:
    """What follows a traceback, for all of it was said as it came; else the last line."""
    told = [line for line in tail if line.strip()]
    inside = [place for place, line in enumerate(told) if line.startswith(" ")]
    return "\n".join(told[inside[-1] + 1 :] if inside else told[-1:]) or "".join(told[-1:])


def require_questions(suite: Suite, data: Path | None) -> None:
    """Raise UsageError where the questions are neither here nor to be had, before anything is asked or paid."""
    if data is not None:
        local_files(suite, data)
    elif suite.gated is not None and hub_token() is None and not _HUB_LOGIN.expanduser().is_file():
        raise UsageError(
            f"the questions of `{suite.name}` are gated, and there is no token for the hub",
            where=f"https://huggingface.co/datasets/{suite.gated}",
            hint=f"accept its terms there and set {HUB_TOKEN}, or give `{suite.file}` with --dataset",
        )


def _pairs(values: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in values.items())
