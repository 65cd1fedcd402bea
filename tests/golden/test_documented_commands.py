"""Each fenced `deploy` command of the documentation is valid and runs: here, or in the test that `RUN_BY` names.

The commands of a page run in order, in a home for each page. The scripted engine serves `cpu-tiny`, a hub on loopback
has the checkpoint of `mi355x-tp8`. `up` of other profiles, `reproduce`, `eval`, `sweep`, `prune` and `kernels tune` run
with `--dry-run`.
"""

import re
import shlex
import shutil
import signal
import subprocess
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
from loopback_hub import Hub, serve
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
RUN_BY = {  # the integration test that runs such a command, with what it needs
    r"add engine lmsysorg": "test_add_engine_image.py::test_all_engine_facts_are_read_from_image",
    r"add engine 0": "test_add_engine_image.py::test_patch_states_are_read_from_wheel",
    r"build": "test_images_docker.py::test_pushed_image_is_pulled_with_same_digest",
    r"kernels build": "test_kernels_image.py::test_profile_image_is_pulled_and_its_rows_used",
    r"preflight .*--host": "test_fabric_hosts.py::test_two_host_measurement_is_recorded_and_compared",
    r"prune --caches": "test_process_patched.py::test_prune_keeps_patched_copies_in_use",
    r"quantize": "test_quantize.py::test_every_recipe_produces_same_bytes_as_quark",
    r"stage .*--host": "test_stage_over_ssh.py::test_remote_staging_is_complete_and_hides_token",
    r"status .*--host": "test_multiple_hosts.py::test_unreachable_host_does_not_stop_others",
    r"status pair": "test_gateway.py::test_killed_replica_is_restarted_without_lost_responses",
    r"sweep .*--resume": "test_sweep.py::test_interrupted_sweep_is_resumed",
}
FAILS = {
    r"preflight mi355x-tp8": 4,  # no GPU
    r"smoke .*--api-key-env": 8,  # the scripted engine does not require the key
    r"watch .*--webhook": 130,  # Ctrl-C
    r".*# exits with 3": 3,
}


