"""The commands that write files, download or measure, for tests with lost output or a full disk."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from checkpoint_samples import write_checkpoint
from config_samples import write_public
from deployment import Deployment
from forked import Command, Fault
from kernel_samples import HEADER, MISS, line
from loopback_hub import Hub, serve
from measured_samples import save, tp8
from quark_source import fake_quark_home, fake_quark_path, write_source

from orchestrator.core.paths import Home, data_root
from orchestrator.evals.harness import REQUIREMENTS
from orchestrator.hosts.venvs import venv

SHIPPED = data_root() / "profiles"
REPOSITORY = "amd/GLM-5.2-MXFP4"
LOAD = "{input_tokens: 20, output_tokens: 4, token_ids: [10, 500], load: closed, concurrency: 2, requests: 4}\n"
_COPY = "packages/0123456789abcdef"
_RUNS = ("runs/old/20200101T000000Z-00000001", "runs/old/20200102T000000Z-00000002")
_HARNESS = """#!{python}
import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--output_path") + 1], "model")
out.mkdir(parents=True)
row = {{"doc_hash": "one", "exact_match": 1.0, "filter": "flexible-extract"}}
(out / "samples_deploy_local_now.jsonl").write_text(json.dumps(row) + "\\n")
(out / "results_now.json").write_text('{{"lm_eval_version": "0.4.13"}}')
"""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """A deployment with input files (`sources`), a directory for results (`made`), and a hub with a checkpoint."""

    deployment: Deployment
    sources: Path
    made: Path
    hub: Hub

    @property
    def home(self) -> Path:
        return self.deployment.home

    def start(self, *words: str, broken: Mapping[int, Fault] | None = None, **environ: str) -> Command:
        variables = {"HF_ENDPOINT": self.hub.url, "PYTHONPATH": fake_quark_path(), **environ}
        return self.deployment.start(*words, broken=broken, **variables)

    def call(self, command: "Changing") -> tuple[str, ...]:
        """Return the command line of a command; start the server first if the command needs it."""
        words = command.words(self)
        if self.deployment.name in words:
            assert not list(self.deployment.run(*self.deployment.up()).faults(0))
        return words


@dataclass(frozen=True, kw_only=True)
class Changing:
    """A command that changes something, with a check whether its work is done."""

    words: Callable[[Workspace], tuple[str, ...]]
    is_done: Callable[[Workspace], bool]
    speaks: bool = True  # writes a message before it changes anything
    prints: bool = True  # prints a result


@contextmanager
def workspace_of(deployment: Deployment, folder: Path) -> Iterator[Workspace]:
    """Prepare a home and sources for all commands.

    Files in the home override shipped ones, so that each command that reads them first writes a message about it.
    """
    workspace = Workspace(
        deployment=deployment,
        sources=folder / "sources",
        made=folder / "made",
        hub=Hub(repository=REPOSITORY, directory=write_checkpoint(folder / "hub", layers=4, mtp_layer=78)),
    )
    for shipped in ("cpu-tiny", "mi355x-tp8", "hardware/cpu", "recipes/glm-5.2-amd"):
        override = workspace.home / "profiles" / f"{shipped}.yaml"
        override.parent.mkdir(parents=True, exist_ok=True)
        override.write_text((SHIPPED / f"{shipped}.yaml").read_text() + "# the user's own\n")
    fake_quark_home(workspace.home)
    harness(workspace.home)
    (workspace.home / _COPY).mkdir(parents=True)
    for run in _RUNS:
        (workspace.home / run).mkdir(parents=True, mode=0o700)
    write_public(workspace.sources / "checkpoint", "Llama-3.3-70B-Instruct")
    write_source(workspace.sources / "tiny")
    save(tp8(), workspace.sources / "results")
    (workspace.sources / "log").write_text(f"{MISS}\n")
    (workspace.sources / "rows.csv").write_text(f"{HEADER}\n{line(16)}\n")
    (load := workspace.sources / "load.yaml").write_text(LOAD)
    (workspace.sources / "space.yaml").write_text(f"{{workload: {load}, env: {{SCRIPTED_STEP: ['0.002', '0.001']}}}}\n")
    values, _, _ = (SHIPPED / "published" / "wafer-glm52.yaml").read_text().partition("\nreproduce:")
    runs = f"{{summary: here, runs: [{{profile: cpu-tiny, workloads: [{load}]}}]}}"
    (workspace.sources / "published.yaml").write_text(f"{values}\nreproduce: {runs}\n")
    for name, lines in (("test", 1), ("train", 6)):
        question = json.dumps({"question": "What is 1 + 1?", "answer": "#### 2"}) + "\n"
        (workspace.sources / f"{name}.jsonl").write_text(question * lines)
    workspace.made.mkdir()
    with serve(workspace.hub):
        yield workspace


def harness(home: Path) -> None:
    """Write a fake environment of lm-evaluation-harness whose script reports one correct answer."""
    images = data_root() / "images"
    folder = venv._folder(venv._Recipe.read(images / REQUIREMENTS, images / "cpu_shim"), Home(home))
    for needed in ("bin", "lib/python3/site-packages/lm_eval"):
        (folder / needed).mkdir(parents=True)
    (folder / "bin" / "python").write_text(_HARNESS.format(python=sys.executable))
    (folder / "bin" / "python").chmod(0o755)
    (folder / "environment.json").write_text("{}")


def made(name: str) -> Callable[[Workspace], bool]:
    """Return a check whether the file exists in `made`."""
    return lambda workspace: (workspace.made / name).exists()


def in_home(name: str) -> Callable[[Workspace], bool]:
    """Return a check whether a file in the home matches the pattern."""
    return lambda workspace: any(workspace.home.glob(name))


def words_of(text: str) -> Callable[[Workspace], tuple[str, ...]]:
    """Return a function that fills in the paths; `sweep` and `reproduce` get the options of the scripted engine."""

    def words(workspace: Workspace) -> tuple[str, ...]:
        paths = {"made": workspace.made, "sources": workspace.sources}
        command = tuple(word.format(**paths) for word in text.split())
        return (*command, *workspace.deployment.settings()) if command[0] in {"sweep", "reproduce"} else command

    return words


CHANGING: Mapping[str, Changing] = {
    "render": Changing(
        words=words_of("render cpu-tiny --output {made}/rendered --json"), is_done=made("rendered/server.sh")
    ),
    "lock": Changing(words=words_of("lock cpu-tiny --output {made}/lock.yaml --json"), is_done=made("lock.yaml")),
    "schema": Changing(
        words=words_of("schema --output {made}/schemas"), is_done=made("schemas/recipe.schema.json"), speaks=False
    ),
    "monitoring": Changing(
        words=words_of("monitoring --profile cpu-tiny --output {made}/watched --json"),
        is_done=made("watched/prometheus.yml"),
    ),
    "add model": Changing(
        words=words_of("add model {sources}/checkpoint --json"),
        is_done=in_home("profiles/models/checkpoint.yaml"),
        speaks=False,
    ),
    "add profile": Changing(
        words=words_of("add profile --model tiny --hardware cpu --name own --json"),
        is_done=in_home("profiles/own.yaml"),
    ),
    "report": Changing(
        words=words_of("report {sources}/results --output {made}/report --json"),
        is_done=made("report/report.html"),
        speaks=False,
    ),
    "prune": Changing(
        words=words_of("prune --keep 1 --json"),
        is_done=lambda workspace: not in_home(_RUNS[0])(workspace),
        speaks=False,
    ),
    "prune --caches": Changing(
        words=words_of("prune --caches"), is_done=lambda workspace: not in_home(_COPY)(workspace), prints=False
    ),
    "kernels build": Changing(
        words=words_of("kernels build mi355x-tp8 --table {sources}/rows.csv --no-upstream --json"),
        is_done=in_home("kernels/*/*.csv"),
    ),
    "stage": Changing(words=words_of("stage mi355x-tp8 --dir {made}/glm --json"), is_done=made("glm.receipt.json")),
    "bench": Changing(
        words=words_of(
            "bench target --input-tokens 20 --output-tokens 4 --request-rate 50 --requests 4"
            " --output {made}/bench --json"
        ),
        is_done=made("bench/result.json"),
    ),
    "logprobs": Changing(
        words=words_of("logprobs target --max-length 64 --save {made}/reference.json --json"),
        is_done=made("reference.json"),
    ),
    "eval": Changing(
        words=words_of("eval target --suite gsm8k --dataset {sources} --output {made}/scores --json"),
        is_done=made("scores/eval-gsm8k.json"),
    ),
    "sweep": Changing(
        words=words_of(
            "sweep cpu-tiny --space {sources}/space.yaml --output {made}/sweep --max-trials 1 --repeats 0 --json"
        ),
        is_done=made("sweep/cpu-tiny-swept.yaml"),
    ),
    "reproduce": Changing(
        words=words_of("reproduce {sources}/published.yaml --no-evals --output {made}/again"),
        is_done=made("again/report.html"),
        prints=False,
    ),
    "quantize": Changing(
        words=words_of("quantize {sources}/tiny {made}/made --recipe glm-5.2-amd --json"),
        is_done=made("made.receipt.json"),
    ),
}
