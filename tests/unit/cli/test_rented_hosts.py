"""What a broker of rented capacity is told: the very same `up`, no secret, nothing that is only on this machine."""

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
from orchestrator.planner.cloud import rental_files

BROKERS = ("skypilot", "dstack")
URL = "git+https://example.org/deploy@0a1b2c3"


def received(broker: str, profile: str, home: Home, *overrides: str, tool: str = URL) -> list[dict[str, object]]:
    files = rental_files(broker, profile, overrides, home, tool=tool)[1]
    return [yaml.safe_load(file.content) for file in files if file.path != "fleet.dstack.yml"]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def lines(form: dict[str, object]) -> list[str]:
    """What runs on the machine."""
    commands = form.get("commands")
    return commands if isinstance(commands, list) else f"{form['setup']}{form['run']}".splitlines()


@pytest.mark.parametrize("broker", BROKERS)
def test_rented_host_runs_same_up_with_api_key(broker: str, home: Home) -> None:
    for form in received(broker, "mi355x-tp4dp2", home, "flags.max-running-requests=64"):
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


@pytest.mark.parametrize("broker", BROKERS)
def test_overrides_are_shell_quoted(broker: str, home: Home) -> None:
    override = 'description=it\'s $(touch gone); `ls` "x"'
    for form in received(broker, "cpu-tiny", home, override):
        up = next(line for line in lines(form) if line.startswith("deploy up"))
        assert override in shlex.split(up)


def test_resources_cover_layout_gpus_and_checkpoint_disk(home: Home) -> None:
    sky = received("skypilot", "mi355x-tp4dp2", home)[0]["resources"]
    assert isinstance(sky, dict)
    assert sky["accelerators"] == {"MI355X": 8}
    assert sky["disk_size"] == 504  # 438.0 GB are 407.9 GiB, and 96 for image and caches
    half = received("dstack", "mi355x-tp4dp2", home, "layout.dp=1")[0]["resources"]
    assert isinstance(half, dict)
    assert half["gpu"] == {"vendor": "amd", "name": "MI355X", "count": 4}


def test_fleet_lists_full_node_instance_types(home: Home) -> None:
    def fleet(profile: str, *overrides: str) -> dict[str, object]:
        files = rental_files("dstack", profile, overrides, home, tool=URL)[1]
        found: dict[str, object] = next(yaml.safe_load(f.content) for f in files if f.path == "fleet.dstack.yml")
        return found

    whole = fleet("mi355x-tp4dp2")
    assert whole["backends"] == ["vultr"]
    assert whole["instance_types"] == ["vbm-256c-3072gb-8-mi355x-gpu", "vcg-mi355x-252c-2872g-2304vram"]
    assert fleet("mi300x-tp8")["backends"] == ["vultr", "hotaisle", "amddevcloud"]
    assert [form["fleets"] for form in received("dstack", "mi355x-tp4dp2", home)] == [[whole["name"]]] * 2
    assert "instance_types" not in fleet("mi355x-tp4dp2", "layout.dp=1")  # four GPUs: no node of eight is offered
    assert "instance_types" not in fleet("b200-tp8")  # its hardware has no offers


def test_documentation_lists_offers_of_hardware_entries() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/rented-machines.md").read_text()
    rows = re.findall(r"^\| 8×(\w+) \| (\w+) \| ([^|]+) \|$", page, re.MULTILINE)
    named = {(gpu, backend): re.findall(r"`([a-z]+-[^`]+)`", types) for gpu, backend, types in rows}
    catalog = Catalog.from_environment()
    names = catalog.names(EntryKind.HARDWARE)
    files = {name: yaml.safe_load(catalog.path(EntryKind.HARDWARE, name).read_text()) for name in names}
    offered = {(name.upper(), at): types for name in names for at, types in files[name].get("offers", {}).items()}
    assert named == offered
    assert ("MI300X", "hotaisle") in named


