"""Each fenced `deploy` command of the documentation is valid, and runs unless `CANNOT_RUN` has a reason.

The commands of a page run in order, in a home for each page. The scripted engine serves `cpu-tiny`; `up` of other
profiles, `reproduce`, `eval`, `sweep`, `prune` and `kernels tune` run with `--dry-run`.
"""

import re
import shlex
import shutil
import zipfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
import typer
import yaml
from checkpoint_samples import write_checkpoint
from command_line import CommandLine
from config_samples import PUBLIC, write_config
from measured_samples import save, tp4dp2, tp8
from ports import free_port

from orchestrator.cli.main import app
from orchestrator.core.paths import Home, data_root

ROOT = data_root()
ENGINE = ROOT / "tests/support/scripted_engine.py"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
DIGEST = "0" * 64
NAMES = {"NAME": "cpu-tiny", "PROFILE": "cpu-tiny", "OTHER": "URL", "$profile": "cpu-tiny"}
DRY = {"up", "reproduce", "eval", "sweep", "prune", "kernels tune"}
SERVED = {"ask", "bench", "diagnose", "down", "eval", "logprobs", "monitoring", "smoke", "status", "watch"}  # need one
CANNOT_RUN = {
    r"add engine": "reads an image, or a wheel from the package index",
    r"build|kernels build": "needs the vendor's image on a Docker host",
    r"patches check --wheel": "downloads a wheel",
    r"quantize": "needs AMD Quark and a checkpoint in BF16",
    r"stage": "downloads the checkpoint, or needs it whole",
    r"(status|preflight|stage) .*--host": "needs another host",
    r"prune --caches": "needs a Docker daemon",
    r"watch .*--webhook": "runs until it is stopped",
    r"status pair": "needs two replicas and the gateway's package",
    r"sweep .*--resume": "needs an interrupted sweep",
    r"smoke .*--api-key-env": "needs a server with an API key",
    r"up .*engine=sglang-0.5.24-rocm": "needs the entry that `add engine` writes",
}
FAILS = {
    r"preflight mi355x-tp8": 4,  # no GPU
    r".*# exits with 3": 3,
}


def fenced(page: Path) -> Iterator[str]:
    """Yield the commands of a page without comments."""
    for block in re.findall(r"^```(?:console|sh)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield from re.findall(
                r"(?:^|\$ |&& |do |  )(deploy .*?)(?= && | \| sudo|$)", re.sub(r"\s+#(?! exits).*| > .*", "", line)
            )


COMMANDS = [
    (page.relative_to(ROOT).as_posix(), " ".join(line.split()))
    for page in PAGES
    for line in dict.fromkeys(fenced(page))
]


def words_of(line: str) -> list[str]:
    words = shlex.split(line.replace("…", DIGEST), comments=True)[1:]
    return [re.sub(r"\$profile|\b(NAME|PROFILE|OTHER)\b", lambda match: NAMES[match[0]], word) for word in words]


def verb_of(words: list[str]) -> str:
    return " ".join(words[:2]) if words[0] in {"patches", "kernels", "add"} else words[0]


def reason_against(line: str) -> str:
    """Return why a command cannot run here; empty if it can."""
    command = line.removeprefix("deploy ")
    return next((reason for pattern, reason in CANNOT_RUN.items() if re.match(pattern, command)), "")


def test_documentation_contains_commands() -> None:
    assert len(COMMANDS) > 80
    assert {page for page, _ in COMMANDS} >= {"README.md", "docs/how-to/docker.md", "docs/how-to/measure.md"}


