"""`deploy add engine`: what a wheel or an image says is written with its source, all else is asked for."""

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
GIVEN = ("--set", "platform=rocm", "--set", f"image={IMAGE}")
FACTS = ImageFacts(
    sglang=SourceRecord(root="/sgl-workspace/sglang/python/sglang", version="0.5.20", commit=None),
    aiter=SourceRecord(root="/sgl-workspace/aiter/aiter", version=None, commit=COMMIT),
    platform="rocm",
    platform_from="/torch/version.py: hip = '7.2'",
)
STATES = (
    PatchState(id="one", state="needed", evidence=("a.py:1: x",)),
    PatchState(id="two", state="conflict", evidence=("-",)),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with a wheel of 0.5.20 in it that says its version and no more."""
    home = Home(tmp_path / "home")
    monkeypatch.setenv("DEPLOY_HOME", str(home.root))
    monkeypatch.setattr(SourceChecker, "check_wheel", lambda *_: STATES[:1])
    wheel(home.root / "wheels/sglang-0.5.20-py3-none-any.whl", "0.5.20")
    return home


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image, on a docker host that nobody needs."""
    found = ImageConfig(reference=IMAGE, digest=DIGEST, env={}, labels={})
    monkeypatch.setattr(engine_sources, "find_docker", lambda _: None)
    monkeypatch.setattr(engine_sources, "docker_config", lambda _, name: replace(found, reference=name))
    monkeypatch.setattr(SourceChecker, "check_image", lambda *_: STATES)
    serves(monkeypatch, FACTS)


def serves(monkeypatch: pytest.MonkeyPatch, facts: ImageFacts) -> None:
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


def refused(*line: str, fault: type[DeployError] = ProfileError) -> Sequence[str]:
    """What is said of a command that writes nothing."""
    error = deploy("add", "engine", *line).exception
    assert isinstance(error, fault), error
    return [f"{problem.message} | {problem.hint}" for problem in error.problems_or_self()]


def written(home: Home) -> list[str]:
    return sorted(
        str(path.relative_to(home.root)) for path in home.root.rglob("*") if path.is_file() and path.suffix != ".whl"
    )


def test_platform_missing_from_wheel_is_requested(home: Home) -> None:
    [platform] = refused("0.5.20")
    assert "cannot read `platform`: all platforms have the same wheel | `--set platform=rocm`" in platform
    assert written(home) == []


@pytest.mark.usefixtures("home")
def test_engine_without_image_accepts_image_at_start() -> None:
    """A release may have no image yet: its options and the state of its patches are known all the same."""
    done = deploy("add", "engine", "0.5.20", "--set", "platform=rocm", "--name", "own")
    assert done.exit_code == 0, done.stderr
    assert "the engine has no image: `--set engine.image=NAME:TAG`" in done.stderr
    with pytest.raises(ProfileError) as caught:
        load("mi355x-tp8-current", overrides=["engine=own"])
    [problem] = caught.value.problems_or_self()
    assert "`engine.image`" in problem.message
    assert problem.hint.startswith("`--set engine.image=NAME:TAG`")
    assert load("mi355x-tp8-current", overrides=["engine=own", "engine.image=mine:1"]).plan.engine.image == "mine:1"


def test_engine_file_comments_name_sources(home: Home) -> None:
    done = deploy("add", "engine", "v0.5.20", *GIVEN, "--name", "own")
    assert done.exit_code == 0, done.stderr
    assert (
        (home.root / "profiles/engines/own.yaml").read_text()
        == f"""\
# yaml-language-server: $schema=../engine.schema.json
# own, as `deploy add engine` read its wheel, sglang 0.5.20. The comment after each fact is its source.
# patch one: needed
source: sglang wheel 0.5.20
version: 0.5.20  # sglang/_version.py in its wheel
platform: rocm  # --set
image: "{IMAGE}"  # --set
dockerfile: sglang-rocm  # of its platform
"""
    )
    assert written(home) == ["profiles/engines/own.yaml"], "the table of 0.5.20 is shipped"
    assert done.stderr.splitlines()[-1] == "next: `deploy show PROFILE --set engine=own`"
    assert "the image's aiter is unknown" in done.stderr


def test_contradicting_input_is_rejected_without_writing(home: Home, tmp_path: Path) -> None:
    other = wheel(tmp_path / "sglang-0.5.19-py3-none-any.whl", "0.5.19")
    [of_another] = refused("0.5.20", *GIVEN, "--name", "own", "--wheel", str(other), fault=UsageError)
    assert "has version 0.5.19, not 0.5.20" in of_another
    other.write_text("no archive")
    [broken] = refused("0.5.20", *GIVEN, "--name", "own", "--wheel", str(other), fault=UsageError)
    assert "is not a wheel" in broken
    [release] = refused("0.5.20", *GIVEN, "--set", "version=0.5.18", fault=UsageError)
    assert release.startswith("`version` is 0.5.18, but the wheel has version 0.5.20 | `deploy add engine")
    [far] = refused("0.5.20", *GIVEN, "--host", "ssh://node", fault=UsageError)
    assert far.startswith("`--host` needs an image")
    [no_wheel] = refused(IMAGE, "--wheel", str(other), fault=UsageError)
    assert no_wheel.startswith(f"`--wheel` needs a version; `{IMAGE}` is an image")
    [unknown] = refused("0.5.20", *GIVEN, "--name", "own", "--set", "aiter_comit=1")
    assert "unknown key `aiter_comit` | did you mean `aiter_commit`?" in unknown
    assert written(home) == []


def test_existing_engine_needs_replace_option() -> None:
    [shipped] = refused("0.5.20", *GIVEN, fault=UsageError)
    assert shipped.startswith("engine `sglang-0.5.20-rocm` exists")
    for again in ((), ("--replace",)):
        assert deploy("add", "engine", "0.5.20", *GIVEN, "--name", "own", *again).exit_code == 0
        [ours] = refused("0.5.20", *GIVEN, "--name", "own", fault=UsageError)
        assert "`--replace` replaces it" in ours
    [none] = refused("0.5.20", *GIVEN, "--name", "../own", fault=UsageError)
    assert none.startswith("invalid engine name `../own`")


def test_missing_flag_table_is_generated_from_engine_parser(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(home.root / "wheels/sglang-0.5.99-py3-none-any.whl", "0.5.99")
    table = '{"sglang": "0.5.99", "flags": {"port": {"takes_value": true}}}\n'
    monkeypatch.setattr(flag_tables, "run", lambda _: CompletedProgram(argv=(), code=0, stdout=table, stderr=""))
    line = ("add", "engine", "0.5.99", "--set", "platform=rocm", "--set", "image=own:1", "--python", "python3")
    report = json.loads(deploy(*line, "--dry-run", "--json").stdout)
    assert (report["options"]["count"], report["options"]["made"], report["written"], written(home)) == (
        1,
        True,
        False,
        [],
    )
    assert deploy(*line).exit_code == 0
    assert written(home) == ["profiles/engines/flags/0.5.99.json", "profiles/engines/sglang-0.5.99-rocm.yaml"]
    monkeypatch.setattr(flag_tables, "run", lambda _: CompletedProgram(argv=(), code=1, stdout="", stderr="no torch"))
    assert not json.loads(deploy(*line, "--dry-run", "--json", "--replace").stdout)["options"]["made"]


@pytest.mark.usefixtures("image")
def test_image_supplies_all_engine_facts(home: Home) -> None:
    report = json.loads(deploy("add", "engine", IMAGE, "--name", "own", "--json").stdout)
    engine = read_model(home.root / "profiles/engines/own.yaml", EngineFile, "own")
    assert (engine.version, engine.platform, engine.dockerfile) == ("0.5.20", "rocm", "sglang-rocm")
    assert (engine.image, engine.image_digest) == (IMAGE, DIGEST)
    assert (engine.aiter_dir, engine.aiter_commit) == ("/sgl-workspace/aiter", COMMIT)
    assert {"key": "platform", "value": "rocm", "from": FACTS.platform_from} in report["facts"]
    assert report["tuned_kernels"]["gpus"] == ["gfx950 with 256 CUs"]
    assert [patch["state"] for patch in report["patches"]] == ["needed", "conflict"]
    assert any("patch `two` does not apply" in note for note in report["notes"])


@pytest.mark.usefixtures("image")
def test_recorded_image_tables_are_used_for_coverage(home: Home) -> None:
    """An aiter that is not among those known here: its image was read once."""
    choice = ("engine=own",)
    assert deploy("add", "engine", IMAGE, "--name", "own").exit_code == 0
    plan = load("mi355x-tp8", overrides=choice).plan
    found = compute_coverage(plan, RowSources(), home)
    assert not found.unknown
    assert f"tables of `registry.example/sglang@{DIGEST}`, read by `deploy add engine`" in found.tables
    assert [key.token for key in found.keys[0].untuned_keys] == [1]
    moved = compute_coverage(
        load("mi355x-tp8", overrides=(*choice, "engine.image_digest=null")).plan, RowSources(), home
    )
    assert moved.unknown, "another image by the same name"


@pytest.mark.usefixtures("image")
def test_facts_missing_from_image_are_requested(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    between = replace(FACTS.sglang, version="0.5.21.dev7+gc610c40399")
    serves(monkeypatch, replace(FACTS, sglang=between, platform=None, platform_from=""))
    version, platform = refused(IMAGE)
    assert "its sources are of version `0.5.21.dev7+gc610c40399` | give the release" in version
    assert "(no torch found) | `--set platform=rocm`" in platform
    assert written(home) == []
    assert (
        deploy("add", "engine", IMAGE, "--set", "version=0.5.20", "--set", "platform=rocm", "--name", "own").exit_code
        == 0
    )


@pytest.mark.usefixtures("image")
def test_image_without_kernel_tables_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> ImageTables:
        raise KernelsError("`it` has no tuned fused-MoE table")

    monkeypatch.setattr(engine_sources, "read_image", none)
    report = json.loads(deploy("add", "engine", IMAGE, "--name", "own", "--json").stdout)
    assert report["tuned_kernels"] is None
    assert "`it` has no tuned fused-MoE table: its tuned kernels are unknown" in report["notes"]


@pytest.mark.usefixtures("image")
def test_missing_image_is_not_pulled(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_sources, "docker_config", lambda *_: None)
    [message] = refused("0.5", fault=BuildError)
    assert (
        message == "no image `0.5` found on this Docker host | `docker pull 0.5`; write a version of sglang as 0.5.17"
    )
    assert written(home) == []
