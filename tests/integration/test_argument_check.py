"""Check server arguments with the parsers of several real sglang versions, without a GPU."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import pytest
import torch_forks
from command_line import CommandLine
from loopback_hub import COMMIT, Hub, serve
from ports import free_port
from rocm_image import AITER, PACKAGE, engine_image, packages_of
from server_commands import command, model_in, with_setting
from torch_forks import Program, run_forked
from waits import wait_for
from wheels import unpacked

from orchestrator.checkpoints.checkpoint import Checkpoint
from orchestrator.core.paths import Home, data_root
from orchestrator.engine.server_args import ArgumentVerdict, read_verdicts
from orchestrator.hosts.venvs.venv import Venv
from orchestrator.images.argument_checker import argument_question
from orchestrator.images.client import DockerCli
from orchestrator.planner.planning import load, render_artifacts
from orchestrator.runtimes.slurm.arguments import argument_files
from orchestrator.runtimes.slurm.job import start_file
from orchestrator.runtimes.slurm.state import server_state
from orchestrator.runtimes.supervisor.main import StartRequest
from orchestrator.runtimes.supervisor.record import read_record

pytestmark = pytest.mark.engine

PROGRAM = data_root() / "images" / "check_server_args.py"
# Settings that only sglang validates; all versions below reject them.
REJECTED = (
    "dcp-size=0",
    "grpc-port=70000",
    "enable-eplb=true",
    "enable-pdmux=true",
    "enable-hisparse=true",
    "attention-backend=trtllm_mla",
    "speculative-algorithm=DSPARK",
    "pp-max-micro-batch-size=0",
    "retraction-policy=priority",
    "tool-call-parser=glm99",
    "chat-template=/no/such.jinja",
    "tokenizer-path=/no/such",
)
# Checked with the newest version only: each takes seconds.
MORE_REJECTED = (
    "chunked-prefill-size=1000",
    "base-gpu-id=-1",
    "gpu-id-step=0",
    "kv-cache-dtype=fp8_e5m2",
    "speculative-eagle-topk=4",
    "speculative-num-steps=null",
    "schedule-conservativeness=-1",
    "json-model-override-args={bad",
    "json-model-override-args=7",
    "tokenizer-worker-num=0",
    "moe-dense-tp-size=3",
    "enable-two-batch-overlap=true",
    "ssl-keyfile=/nope",
    "speculative-eagle-topk=null",
    "speculative-algorithm=NGRAM",
    "quantization=awq",
    "attn-cp-size=2",
    "moe-dp-size=2",
    "moe-dp-size=3",
    "enable-deterministic-inference=true",
    "enable-hierarchical-cache=true & disable-radix-cache=true",
    "disable-cuda-graph-padding=true & enable-torch-compile=true",
)
# sglang's message does not name the missing option.
UNNAMED = "speculative-num-steps=null"
ENGINES = {"0.5.16": "mi355x-tp8", "0.5.20": "mi355x-tp8-current", "0.5.23": "mi355x-tp8"}
SETTINGS = dict.fromkeys(ENGINES, ("", *REJECTED)) | {"0.5.23": ("", *REJECTED, *MORE_REJECTED)}
GPU_ENV = {"SGLANG_USE_AITER": "1", "AITER_ENABLE_AOT_GLUON_PA_MQA_LOGITS": "1"}


@pytest.fixture(scope="module")
def verdicts(
    cpu_environment: Venv, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Mapping[str, ArgumentVerdict]]:
    """Return the verdicts by version and setting; the setting "" is the unchanged profile."""
    model = model_in(tmp_path_factory.mktemp("glm"))
    programs = {}
    for version, profile in ENGINES.items():
        artifacts = render_artifacts(load(profile).plan)
        payload = json.loads(argument_question(artifacts, Checkpoint.local(model).engine_files()).to_json())
        base = command(profile, model)
        payload["argv"] = [base if setting == "" else with_setting(base, setting) for setting in SETTINGS[version]]
        text = f"import sys; sys.path.insert(0, {str(unpacked(version))!r})\n{PROGRAM.read_text()}"
        programs[version] = Program(program=text, stdin=json.dumps(payload))
    environ = {**GPU_ENV, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path_factory.mktemp("home"))}
    results = run_forked(cpu_environment.python, programs, environ)
    for version, done in results.items():
        assert done.returncode == 0, (version, done.stderr[-2000:])
    return {
        version: dict(zip(SETTINGS[version], read_verdicts(done.stdout), strict=True))
        for version, done in results.items()
    }


@pytest.mark.wheels
@pytest.mark.parametrize("version", ENGINES)
def test_each_version_rejects_invalid_arguments_by_option(
    version: str, verdicts: Mapping[str, Mapping[str, ArgumentVerdict]]
) -> None:
    answer = verdicts[version]
    assert answer[""] == ArgumentVerdict()
    options = {
        setting: () if setting == UNNAMED else tuple(one.partition("=")[0] for one in setting.split(" & "))
        for setting in SETTINGS[version]
        if setting
    }
    rejected = {
        setting: verdict.rejection.rejected_options([one.partition("=")[0] for one in setting.split(" & ")])
        for setting, verdict in answer.items()
        if verdict.rejection is not None
    }
    assert rejected == options


def test_unrelated_parser_failures_are_not_rejections(cpu_environment: Venv, tiny_model: Path) -> None:
    """The cases are a missing draft model, an unsupported architecture, and a model without config.json."""
    artifacts = render_artifacts(load("cpu-tiny").plan)
    base = list(argument_question(artifacts, None).argv[0])
    draft = ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", "nobody/nothing"]
    shape = json.loads((tiny_model / "config.json").read_text())
    files = {"right": shape, "unknown": {**shape, "model_type": "no-such-model", "architectures": ["NoSuch"]}}
    programs = {
        (model, kind): Program(program=str(PROGRAM), stdin=question(artifacts, argv, files.get(model)))
        for model, kind, argv in (
            ("right", "draft", [*base, *draft]),
            ("unknown", "eplb", [*base, "--enable-eplb"]),
            ("none", "choice", [*base, "--tool-call-parser", "glm99"]),
            ("none", "eplb", [*base, "--enable-eplb"]),
        )
    }
    results = run_forked(cpu_environment.python, programs, {"SGLANG_USE_CPU_ENGINE": "1", "PATH": "/usr/bin:/bin"})
    answers = {key: read_verdicts(done.stdout)[0] for key, done in results.items()}
    assert answers["right", "draft"].unchecked
    assert answers["unknown", "eplb"].unchecked
    assert answers["none", "choice"].rejection is not None
    assert answers["none", "choice"].rejection.rejected_options(["tool-call-parser"]) == ("tool-call-parser",)
    assert answers["none", "eplb"] == ArgumentVerdict(parsed_only=True)


def test_init_container_reports_rejected_arguments(cpu_environment: Venv, tiny_model: Path, tmp_path: Path) -> None:
    """It writes a file and exits with 3; if it cannot check the arguments, it exits with 0 and the server starts."""
    artifacts = render_artifacts(load("cpu-tiny").plan)
    base = list(argument_question(artifacts, None).argv[0])
    base[base.index("--model-path") + 1] = str(tiny_model)
    for name, argv in (("right", base), ("wrong", [*base, "--enable-eplb"])):
        (tmp_path / name).write_text(question(artifacts, argv, None))
    (tmp_path / "broken").write_text('{"platform": "abacus"}')
    programs = {
        name: Program(program=str(PROGRAM), argv=(str(tmp_path / name), str(tmp_path / f"{name}.verdict")))
        for name in ("right", "wrong", "broken")
    }
    results = run_forked(cpu_environment.python, programs, {"SGLANG_USE_CPU_ENGINE": "1", "PATH": "/usr/bin:/bin"})
    assert {name: done.returncode for name, done in results.items()} == {"right": 0, "wrong": 3, "broken": 0}
    assert "arguments not checked by sglang: KeyError" in results["broken"].stderr
    assert not (tmp_path / "right.verdict").exists()
    [verdict] = read_verdicts((tmp_path / "wrong.verdict").read_text())
    assert verdict.rejection is not None
    assert verdict.rejection.options == ("enable-eplb",)


@pytest.mark.parametrize("settings", [("flags.enable-eplb=true",), ()])
def test_containerized_job_with_rejected_arguments_starts_no_server(
    cpu_environment: Venv, tiny_model: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """The container is a script with this engine as its `python3`; its server only writes a file."""
    python = str(cpu_environment.python)
    check = (
        f"import os, sys; sys.path.insert(0, {str(Path(torch_forks.__file__).parent)!r}); import torch_forks; "
        f"_, option, program, *argv = sys.argv; assert option == '-B'; "
        f"sys.exit(torch_forks.run({python!r}, program, argv, environ=os.environ, streams=(0, 1, 2)))"
    )
    container, run_dir = tmp_path / "apptainer", tmp_path / "x" / "run"
    run_dir.mkdir(parents=True)
    serve = f'[ "$2" = sglang.launch_server ] && echo "$*" > {tmp_path}/served && exit 0'
    container.write_text(
        f'#!/bin/sh\nwhile [ "$1" != python3 ]; do shift; done\nshift\n{serve}\nexec {python} -c "{check}" "$@"\n'
    )
    container.chmod(0o755)
    job = ("runtime=slurm", "server.api_key_env=KEY", "slurm.container=apptainer", "slurm.image=/i.sif")
    model = ("model.checkpoint.source=local", f"model.checkpoint.path={tiny_model}")
    artifacts = render_artifacts(load("cpu-tiny", overrides=(*job, *model, *settings)).plan)
    for name, text in argument_files(artifacts).items():
        (run_dir / name).write_text(text)
    argv = [str(container), *artifacts.command.argv[1:]]
    request = StartRequest(
        **dict.fromkeys(("run_dir", "cwd", "token"), str(run_dir)),
        **dict.fromkeys(("name", "profile", "plan_digest"), "x"),
        argv=tuple(argv), env={**dict(artifacts.command.env), "SGLANG_USE_CPU_ENGINE": "1"}, secret_env={}, config=None,
        secrets=(), url="http://127.0.0.1:30000", record="job.json",
    )  # fmt: skip
    (run_dir / "job-start.json").write_text(start_file(asdict(request), requeue=False))
    program = [sys.executable, "-P", "-m", "orchestrator.runtimes.slurm.job", str(run_dir)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)
    (run_dir / "job.log").write_text(done.stderr)
    state = server_state(None, read_record(run_dir, "job.json"), run_dir)
    if not settings:
        assert (done.returncode, (tmp_path / "served").exists(), state.rejection) == (0, True, None), done.stderr
        return
    assert (done.returncode, (tmp_path / "served").exists()) == (3, False), done.stderr
    assert state.rejection is not None
    assert state.rejection.options == ("enable-eplb",)
    assert "sglang rejected its arguments: `assert self.ep_size > 1`" in state.detail


def question(artifacts: object, argv: list[str], config: object) -> str:
    files = None if config is None else {"config.json": json.dumps(config)}
    payload = json.loads(argument_question(artifacts, files).to_json())  # type: ignore[arg-type]
    return json.dumps({**payload, "argv": [argv]})


@pytest.fixture
def hub(tiny_model: Path, tmp_path: Path) -> Iterator[Hub]:
    source = tmp_path / "source"
    shutil.copytree(tiny_model, source, ignore=shutil.ignore_patterns(".generator"))
    with serve(Hub(repository="tests/tiny", directory=source)) as serving:
        yield serving


@pytest.fixture
def deploy(engine_home: Home, tmp_path: Path) -> CommandLine:
    """Return `deploy` with a home that has the engine's environment and no checkpoint."""
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.environments.symlink_to(engine_home.environments)
    return CommandLine(home)