def test_each_reason_against_running_is_used() -> None:
    unused = [
        pattern
        for pattern in CANNOT_RUN
        if not any(re.match(pattern, line.removeprefix("deploy ")) for _, line in COMMANDS)
    ]
    assert not unused


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_documented_command_is_accepted(page: str, line: str) -> None:
    command, words = typer.main.get_command(app), words_of(line)
    context = command.make_context("deploy", [], resilient_parsing=True)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
        context = command.make_context(command.name, [], parent=context, resilient_parsing=True)
    values, rest, _ = command.make_parser(context).parse_args(list(words))
    assert not rest, f"{page}: unknown arguments `{' '.join(rest)}`"
    missing = [option.name for option in command.params if option.required and values.get(option.name) is None]
    assert not [name for name in missing if name != "profile" or "--profile" not in words], f"{page}: {line}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Return a home in which the scripted engine serves `cpu-tiny`, and enter a directory with the pages' files."""
    home = Home(tmp_path / "home")
    profiles = home.root / "profiles"
    own = yaml.safe_load((ROOT / "profiles/cpu-tiny.yaml").read_text())
    own["engine"] = {"use": own["engine"], "python": str(ENGINE)}
    own["model"] = {"use": own["model"], "questions": None}  # the scripted engine answers no question correctly
    own["server"]["port"] = free_port()
    (profiles / "workloads").mkdir(parents=True)
    (profiles / "cpu-tiny.yaml").write_text(yaml.safe_dump(own))
    directory = tmp_path / "work"
    directory.mkdir()
    for page, file, key in (("write-a-profile", "whole.yaml", "runtime:"), ("sweep", "space.yaml", "objective:")):
        blocks = re.findall(
            r"^```yaml\n(.*?)^```", (ROOT / f"docs/how-to/{page}.md").read_text(), re.MULTILINE | re.DOTALL
        )
        (directory / file).write_text(next(block for block in blocks if key in block))
    (directory / "rack.txt").write_text("ssh://root@n1\nssh://root@n2\n")
    (directory / "server.log").write_text("The server is fired up and ready to roll!\n")
    (directory / "trace.jsonl").write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]}\n'
    )
    (directory / "dist").mkdir()
    with zipfile.ZipFile(directory / "dist/deploy_sglang-0.1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("orchestrator/__init__.py", "")
    monkeypatch.chdir(directory)
    return home


def _shorten(name: str, folder: Path) -> None:
    """Write a version of a workload with four short requests."""
    workload = yaml.safe_load((ROOT / f"profiles/workloads/{name}.yaml").read_text())
    workload |= {"input_tokens": 100, "output_tokens": 8, "request_rates": [20.0], "requests": 4}
    workload = {key: value for key, value in workload.items() if key not in {"ramp", "duration_s"}}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(workload))


def _small_glm(directory: Path) -> Path:
    """Write GLM-4.7-Flash with 1 GB of weights and a short context, which fit into the memory of any host."""
    config = PUBLIC["GLM-4.7-Flash"].config | {"max_position_embeddings": 4096}
    write_config(directory, config, weights=1_000_000_000)
    return directory


CHECKPOINTS = {"zai-org/GLM-4.7-Flash": _small_glm, "/mnt/glm": write_checkpoint}


def _prepared(words: list[str], url: str, home: Home) -> list[str]:
    """Return the command with an existing server, checkpoint and results, and with `--dry-run` if it needs more."""
    for path, write in CHECKPOINTS.items():
        if path in words:
            words[words.index(path)] = f"./{write(Path(Path(path).name))}"
    words = [url if word == "URL" or re.match(r"http://[^/]*:\d+$", word) else word for word in words]
    verb = verb_of(words)
    if verb in SERVED - {"eval"} and words[1:] and not words[1].startswith(("http", "-")):
        words[1] = "cpu-tiny"
    if verb == "bench":
        for name in ("short", "smoke-tiny", "wafer-20k-1k"):
            _shorten(name, home.root / "profiles/workloads")
        words = [*words, "--requests", "4"] if "--request-rate" in words else words
    if verb == "smoke":
        words = [{"mi355x-tp8": "cpu-tiny", "60": "0.02"}.get(word, word) for word in words]  # `--soak 60`: an hour
    if verb in {"compare", "report"}:
        for path in words[1:]:
            if path.startswith("results"):
                save(tp8() if "tp8" in path else tp4dp2(), Path(path))
    dry = verb in DRY and words != ["up", "cpu-tiny"] and "--dry-run" not in words
    return [*words, "--dry-run"] if dry else words


RUN = [(page, line) for page, line in COMMANDS if not reason_against(line)]


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("page", "lines"), [(p, [line for _, line in group]) for p, group in groupby(RUN, lambda c: c[0])]
)
def test_commands_of_page_run_in_their_order(page: str, lines: list[str], home: Home) -> None:
    deploy = CommandLine(
        home, {"HOUSE_KEY": "house-key-of-a-test", "KEY": "key-of-a-test", "SGLANG_KEY": "sglang-key-x"}
    )
    url = f"http://127.0.0.1:{yaml.safe_load((home.root / 'profiles/cpu-tiny.yaml').read_text())['server']['port']}"
    up = False
    try:
        for line in lines:
            words = _prepared(words_of(line), url, home)
            if verb_of(words) in SERVED - {"eval"} and not up:
                up = deploy.run("up", "cpu-tiny").returncode == 0
                assert up
            up = (up or words == ["up", "cpu-tiny"]) and words[0] != "down"
            done = deploy.run(*words)
            code = next((code for pattern, code in FAILS.items() if re.match(f"deploy {pattern}", line)), 0)
            assert done.returncode == code, f"{page}: {line}\n{' '.join(words)}\n{done.stdout}{done.stderr}"
    finally:
        if up:
            deploy.run("down", "cpu-tiny", "--drain", "0")
        shutil.rmtree(home.root, ignore_errors=True)
