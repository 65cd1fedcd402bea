"""Test the files for cloud launchers: they run the same `up`, and contain no secret and nothing that exists only
locally.
"""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import ProfileError, UsageError
from orchestrator.core.paths import Home
from orchestrator.planner.cloud import cloud_files

LAUNCHERS = ("skypilot", "dstack")
URL = "git+https://example.org/deploy@0a1b2c3"


def cloud_tasks(launcher: str, profile: str, home: Home, *overrides: str, tool: str = URL) -> list[dict[str, object]]:
    files = cloud_files(launcher, profile, overrides, home, tool=tool)[1]
    return [yaml.safe_load(file.content) for file in files if file.path != "fleet.dstack.yml"]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def lines(form: dict[str, object]) -> list[str]:
    """Return the commands that run on the rented host."""
    commands = form.get("commands")
    return commands if isinstance(commands, list) else f"{form['setup']}{form['run']}".splitlines()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_rented_host_runs_same_up_with_api_key(launcher: str, home: Home) -> None:
    for form in cloud_tasks(launcher, "mi355x-tp4dp2", home, "flags.max-running-requests=64"):
        up = next(shlex.split(line) for line in lines(form) if line.startswith("deploy up"))
        assert up[2] == "mi355x-tp4dp2"
        assert [word for word in up[3:] if word != "--set"] == [
            "flags.max-running-requests=64",
            "runtime=process",
            "engine.python=python3",
            "server.host=0.0.0.0",
            "server.api_key_env=DEPLOY_API_KEY",
        ]
        assert lines(form)[-1] == "exec deploy watch mi355x-tp4dp2"
        assert list(form.get("secrets", form.get("env"))) == ["DEPLOY_API_KEY"]  # type: ignore[call-overload]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_overrides_are_shell_quoted(launcher: str, home: Home) -> None:
    override = 'description=it\'s $(touch gone); `ls` "x"'
    for form in cloud_tasks(launcher, "cpu-tiny", home, override):
        up = next(line for line in lines(form) if line.startswith("deploy up"))
        assert override in shlex.split(up)


def test_resources_cover_layout_gpus_and_checkpoint_disk(home: Home) -> None:
    sky = cloud_tasks("skypilot", "mi355x-tp4dp2", home)[0]["resources"]
    assert isinstance(sky, dict)
    assert sky["accelerators"] == {"MI355X": 8}
    assert sky["disk_size"] == 504  # 438.0 GB are 407.9 GiB, plus 96 for image and caches
    four_gpus = cloud_tasks("dstack", "mi355x-tp4dp2", home, "layout.dp=1")[0]["resources"]
    assert isinstance(four_gpus, dict)
    assert four_gpus["gpu"] == {"vendor": "amd", "name": "MI355X", "count": 4}


def test_fleet_lists_full_node_instance_types(home: Home) -> None:
    def fleet(profile: str, *overrides: str) -> dict[str, object]:
        files = cloud_files("dstack", profile, overrides, home, tool=URL)[1]
        fleet_file: dict[str, object] = next(yaml.safe_load(f.content) for f in files if f.path == "fleet.dstack.yml")
        return fleet_file

    full_node = fleet("mi355x-tp4dp2")
    assert full_node["backends"] == ["vultr"]
    assert full_node["instance_types"] == ["vbm-256c-3072gb-8-mi355x-gpu", "vcg-mi355x-252c-2872g-2304vram"]
    assert fleet("mi300x-tp8")["backends"] == ["vultr", "hotaisle", "amddevcloud"]
    assert [form["fleets"] for form in cloud_tasks("dstack", "mi355x-tp4dp2", home)] == [[full_node["name"]]] * 2
    assert "instance_types" not in fleet("mi355x-tp4dp2", "layout.dp=1")  # four GPUs: no listed node has eight of them
    assert "instance_types" not in fleet("b200-tp8")  # the hardware entry has no offers


def test_documentation_lists_offers_of_hardware_entries() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/rented-machines.md").read_text()
    rows = re.findall(r"^\| 8×(\w+) \| (\w+) \| ([^|]+) \|$", page, re.MULTILINE)
    documented = {(gpu, backend): re.findall(r"`([a-z]+-[^`]+)`", types) for gpu, backend, types in rows}
    catalog = Catalog.from_environment()
    names = catalog.names(EntryKind.HARDWARE)
    files = {name: yaml.safe_load(catalog.path(EntryKind.HARDWARE, name).read_text()) for name in names}
    offered = {
        (name.upper(), backend): types for name in names for backend, types in files[name].get("offers", {}).items()
    }
    assert documented == offered
    assert ("MI300X", "hotaisle") in documented


