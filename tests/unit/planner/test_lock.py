"""`deploy lock` and `up --locked`: the locked plan is started, or every difference is reported."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml
from run_samples import past_run, request_of
from typer.testing import CliRunner

from orchestrator import __version__
from orchestrator.checkpoints.files import file_stamps
from orchestrator.checkpoints.hub import Hub, HubFile, Listing
from orchestrator.checkpoints.receipt import CheckpointReceipt, write_receipt
from orchestrator.cli.main import app
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import BuildError, CheckpointError, DeployError, ProfileError, UsageError
from orchestrator.core.paths import Home
from orchestrator.images.config import ImageConfig
from orchestrator.images.registry import Registry
from orchestrator.images.sources import input_digests
from orchestrator.plan.facts import Facts
from orchestrator.plan.plan import Plan
from orchestrator.planner import lock as command
from orchestrator.planner.lock import (
    home_of_run,
    input_copies,
    lock_of_start,
    lock_source,
    read_lock,
    resolve,
    write_lock,
)
from orchestrator.planner.planning import load
from orchestrator.report.diff import diff, diff_text, resolve_side
from orchestrator.servers.rollback import resolve_request
from orchestrator.servers.start.preview import preview

GLM = "mi355x-tp8"
COMMIT = "c0ffee" + "0" * 34
DIGEST = "sha256:" + "d" * 64
FILES = {"config.json": HubFile(size=2, identity="aa"), "model.safetensors": HubFile(size=5, identity="bb")}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "list_files", fake_listing)
    monkeypatch.setattr(command, "local_config", lambda _: None)
    monkeypatch.setattr(
        Registry, "config", lambda _, name: ImageConfig(reference=name, digest=DIGEST, env={}, labels={})
    )
    return Home(tmp_path / "home")


def fake_listing(repository: str, _revision: str | None, _hub: Hub) -> Listing:
    return Listing(repository=repository, commit=COMMIT, files=FILES)


def write(home: Home, profile: str, *overrides: str) -> Path:
    path = home.root.parent / "x.lock.yaml"
    write_lock(path, resolve(profile, overrides, home, {}))
    return path


def locked(path: Path, home: Home) -> Plan:
    """Return the plan of a lock after a comparison with the current inputs."""
    source = lock_source(path, home)
    return source.build(Facts(inputs=input_digests(source.files())))


def edit(path: Path, old: str, new: str) -> int:
    """Replace a text and return its line number."""
    lines = path.read_text().splitlines()
    index = next(number for number, line in enumerate(lines) if old in line)
    lines[index] = lines[index].replace(old, new)
    path.write_text("\n".join(lines) + "\n")
    return index + 1


def test_lock_resolves_every_mutable_input(home: Home) -> None:
    lock = resolve(GLM, ("layout.ep=2",), home, {"HF_TOKEN": "hf_secret0123456789"})
    plan = load(GLM, overrides=lock.overrides).plan
    assert lock.overrides[0] == "layout.ep=2"
    assert (plan.model.checkpoint.revision, plan.engine.image_digest) == (COMMIT, plan.engine.image_digest)
    assert lock.plan["model.checkpoint.revision"] == COMMIT
    assert lock.plan["engine.image_digest"].startswith("sha256:")
    assert lock.plan["engine.aiter_commit"] == plan.engine.aiter_commit
    assert lock.plan["engine.version"] == plan.engine.version
    assert lock.checkpoint == {"commit": COMMIT, "config.json": "2 aa", "model.safetensors": "5 bb"}
    assert lock.patches.keys() == {use.id for use in plan.patches}
    assert lock.files.keys() == {"sglang-rocm.Dockerfile.j2"}
    assert (lock.tool, set(lock.unknown)) == (__version__, {"patches.aiter-fp4-moe-table.input_sha256"})
    assert "hf_secret" not in lock.text


ON_SLURM = ("runtime=slurm", "server.allow_unauthenticated=true")


def test_slurm_image_is_pinned_to_registry_digest(home: Home) -> None:
    image = "slurm.image=docker://registry.example/house/sglang:1"
    lock = resolve("cpu-tiny", (*ON_SLURM, "slurm.container=apptainer", image), home, {})
    pinned = f"docker://registry.example/house/sglang@{DIGEST}"
    assert lock.plan["slurm.image"] == load("cpu-tiny", overrides=lock.overrides).plan.slurm.image == pinned
    assert "slurm.image" not in lock.unknown
    assert resolve("cpu-tiny", lock.overrides, home, {}).plan == lock.plan


@pytest.mark.parametrize(
    ("container", "image"), [("apptainer", "/shared/sglang.sif"), ("pyxis", "registry.example#house/sglang:1")]
)
def test_unpinnable_slurm_image_is_marked_unknown(home: Home, tmp_path: Path, container: str, image: str) -> None:
    settings = (*ON_SLURM, f"slurm.container={container}", f"slurm.image={image}")
    lock = resolve("cpu-tiny", settings, home, {})
    assert lock.plan["slurm.image"] == image
    assert lock.unknown["slurm.image"] == f"{container} uses `{image}` unchanged; its digest is unknown"
    plan = load("cpu-tiny", overrides=settings).plan
    assert f"{container} uses" in lock_of_start(plan, "cpu-tiny", settings, home, tmp_path).content.decode()


def test_gateway_files_are_locked_and_copied_to_run(home: Home) -> None:
    own = {"smg-1.13.0.txt", "launch_gateway.py"}
    assert resolve("cpu-tiny", ("replicas=2",), home, {}).files.keys() >= own
    copies = input_copies(load("cpu-tiny", overrides=["replicas=2"]).plan, home)
    assert {file.path for file in copies} >= {f"inputs/images/{name}" for name in own}
    assert not own & resolve("cpu-tiny", (), home, {}).files.keys()


def test_unresolvable_inputs_are_unknown_with_reason(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> Listing:
        raise CheckpointError("cannot reach the hub: https://mirror/?token=hf_abcdefghijklmnopqrstuvwxyz123456")

    monkeypatch.setattr(command, "list_files", unreachable)
    monkeypatch.setattr(Registry, "config", lambda _, name: ImageConfig(reference=name, digest="", env={}, labels={}))
    lock = resolve(GLM, ("engine.image=house/sglang:1", "engine.image_digest=null"), home, {})
    assert lock.unknown["checkpoint"] == "cannot reach the hub: https://mirror/?token=[REDACTED]"
    assert "no registry has its digest" in lock.unknown["engine.image_digest"]
    assert lock.checkpoint == {}


def test_lockfile_round_trips(home: Home) -> None:
    path = write(home, "cpu-tiny", "server.port=31000")
    assert read_lock(path)[0] == resolve("cpu-tiny", ("server.port=31000",), home, {})


def test_up_locked_uses_the_locked_plan(home: Home) -> None:
    path = write(home, "cpu-tiny", "server.port=31000")
    assert locked(path, home) == load("cpu-tiny", overrides=["server.port=31000"]).plan
    request = resolve_request(request_of(profile=str(path)), home, run=None, locked=True)
    assert (request.profile, request.overrides, request.lock) == ("cpu-tiny", ("server.port=31000",), str(path))
    previewed = preview(request, home)
    script = next(file for file in previewed.files if file.path == "server.sh")
    assert b"--port 31000" in script.content
    assert previewed.capacity is None  # shown only without a lock
    assert request.command("owl") == f"deploy up --locked {path} --name owl"


@pytest.mark.parametrize(
    ("old", "new", "section"),
    [
        ("  flags.device: cpu\n", "  flags.device: cuda\n", "plan:"),
        ("  flags.device: cpu\n", "", "plan:"),
        ("overrides: []", "overrides: [a=b]", "overrides:"),
        ("profile: cpu-tiny", "profile: x", "profile:"),
    ],
)
def test_edited_lockfile_is_rejected_at_its_section(home: Home, old: str, new: str, section: str) -> None:
    path = write(home, "cpu-tiny")
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ProfileError, match="was edited") as caught:
        locked(path, home)
    lines = path.read_text().splitlines()
    line = next(number for number, line in enumerate(lines, start=1) if line.startswith(section))
    assert [problem.location for problem in caught.value.problems] == [f"{path}:{line}"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lock: 3", "lock: 2", "a lockfile of format 2, of an older version of deploy"),
        ("lock: 3", "lock: 4", "a lockfile of format 4, of a newer version of deploy"),
        ("lock: 3", "lock: none", "not a lockfile"),
        (f"tool: {__version__}", "tool: 99.0", "the lockfile was written by deploy 99.0"),
    ],
)
def test_lockfile_of_another_version_is_rejected_with_its_line(home: Home, old: str, new: str, message: str) -> None:
    path = write(home, "cpu-tiny")
    line = edit(path, old, new)
    with pytest.raises(ProfileError, match=message) as caught:
        locked(path, home)
    assert caught.value.location == f"{path}:{line}"


def test_every_changed_locked_value_is_reported(home: Home) -> None:
    profile = home.root / "profiles" / "owl.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text("extends: cpu-tiny\nserver: {port: 31000}\n")
    path = write(home, "owl")
    profile.write_text("extends: cpu-tiny\nserver: {port: 31001}\nflags: {device: null}\n")
    with pytest.raises(ProfileError) as caught:
        locked(path, home)
    lines = path.read_text().splitlines()
    quoted = {problem.message: lines[int(problem.location.rpartition(":")[2]) - 1] for problem in caught.value.problems}
    assert quoted == {
        "`server.port` is `31000` in the lock and `31001` now": "  server.port: '31000'",
        "`flags.device` is `cpu` in the lock and `nothing` now": "  flags.device: cpu",
    }
    profile.unlink()
    with pytest.raises(ProfileError, match="no profile `owl`"):
        locked(path, home)


def test_changed_patch_is_a_build_error(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(home, GLM)
    monkeypatch.setattr(command, "patch_digest", lambda *_: "0" * 64)
    with pytest.raises(BuildError) as caught:
        locked(path, home)
    assert len(caught.value.problems) == len(read_lock(path)[0].patches)
    assert all(str(path) in problem.location for problem in caught.value.problems)


def test_checkpoint_differing_from_lock_is_a_checkpoint_error(home: Home) -> None:
    path = write(home, GLM)
    directory = command.checkpoint_directory(load(GLM).plan.model, home)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{ }")
    receipt = CheckpointReceipt(
        location="amd/GLM-5.2-MXFP4",
        revision="1" * 40,
        mtp_layer=78,
        shards=1,
        tensors=1,
        files=file_stamps(directory),
        mismatches=(),
        allow_mismatch=False,
    )
    write_receipt(directory, receipt)
    with pytest.raises(CheckpointError) as caught:
        locked(path, home)
    assert {problem.message.split("`")[1] for problem in caught.value.problems} == {"commit", "config.json"}
    assert "3 bytes on disk and 2 in the lock" in caught.value.problems[1].message


def test_run_lock_is_written_without_network(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a network request was made")

    monkeypatch.setattr(command, "list_files", fail)
    monkeypatch.setattr(Registry, "config", fail)
    run = home.root / "runs/owl/1"
    run.mkdir(parents=True)
    (home.root.parent / "mine.yaml").write_text("extends: cpu-tiny\n")
    file = lock_of_start(load("mine.yaml").plan, "mine.yaml", (), home, run)
    (run / file.path).write_bytes(file.content)
    assert locked(run / file.path, home) == load("mine.yaml").plan
    saved = yaml.safe_load(lock_of_start(load(GLM).plan, GLM, (), home, run).content)
    assert "checkpoint" in saved["unknown"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"profile": ""}, "no lockfile given"),
        ({"profile": "cpu-tiny"}, "no lockfile `cpu-tiny.lock.yaml` found"),
        ({"profile": "x.lock.yaml", "image": "x"}, "do not apply"),
    ],
)
def test_invalid_locked_request_is_rejected(home: Home, fields: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_request(request_of(**fields), home, run=None, locked=True)


def test_lock_and_up_locked_accept_profile_name(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_HOME", str(home.root))
    assert (result := CliRunner().invoke(app, ["lock", "cpu-tiny", "--json"])).exit_code == 0, result.output
    assert json.loads(result.stdout) == {"lock": "cpu-tiny.lock.yaml", "unknown": {}}
    assert CliRunner().invoke(app, ["up", "cpu-tiny", "--locked", "--dry-run"]).exit_code == 0
    rejected = CliRunner().invoke(app, ["up", "cpu-tiny", "--locked", "--dry-run", "--set", "server.port=1"])
    assert isinstance(rejected.exception, UsageError)


def test_invalid_lockfile_name_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="invalid lockfile name") as caught:
        app(["lock", "cpu-tiny", "--output", str(tmp_path / "mine.yaml")], standalone_mode=False)
    assert "lock.yaml" in caught.value.hint


def test_restart_warns_of_changed_inputs(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = past_run(home, 1)
    plan = load("cpu-tiny").plan
    run.write([lock_of_start(plan, "cpu-tiny", (), home, run.path)])
    request = request_of(run=str(run.path))
    preview(request, home)
    assert "has changed since" not in capsys.readouterr().err
    monkeypatch.setattr(command, "_files", lambda *_: {"sglang-cpu-0.5.14.txt": "0" * 64, "tiny_model.py": "0" * 64})
    preview(request, home)
    stderr = capsys.readouterr().err
    assert f"`sglang-cpu-0.5.14.txt` has changed since `{run.path.name}` was started" in stderr


def test_restart_uses_package_list_of_the_run(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run, plan = past_run(home, 1), load("cpu-tiny").plan
    lock = lock_of_start(plan, "cpu-tiny", (), home, run.path)
    run.write([lock, *input_copies(plan, home)])
    own = home.root / "images" / "sglang-cpu-0.5.14.txt"
    own.parent.mkdir(parents=True)
    own.write_text("sglang==0.5.23\n")

    repeated = home_of_run(run.path, home)
    package_list = Catalog.of(repeated).find(EntryKind.IMAGE_FILE, own.name)
    assert package_list is not None
    assert package_list.read_text() != own.read_text()
    assert lock_of_start(plan, "cpu-tiny", (), repeated, run.path).content == lock.content
    assert {file.path for file in input_copies(plan, repeated)} >= {f"inputs/images/{own.name}"}
    preview(request_of(run=str(run.path)), home)
    assert "has changed since" not in capsys.readouterr().err
    assert Catalog.of(home).find(EntryKind.IMAGE_FILE, own.name) == own

    package_list.write_text("sglang==0.5.10\n")  # an edited copy does not match its lock and is not used
    assert home_of_run(run.path, home) == home
    preview(request_of(run=str(run.path)), home)
    assert f"`{own.name}` has changed since" in capsys.readouterr().err


def test_lockfile_is_compared_with_profile_and_run(home: Home) -> None:
    path = write(home, "cpu-tiny", "server.port=31000")
    result = diff(resolve_side(str(path), home), resolve_side("cpu-tiny", home))
    assert [(difference.area, difference.key, difference.a, difference.b) for difference in result.differences] == [
        ("configuration", "server.port", "31000", "30010")
    ]
    run = past_run(home, 1)
    (run.path / "lock.yaml").write_bytes(
        dataclasses.replace(resolve("cpu-tiny", (), home, {}), files={"tiny_model.py": "0"}).text.encode()
    )
    text = diff_text(diff(resolve_side(str(path), home), resolve_side(str(run.path), home)))
    assert "locked.file.tiny_model.py" in text
    assert "its locked" not in text


def test_truncated_lockfile_never_causes_internal_error(home: Home) -> None:
    path = write(home, "cpu-tiny")
    text = path.read_text()
    for cut in range(0, len(text.rstrip()), 97):
        path.write_text(text[:cut])
        with pytest.raises(DeployError):
            locked(path, home)
