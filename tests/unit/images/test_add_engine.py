"""Test `deploy add engine`: facts from a wheel or an image have their source; other facts are requested."""

import json
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from kernel_samples import FUSED_TP8, every_bucket
from typer.testing import CliRunner, Result

from orchestrator.cli.main import app
from orchestrator.core.errors import BuildError, DeployError, KernelsError, ProfileError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.core.validation import read_model
from orchestrator.images.config import ImageConfig
from orchestrator.images.facts import ImageFacts
from orchestrator.images.patch_check import PatchState, SourceChecker
from orchestrator.images.receipt import SourceRecord
from orchestrator.kernels.disk.image import ImageTables
from orchestrator.kernels.plan_coverage import RowSources, compute_coverage
from orchestrator.planner import flag_tables
from orchestrator.planner.add import engine_sources
from orchestrator.planner.planning import load
from orchestrator.profiles.schema import EngineFile

IMAGE = "registry.example/sglang:v0.5.20-rocm720-mi35x"
DIGEST = f"sha256:{'1' * 64}"
COMMIT = "4ad99832823dde2315b361cbd3b54b1c5c12acd5"
FACT_OPTIONS = ("--set", "platform=rocm", "--set", f"image={IMAGE}")
FACTS = ImageFacts(
    sglang=SourceRecord(root="/sgl-workspace/sglang/python/sglang", version="0.5.20", commit=None),
    aiter=SourceRecord(root="/sgl-workspace/aiter/aiter", version=None, commit=COMMIT),
    platform="rocm",
    platform_evidence="/torch/version.py: hip = '7.2'",
)
STATES = (
    PatchState(id="one", state="needed", evidence=("a.py:1: x",)),
    PatchState(id="two", state="conflict", evidence=("-",)),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Return a home with a wheel of 0.5.20 that contains only its version."""
    home = Home(tmp_path / "home")
    monkeypatch.setenv("DEPLOY_HOME", str(home.root))
    monkeypatch.setattr(SourceChecker, "check_wheel", lambda *_: STATES[:1])
    wheel(home.root / "wheels/sglang-0.5.20-py3-none-any.whl", "0.5.20")
    return home


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate an image on a Docker host."""
    config = ImageConfig(reference=IMAGE, digest=DIGEST, env={}, labels={})
    monkeypatch.setattr(engine_sources, "find_docker", lambda _: None)
    monkeypatch.setattr(engine_sources, "docker_config", lambda _, name: replace(config, reference=name))
    monkeypatch.setattr(SourceChecker, "check_image", lambda *_: STATES)
    set_image_facts(monkeypatch, FACTS)


def set_image_facts(monkeypatch: pytest.MonkeyPatch, facts: ImageFacts) -> None:
    rows = tuple(every_bucket(FUSED_TP8))[1:]  # no row for one token
    tables = ImageTables(rows=rows, files=2, digest=DIGEST, aiter_commit=COMMIT)
    monkeypatch.setattr(engine_sources, "read_facts", lambda *_: facts)
    monkeypatch.setattr(engine_sources, "read_image", lambda *_: tables)


def wheel(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sglang/_version.py", f"__version__ = version = '{version}'\n")
    return path


def deploy(*line: str) -> Result:
    return CliRunner().invoke(app, [*line])


def rejections(*line: str, kind: type[DeployError] = ProfileError) -> Sequence[str]:
    error = deploy("add", "engine", *line).exception
    assert isinstance(error, kind), error
    return [f"{problem.message} | {problem.hint}" for problem in error.problems_or_self()]


def files_in(home: Home) -> list[str]:
    return sorted(
        str(path.relative_to(home.root)) for path in home.root.rglob("*") if path.is_file() and path.suffix != ".whl"
    )


def test_platform_missing_from_wheel_is_requested(home: Home) -> None:
    [platform] = rejections("0.5.20")
    assert "cannot read `platform`: all platforms have the same wheel | `--set platform=rocm`" in platform
    assert files_in(home) == []


@pytest.mark.usefixtures("home")
def test_engine_without_image_accepts_image_at_start() -> None:
    """A release may have no image yet, but its options and the states of its patches are known."""
    result = deploy("add", "engine", "0.5.20", "--set", "platform=rocm", "--name", "own")
    assert result.exit_code == 0, result.stderr
    assert "the engine has no image: `--set engine.image=NAME:TAG`" in result.stderr
    with pytest.raises(ProfileError) as caught:
        load("mi355x-tp8-current", overrides=["engine=own"])
    [problem] = caught.value.problems_or_self()
    assert "`engine.image`" in problem.message
    assert problem.hint.startswith("`--set engine.image=NAME:TAG`")
    assert load("mi355x-tp8-current", overrides=["engine=own", "engine.image=mine:1"]).plan.engine.image == "mine:1"


def test_engine_file_comments_name_sources(home: Home) -> None:
    result = deploy("add", "engine", "v0.5.20", *FACT_OPTIONS, "--name", "own")
    assert result.exit_code == 0, result.stderr
    assert (
        (home.root / "profiles/engines/own.yaml").read_text()
        == f"""\
# yaml-language-server: $schema=../engine.schema.json
# own, as `deploy add engine` read its wheel, sglang 0.5.20. The comment after each fact is its source.
# patch one: needed
source: sglang wheel 0.5.20
version: 0.5.20  # sglang/_version.py in its wheel
platform: rocm  # --set
image: '{IMAGE}'  # --set
dockerfile: sglang-rocm  # of its platform
"""
    )
    assert files_in(home) == ["profiles/engines/own.yaml"], "the flag table of 0.5.20 is shipped"
    assert result.stderr.splitlines()[-1] == "next: `deploy show PROFILE --set engine=own`"
    assert "the image's aiter is unknown" in result.stderr


def test_contradicting_input_is_rejected_without_writing(home: Home, tmp_path: Path) -> None:
    other = wheel(tmp_path / "sglang-0.5.19-py3-none-any.whl", "0.5.19")
    [mismatch] = rejections("0.5.20", *FACT_OPTIONS, "--name", "own", "--wheel", str(other), kind=UsageError)
    assert "has version 0.5.19, not 0.5.20" in mismatch
    other.write_text("no archive")
    [broken] = rejections("0.5.20", *FACT_OPTIONS, "--name", "own", "--wheel", str(other), kind=UsageError)
    assert "is not a wheel" in broken
    [release] = rejections("0.5.20", *FACT_OPTIONS, "--set", "version=0.5.18", kind=UsageError)
    assert release.startswith("`version` is 0.5.18, but the wheel has version 0.5.20 | `deploy add engine")
    [remote] = rejections("0.5.20", *FACT_OPTIONS, "--host", "ssh://node", kind=UsageError)
    assert remote.startswith("`--host` needs an image")
    [no_wheel] = rejections(IMAGE, "--wheel", str(other), kind=UsageError)
    assert no_wheel.startswith(f"`--wheel` needs a version; `{IMAGE}` is an image")
    [unknown] = rejections("0.5.20", *FACT_OPTIONS, "--name", "own", "--set", "aiter_comit=1")
    assert "unknown key `aiter_comit` | did you mean `aiter_commit`?" in unknown
    assert files_in(home) == []


def test_existing_engine_needs_replace_option() -> None:
    [shipped] = rejections("0.5.20", *FACT_OPTIONS, kind=UsageError)
    assert shipped.startswith("engine `sglang-0.5.20-rocm` exists")
    for replace_option in ((), ("--replace",)):
        assert deploy("add", "engine", "0.5.20", *FACT_OPTIONS, "--name", "own", *replace_option).exit_code == 0
        [existing] = rejections("0.5.20", *FACT_OPTIONS, "--name", "own", kind=UsageError)
        assert "`--replace` replaces it" in existing
    [invalid] = rejections("0.5.20", *FACT_OPTIONS, "--name", "../own", kind=UsageError)
    assert invalid.startswith("invalid engine name `../own`")


def test_missing_flag_table_is_generated_from_engine_parser(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(home.root / "wheels/sglang-0.5.99-py3-none-any.whl", "0.5.99")
    table = '{"sglang": "0.5.99", "flags": {"port": {"takes_value": true}}}\n'
    monkeypatch.setattr(flag_tables, "run", lambda _: CompletedProgram(argv=(), code=0, stdout=table, stderr=""))
    line = ("add", "engine", "0.5.99", "--set", "platform=rocm", "--set", "image=own:1", "--python", "python3")
    report = json.loads(deploy(*line, "--dry-run", "--json").stdout)
    assert (report["options"]["count"], report["options"]["made"], report["written"], files_in(home)) == (
        1,
        True,
        False,
        [],
    )
    assert deploy(*line).exit_code == 0
    assert files_in(home) == ["profiles/engines/flags/0.5.99.json", "profiles/engines/sglang-0.5.99-rocm.yaml"]
    monkeypatch.setattr(flag_tables, "run", lambda _: CompletedProgram(argv=(), code=1, stdout="", stderr="no torch"))
    assert not json.loads(deploy(*line, "--dry-run", "--json", "--replace").stdout)["options"]["made"]


@pytest.mark.usefixtures("image")
def test_image_supplies_all_engine_facts(home: Home) -> None:
    report = json.loads(deploy("add", "engine", IMAGE, "--name", "own", "--json").stdout)
    engine = read_model(home.root / "profiles/engines/own.yaml", EngineFile, "own")
    assert (engine.version, engine.platform, engine.dockerfile) == ("0.5.20", "rocm", "sglang-rocm")
    assert (engine.image, engine.image_digest) == (IMAGE, DIGEST)
    assert (engine.aiter_dir, engine.aiter_commit) == ("/sgl-workspace/aiter", COMMIT)
    assert {"key": "platform", "value": "rocm", "from": FACTS.platform_evidence} in report["facts"]
    assert report["tuned_kernels"]["gpus"] == ["gfx950 with 256 CUs"]
    assert [patch["state"] for patch in report["patches"]] == ["needed", "conflict"]
    assert any("patch `two` does not apply" in note for note in report["notes"])


@pytest.mark.usefixtures("image")
def test_recorded_image_tables_are_used_for_coverage(home: Home) -> None:
    """This aiter is known only because its image was read once."""
    choice = ("engine=own",)
    assert deploy("add", "engine", IMAGE, "--name", "own").exit_code == 0
    plan = load("mi355x-tp8", overrides=choice).plan
    coverage = compute_coverage(plan, RowSources(), home)
    assert not coverage.unknown
    assert f"tables of `registry.example/sglang@{DIGEST}`, read by `deploy add engine`" in coverage.tables
    assert [key.token for key in coverage.keys[0].untuned_keys] == [1]
    other_image = compute_coverage(
        load("mi355x-tp8", overrides=(*choice, "engine.image_digest=null")).plan, RowSources(), home
    )
    assert other_image.unknown, "another image with the same name"


@pytest.mark.usefixtures("image")
def test_facts_missing_from_image_are_requested(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    development = replace(FACTS.sglang, version="0.5.21.dev7+gc610c40399")
    set_image_facts(monkeypatch, replace(FACTS, sglang=development, platform=None, platform_evidence=""))
    version, platform = rejections(IMAGE)
    assert "its sources are of version `0.5.21.dev7+gc610c40399` | give the release" in version
    assert "(no torch found) | `--set platform=rocm`" in platform
    assert files_in(home) == []
    assert (
        deploy("add", "engine", IMAGE, "--set", "version=0.5.20", "--set", "platform=rocm", "--name", "own").exit_code
        == 0
    )


@pytest.mark.usefixtures("image")
def test_image_without_kernel_tables_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> ImageTables:
        raise KernelsError("`it` has no tuned fused-MoE table")

    monkeypatch.setattr(engine_sources, "read_image", fail)
    report = json.loads(deploy("add", "engine", IMAGE, "--name", "own", "--json").stdout)
    assert report["tuned_kernels"] is None
    assert "`it` has no tuned fused-MoE table: its tuned kernels are unknown" in report["notes"]


@pytest.mark.usefixtures("image")
def test_missing_image_is_not_pulled(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_sources, "docker_config", lambda *_: None)
    [message] = rejections("0.5", kind=BuildError)
    assert (
        message == "no image `0.5` found on this Docker host | `docker pull 0.5`; write a version of sglang as 0.5.17"
    )
    assert files_in(home) == []