def test_engine_with_requirements_needs_no_image(home: Home) -> None:
    form = received("dstack", "cpu-tiny", home)[0]
    assert "image" not in form
    assert "gpu" not in form["resources"]  # type: ignore[operator]


def test_user_profiles_are_mounted(home: Home) -> None:
    (home.root / "profiles").mkdir()
    (home.root / "profiles/mine.yaml").write_text("extends: cpu-tiny\n")
    mounts = received("skypilot", "mine", home)[0]["file_mounts"]
    assert mounts == {"~/.local/share/deploy/profiles": str(home.root / "profiles")}


def test_local_wheel_is_uploaded_and_installed(home: Home, tmp_path: Path) -> None:
    wheel = tmp_path / "deploy_sglang-9-py3-none-any.whl"
    wheel.touch()
    form = received("dstack", "cpu-tiny", home, tool=str(wheel))[0]
    assert form["files"] == [f"{wheel}:/tmp/deploy-tool/{wheel.name}"]
    assert f"uv tool install /tmp/deploy-tool/{wheel.name}" in lines(form)
    assert f"uv tool install {URL}" in lines(received("dstack", "cpu-tiny", home)[0])


def test_package_index_name_is_rejected(home: Home) -> None:
    with pytest.raises(UsageError, match="`--package deploy-sglang` is not a file"):
        rental_files("dstack", "cpu-tiny", (), home, tool="deploy-sglang")
    with pytest.raises(UsageError, match="no `--package` given"):
        CliRunner().invoke(app, ["render", "cpu-tiny", "--runtime", "dstack"], catch_exceptions=False)


def test_all_problems_are_reported_together(home: Home) -> None:
    with pytest.raises(ProfileError) as refused:
        rental_files("dstack", "mi355x-tp4x2", ("layout.tp=16",), home, tool=None)
    messages = [problem.message for problem in refused.value.problems]
    assert messages[0] == "no `--package` given: `deploy` is on no package index, so a rented machine cannot install it"
    assert "tp 16 needs 16 GPUs; the node has 8" in messages


@pytest.mark.parametrize("named", [("./mine.yaml", ()), ("cpu-tiny", ("engine=./engine.yaml",))])
def test_local_profile_file_is_rejected(
    named: tuple[str, tuple[str, ...]], home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("extends: cpu-tiny\n")
    shipped = Path(__file__).parents[3] / "profiles/engines/sglang-0.5.14-cpu.yaml"
    Path("engine.yaml").write_text(shipped.read_text())
    with pytest.raises(UsageError, match=r"`\./[a-z]+\.yaml` is a local file"):
        rental_files("dstack", *named, home, tool=URL)


def test_unnamed_gpu_product_and_local_checkpoint_are_rejected(home: Home) -> None:
    (home.root / "profiles/hardware").mkdir(parents=True)
    own = (Path(__file__).parents[3] / "profiles/hardware/mi355x.yaml").read_text().replace("gpu_product: MI355X\n", "")
    (home.root / "profiles/hardware/own.yaml").write_text(own)
    here = ("hardware=own", "model.checkpoint.source=local", "model.checkpoint.path=/models/mine")
    with pytest.raises(ProfileError) as refused:
        rental_files("skypilot", "mi355x-tp8", here, home, tool=URL)
    messages = [problem.message for problem in refused.value.problems_or_self()]
    assert messages == [
        "the hardware has no `gpu_product`",
        "`/models/mine` is a local path",
    ]


@pytest.mark.parametrize("broker", BROKERS)
def test_multiple_replicas_are_rejected_on_rented_host(broker: str, home: Home) -> None:
    with pytest.raises(ProfileError) as refused:
        received(broker, "mi355x-tp4x2", home)
    assert [problem.message for problem in refused.value.problems_or_self()] == [
        "a rented machine runs 1 replica, not 2"
    ]
    received(broker, "mi355x-tp4x2", home, "replicas=1")
