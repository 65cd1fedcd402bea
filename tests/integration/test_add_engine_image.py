"""Test `deploy add engine` with real wheels and with an image in a real Docker engine."""

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import docker
import pytest
from aiter_image import COMMIT, imported
from engine_image import AITER, FILES, layered
from rocm_image import PACKAGE, base_image
from typer.testing import CliRunner
from wheels import read, wheel

from orchestrator.cli.main import app
from orchestrator.core.errors import BuildError
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.images.client import DockerCli
from orchestrator.planner import flag_tables

pytestmark = [pytest.mark.docker, pytest.mark.wheels]

VERSION = "0.5.14"


@pytest.fixture(scope="module")
def engine(docker_daemon: DockerCli) -> docker.DockerClient:
    return docker.DockerClient(base_url=docker_daemon.host)


@pytest.fixture(scope="module")
def image(engine: docker.DockerClient) -> Iterator[str]:
    with layered(engine, base_image(wheel(VERSION)), "deploy-add-test/engine:own", FILES) as name:
        yield name


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEPLOY_HOME", str(tmp_path))
    return tmp_path


def deploy(line: str) -> str:
    done = CliRunner().invoke(app, shlex.split(line))
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_all_engine_facts_are_read_from_image(engine: docker.DockerClient, image: str) -> None:
    report = json.loads(deploy(f"add engine {image} --name own --json"))
    facts = {fact["key"]: (fact["value"], fact["from"]) for fact in report["facts"]}
    assert facts["version"] == (VERSION, f"{PACKAGE}/_version.py")
    assert facts["platform"] == ("rocm", "/usr/lib/python3/dist-packages/torch/version.py: hip = '7.2.53211'")
    assert facts["source_dir"][0] == PACKAGE
    assert (facts["aiter_dir"][0], facts["aiter_commit"][0]) == (AITER, COMMIT)
    assert "image_digest" not in facts, "the image is in no registry"
    assert report["tuned_kernels"]["rows"] == 2
    states = {patch["id"]: patch["state"] for patch in report["patches"]}
    assert states == {
        "aiter-fp4-moe-table": "needed",
        "dsa-topk-v2-off": "not applicable",
        "eagle-verify-broadcast": "needed",
        "mtp-shared-expert-exclude": "needed",
        "rocm-cuda-runtime-guard": "needed",
    }
    assert engine.containers.list(all=True, filters={"ancestor": image}) == []
    assert json.loads(deploy("show mi355x-tp8 --set engine=own --json"))["engine"]["aiter_commit"] == COMMIT
    assert f"FROM {image}" in deploy("render mi355x-tp8 --set engine=own")


def test_missing_flag_table_is_generated_from_image_sources(
    image: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user sets a version without a table; `test_flag_tables.py` tests the real parser."""

    def fake_run(argv: Sequence[str]) -> CompletedProgram:
        parser = Path(argv[2], "sglang/srt/server_args.py")
        assert parser.read_text() == read(VERSION, "srt/server_args.py")
        table = json.dumps({"sglang": argv[3], "flags": {"port": {"takes_value": True}}})
        return CompletedProgram(argv=(), code=0, stdout=table, stderr="")

    monkeypatch.setattr(flag_tables, "run", fake_run)
    deploy(f"add engine {image} --name own --set version=0.5.14.post9 --python python3")
    assert (home / "profiles/engines/flags/0.5.14.post9.json").is_file()


def test_image_without_sglang_is_rejected(engine: docker.DockerClient, home: Path) -> None:
    with imported(engine) as bare:
        error = CliRunner().invoke(app, ["add", "engine", bare]).exception
    assert isinstance(error, BuildError)
    assert error.message == f"cannot read the packages of `{bare}`"
    assert "python3" in error.details
    assert [*home.iterdir()] == []


@pytest.mark.parametrize("version", ["0.5.19", "0.5.20"])
def test_patch_states_are_read_from_wheel(version: str, home: Path) -> None:
    options = f"--set platform=rocm --set image=own:1 --name own --wheel {wheel(version)}"
    report = json.loads(deploy(f"add engine {version} {options} --json"))
    assert {patch["state"] for patch in report["patches"]} == {"upstream", "not applicable"}
    assert (home / "profiles/engines/own.yaml").is_file()
    assert "--dsa-decode-backend tilelang" in deploy("render mi325x-tp8 --set engine=own")