def sh_blocks(page: Path) -> str:
    blocks = re.findall(r"^```(?:console|sh)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return "".join(blocks).replace("\\\n", " ")


def written_files(page: Path) -> list[str]:
    """Return the files that other programs, such as `kubectl`, take from commands of the page."""
    return re.findall(r" (\w+/[\w.-]+\.ya?ml)", sh_blocks(page))


def fenced(page: Path) -> Iterator[str]:
    """Yield the commands of a page without comments."""
    for line in sh_blocks(page).splitlines():
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


def run_by(line: str) -> str:
    """Return the integration test that runs a command; empty if it runs here."""
    return next((test for pattern, test in RUN_BY.items() if re.match(f"deploy {pattern}", line)), "")


def test_documentation_contains_commands() -> None:
    assert len(COMMANDS) > 80
    assert {page for page, _ in COMMANDS} >= {"README.md", "docs/how-to/docker.md", "docs/how-to/measure.md"}
    unused = [pattern for pattern in RUN_BY if not any(re.match(f"deploy {pattern}", line) for _, line in COMMANDS)]
    assert not unused


def options_of(words: list[str]) -> set[str]:
    return {word for word in words if word.startswith("--")}


@pytest.mark.parametrize("line", [line for _, line in COMMANDS if run_by(line)])
def test_integration_test_has_verb_and_options_of_command(line: str) -> None:
    """Search its module and the modules of `tests/support` that it imports; an option may also run here."""
    module, _, function = run_by(line).partition("::")
    text = (ROOT / "tests/integration" / module).read_text()
    assert f"def {function}(" in text
    imported = [ROOT / f"tests/support/{name}.py" for name in re.findall(r"^from (\w+) import", text, re.MULTILINE)]
    text += "".join(file.read_text() for file in imported if file.exists())
    verb = verb_of(words_of(line))
    others = [words_of(other) for _, other in COMMANDS if not run_by(other)]
    options = options_of(words_of(line)).difference(*(options_of(words) for words in others if verb_of(words) == verb))
    assert [word for word in (*verb.split(), *options) if not re.search(rf"(?<![\w-]){word}\b", text)] == []


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
    (home.root / "wheels").mkdir()
    with zipfile.ZipFile(home.root / "wheels/sglang-0.5.15.post1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("sglang/srt/server_args.py", "")
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


def _glm_5_2(directory: Path) -> Path:
    """Write a checkpoint of 3 kB with the layers that `mi355x-tp8` needs."""
    return write_checkpoint(directory, layers=4, mtp_layer=78)


CHECKPOINTS = {"zai-org/GLM-4.7-Flash": _small_glm, "/mnt/glm": _glm_5_2}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with serve(Hub(repository="amd/GLM-5.2-MXFP4", directory=_glm_5_2(tmp_path_factory.mktemp("hub")))) as running:
        yield running


def _add_engine(engines: Path) -> None:
    """Write what `add engine` would write for sglang 0.5.24."""
    (engines / "flags").mkdir(parents=True)
    table = (ROOT / "profiles/engines/flags/0.5.23.json").read_text()
    (engines / "flags/0.5.24.json").write_text(table.replace("0.5.23", "0.5.24"))
    entry = {"version": "0.5.24", "platform": "rocm", "image": "sglang:0.5.24", "dockerfile": "sglang-rocm"}
    (engines / "sglang-0.5.24-rocm.yaml").write_text(yaml.safe_dump({"source": "a test", **entry}))


def _write_inputs(words: list[str], profiles: Path) -> None:
    """Write the engine, the workloads and the results that a command reads."""
    verb = verb_of(words)
    if "engine=sglang-0.5.24-rocm" in words:
        _add_engine(profiles / "engines")
    if verb == "bench":
        for name in ("short", "smoke-tiny", "wafer-20k-1k"):
            _shorten(name, profiles / "workloads")
    if verb in {"compare", "report"}:
        for path in words[1:]:
            if path.startswith("results"):
                save(tp8() if "tp8" in path else tp4dp2(), Path(path))


def _prepared(words: list[str], url: str) -> list[str]:
    """Return the command with an existing server and checkpoint, and with `--dry-run` if it needs more."""
    for path, write in CHECKPOINTS.items():
        if any(word.endswith(path) for word in words):
            directory = write(Path(Path(path).name).absolute())
            words = [re.sub(f"(^|=){path}$", rf"\g<1>{directory}", word) for word in words]
    verb = verb_of(words)
    if "--webhook" in words:
        words.remove("URL")
    words = [url if word == "URL" or re.match(r"http://[^/]*:\d+$", word) else word for word in words]
    if verb in SERVED - {"eval"} and words[1:] and not words[1].startswith(("http", "-")):
        words[1] = "cpu-tiny"
    if verb == "bench" and "--request-rate" in words:
        words = [*words, "--requests", "4"]
    if verb == "smoke":
        words = [{"mi355x-tp8": "cpu-tiny", "60": "0.02"}.get(word, word) for word in words]  # `--soak 60`: an hour
    dry = verb in DRY and words != ["up", "cpu-tiny"] and "--dry-run" not in words
    return [*words, "--dry-run"] if dry else words


def _watched(deploy: CommandLine, words: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run `watch` until it watches the server; Ctrl-C ends it."""
    with deploy.running(*words) as running:
        line = running.line()
        code, rest = running.end(signal.SIGINT)
    return subprocess.CompletedProcess(words, code if "watching" in line else 1, line, rest)


RUN = [(page, line) for page, line in COMMANDS if not run_by(line)]


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("page", "lines"), [(p, [line for _, line in group]) for p, group in groupby(RUN, lambda c: c[0])]
)
def test_commands_of_page_run_in_their_order(page: str, lines: list[str], home: Home, hub: Hub) -> None:
    keys = {name: f"{name.lower()}-of-a-test" for name in ("HOUSE_KEY", "KEY", "SGLANG_KEY")}
    hosts = {"DOCKER_HOST": "unix:///nonexistent", "HF_ENDPOINT": hub.url, "HF_HOME": str(home.root / "hf")}
    deploy = CommandLine(home, keys | hosts)
    url = f"http://127.0.0.1:{yaml.safe_load((home.root / 'profiles/cpu-tiny.yaml').read_text())['server']['port']}"
    up = False
    try:
        for line in lines:
            words = _prepared(words_of(line), url)
            _write_inputs(words, home.root / "profiles")
            if verb_of(words) in SERVED - {"eval"} and not up:
                up = deploy.run("up", "cpu-tiny").returncode == 0
                assert up
            up = (up or words == ["up", "cpu-tiny"]) and words[0] != "down"
            done = _watched(deploy, words) if "--webhook" in words else deploy.run(*words)
            code = next((code for pattern, code in FAILS.items() if re.match(f"deploy {pattern}", line)), 0)
            assert done.returncode == code, f"{page}: {line}\n{' '.join(words)}\n{done.stdout}{done.stderr}"
        assert [path for path in written_files(ROOT / page) if not Path(path).exists()] == []
    finally:
        if up:
            deploy.run("down", "cpu-tiny", "--drain", "0")
        shutil.rmtree(home.root, ignore_errors=True)