def test_engine_with_requirements_needs_no_image(home: Home) -> None:
    form = cloud_tasks("dstack", "cpu-tiny", home)[0]
    assert "image" not in form
    assert "gpu" not in form["resources"]  # type: ignore[operator]


def test_user_profiles_are_mounted(home: Home) -> None:
    (home.root / "profiles").mkdir()
    (home.root / "profiles/mine.yaml").write_text("extends: cpu-tiny\n")
    mounts = cloud_tasks("skypilot", "mine", home)[0]["file_mounts"]
    assert mounts == {"~/.local/share/deploy/profiles": str(home.root / "profiles")}


def test_local_wheel_is_uploaded_and_installed(home: Home, tmp_path: Path) -> None:
    wheel = tmp_path / "deploy_sglang-9-py3-none-any.whl"
    wheel.touch()
    form = cloud_tasks("dstack", "cpu-tiny", home, tool=str(wheel))[0]
    assert form["files"] == [f"{wheel}:/tmp/deploy-tool/{wheel.name}"]
    assert f"uv tool install /tmp/deploy-tool/{wheel.name}" in lines(form)
    assert f"uv tool install {URL}" in lines(cloud_tasks("dstack", "cpu-tiny", home)[0])


def test_package_index_name_is_rejected(home: Home) -> None:
    with pytest.raises(UsageError, match="`--package deploy-sglang` is not a file"):
        cloud_files("dstack", "cpu-tiny", (), home, tool="deploy-sglang")
    with pytest.raises(UsageError, match="no `--package` given"):
        CliRunner().invoke(app, ["render", "cpu-tiny", "--runtime", "dstack"], catch_exceptions=False)


def test_all_problems_are_reported_together(home: Home) -> None:
    with pytest.raises(ProfileError) as error:
        cloud_files("dstack", "mi355x-tp4x2", ("layout.tp=16",), home, tool=None)
    messages = [problem.message for problem in error.value.problems]
    assert messages[0] == "no `--package` given: `deploy` is on no package index, so a rented machine cannot install it"
    assert "tp 16 needs 16 GPUs; the node has 8" in messages


@pytest.mark.parametrize("profile_args", [("./mine.yaml", ()), ("cpu-tiny", ("engine=./engine.yaml",))])
def test_local_profile_file_is_rejected(
    profile_args: tuple[str, tuple[str, ...]], home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("extends: cpu-tiny\n")
    shipped = Path(__file__).parents[3] / "profiles/engines/sglang-0.5.14-cpu.yaml"
    Path("engine.yaml").write_text(shipped.read_text())
    with pytest.raises(UsageError, match=r"`\./[a-z]+\.yaml` is a local file"):
        cloud_files("dstack", *profile_args, home, tool=URL)


def test_unnamed_gpu_product_and_local_checkpoint_are_rejected(home: Home) -> None:
    (home.root / "profiles/hardware").mkdir(parents=True)
    entry = (
        (Path(__file__).parents[3] / "profiles/hardware/mi355x.yaml").read_text().replace("gpu_product: MI355X\n", "")
    )
    (home.root / "profiles/hardware/own.yaml").write_text(entry)
    overrides = ("hardware=own", "model.checkpoint.source=local", "model.checkpoint.path=/models/mine")
    with pytest.raises(ProfileError) as error:
        cloud_files("skypilot", "mi355x-tp8", overrides, home, tool=URL)
    messages = [problem.message for problem in error.value.problems_or_self()]
    assert messages == [
        "the hardware has no `gpu_product`",
        "`/models/mine` is a local path",
    ]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_multiple_replicas_are_rejected_on_rented_host(launcher: str, home: Home) -> None:
    with pytest.raises(ProfileError) as error:
        cloud_tasks(launcher, "mi355x-tp4x2", home)
    assert [problem.message for problem in error.value.problems_or_self()] == ["a rented machine runs 1 replica, not 2"]
    cloud_tasks(launcher, "mi355x-tp4x2", home, "replicas=1")