def hub_arguments(*settings: str) -> list[str]:
    arguments = (
        "model.checkpoint.source=hub",
        "model.checkpoint.path=tests/tiny",
        f"model.checkpoint.revision={COMMIT}",
        f"server.port={free_port()}",
        *settings,
    )
    return ["cpu-tiny", *(word for setting in arguments for word in ("--set", setting))]


def test_rejected_arguments_are_reported_before_checkpoint_download(deploy: CommandLine, hub: Hub) -> None:
    words = ["up", "--name", "rejected", *hub_arguments("flags.enable-eplb=true")]
    for _ in range(2):  # the second time with the saved verdict
        done = deploy.run(*words, HF_ENDPOINT=hub.url)
        assert done.returncode == 3, done.stderr
        assert "error: sglang 0.5.14 rejects arguments of `cpu-tiny`" in done.stderr
        assert "assert self.ep_size > 1" in done.stderr
        assert "--> --set flags.enable-eplb" in done.stderr
    assert "checked the arguments in" not in done.stderr
    assert set(hub.sent) <= {"config.json", "generation_config.json"}
    assert not list(deploy.home.models.glob("tiny/*.safetensors"))
    assert not list(deploy.home.runs.glob("rejected/*/plan.json"))


@pytest.mark.docker
def test_image_checks_arguments_before_download_and_removes_container(
    deploy: CommandLine, hub: Hub, docker_daemon: DockerCli, cpu_environment: Venv
) -> None:
    base = engine_image(packages_of(cpu_environment.python), docker=docker_daemon.program)
    image = {
        "runtime": "docker",
        "engine.image": base,
        "engine.dockerfile": "sglang-rocm",
        "engine.source_dir": PACKAGE,
        "engine.aiter_dir": str(Path(AITER).parent),
    }
    settings = [f"{key}={value}" for key, value in image.items()]
    words = hub_arguments(*settings, "flags.enable-eplb=true")
    for command_words in (["up", "--name", "rejected"], ["build", "--tag", "deploy-rejected:latest"]):
        done = deploy.run(*command_words, *words, HF_ENDPOINT=hub.url)
        assert done.returncode == 3, done.stderr
        assert "--> --set flags.enable-eplb" in done.stderr
    assert not docker("image", "ls", "--quiet", "deploy-rejected")  # no tag, so that nobody can push it
    without = deploy.run("build", *words, HF_ENDPOINT="http://127.0.0.1:1")
    assert without.returncode == 0, without.stderr
    assert "did not validate them: no config.json of `tiny`" in without.stderr
    assert set(hub.sent) <= {"config.json", "generation_config.json"}
    # other test runs may still remove theirs
    wait_for(lambda: not docker("ps", "--all", "--quiet", "--filter", "name=deploy-run-"))


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout
