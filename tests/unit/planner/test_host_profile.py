"""`deploy up --model`: the hardware entry of a host, and the profile of a checkpoint on it."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from config_samples import write_public
from host_samples import survey_of

from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import HostError, ProfileError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.hosts.gpus import inventories
from orchestrator.hosts.gpus.inventory import GIB, Gpu, GpuInventory
from orchestrator.hosts.survey import Section, Survey
from orchestrator.planner.add import host_profile
from orchestrator.planner.add.host_profile import (
    HostHardware,
    detect_hardware,
    match_hardware,
    profile_on_host,
)
from orchestrator.planner.planning import load


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(write_public(tmp_path / "GLM-4.7-Flash", "GLM-4.7-Flash"))


def no_program(argv: Sequence[str]) -> CompletedProgram:
    return CompletedProgram(argv=tuple(argv), code=127, stdout="", stderr="")


def inventory(*gpus: tuple[str | None, str, int], vendor: str = "nvidia") -> GpuInventory:
    listed = tuple(
        Gpu(index=index, arch=arch, name=name, compute_units=None, vram_bytes=size, vram_used=0)
        for index, (arch, name, size) in enumerate(gpus)
    )
    return GpuInventory(
        vendor=vendor, tool="nvidia-smi", driver=None, toolkit=None, gpus=listed, processes=(), errors=()
    )


@pytest.mark.parametrize(
    ("node", "hardware"),
    [("mi355x-healthy", "mi355x"), ("mi300x-rocm-6.2", "mi300x"), ("h200-idle", "h200")],
)
def test_recorded_host_matches_its_hardware_entry(node: str, hardware: str, home: Home) -> None:
    (gpu_inventory,) = inventories(survey_of(node))
    assert match_hardware(gpu_inventory, Catalog.of(home)) == hardware


def test_gpus_without_architecture_match_by_name_and_memory(home: Home) -> None:
    unreported = inventory((None, "NVIDIA H200", 143771 << 20))
    assert match_hardware(unreported, Catalog.of(home)) == "h200"


def test_memory_distinguishes_gpus_of_one_architecture(home: Home) -> None:
    catalog = Catalog.of(home)
    assert match_hardware(inventory(("sm90", "NVIDIA H100 80GB HBM3", 81559 << 20)), catalog) == "h100"
    assert match_hardware(inventory(("sm90", "NVIDIA H200", 143771 << 20)), catalog) == "h200"
    with pytest.raises(HostError, match=r"no hardware entry describes this host's GPUs: NVIDIA GH200, 96\.0 GiB"):
        match_hardware(inventory(("sm90", "NVIDIA GH200", 96 * GIB)), catalog)
    with pytest.raises(HostError, match="the GPUs of this host differ"):
        match_hardware(inventory(("sm90", "NVIDIA H200", 141 * GIB), ("sm90", "NVIDIA H100", 80 * GIB)), catalog)


def test_ambiguous_gpus_require_hardware_option(home: Home) -> None:
    unnamed = inventory(("gfx950", "AMD Radeon Graphics", 288 * GIB), vendor="amd")
    with pytest.raises(HostError, match=r"several hardware entries .*: mi350x, mi355x") as caught:
        match_hardware(unnamed, Catalog.of(home))
    assert caught.value.hint == "`deploy add profile --model MODEL --hardware mi350x`"


@pytest.mark.parametrize(
    ("hardware", "gpus", "layout", "name"),
    [
        (HostHardware(name="mi355x", gpus=8, docker=True), None, (1, 8), "mi355x-glm-4.7-flash"),
        (HostHardware(name="mi355x", gpus=8, docker=True), 2, (1, 2), "mi355xx2-glm-4.7-flash"),
        (HostHardware(name="h200", gpus=1, docker=True), None, (1, 1), "h200x1-glm-4.7-flash"),
    ],
)
def test_layout_fits_gpus_of_host(
    hardware: HostHardware,
    gpus: int | None,
    layout: tuple[int, int],
    name: str,
    home: Home,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_profile, "detect_hardware", lambda *_: hardware)
    result = profile_on_host(checkpoint, home, no_program, {}, gpus=gpus)
    assert result.name == name
    plan = load(name, catalog=Catalog.of(home)).plan
    assert (plan.layout.tp, plan.layout.dp) == layout
    assert plan.hardware.gpus == (gpus or hardware.gpus)
    assert not [warning for warning in plan.warnings if "node" in warning.summary]

    again = profile_on_host(checkpoint, home, no_program, {}, gpus=gpus)
    assert (again.name, again.path, again.proposal) == (result.name, result.path, None)


@pytest.mark.parametrize("hardware", ["h100", "h200", "b200"])
def test_model_specific_image_is_not_the_default(
    hardware: str, home: Home, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_profile, "detect_hardware", lambda *_: HostHardware(name=hardware, gpus=2, docker=True))
    name = profile_on_host(checkpoint, home, no_program, {}).name
    assert load(name, catalog=Catalog.of(home)).plan.engine.name == "sglang-0.5.16-cu130"


def test_context_is_limited_to_longest_that_fits(
    home: Home, checkpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host_profile, "detect_hardware", lambda *_: HostHardware(name="h100", gpus=1, docker=True))
    result = profile_on_host(checkpoint, home, no_program, {})
    limit = load(result.name, catalog=Catalog.of(home)).plan.serving.context
    assert limit % 1024 == 0
    assert f"note: requests are limited to {limit:,} tokens: the longest that fit" in capsys.readouterr().err


def test_model_larger_than_cpu_host_memory_is_rejected(
    home: Home, checkpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def host(memory: int) -> None:
        hardware = HostHardware(name="cpu", gpus=0, docker=False, memory=memory)
        monkeypatch.setattr(host_profile, "detect_hardware", lambda *_: hardware)

    host(16 * 10**9)
    with pytest.raises(ProfileError, match=r"`glm-4\.7-flash` does not fit into the memory of this host") as caught:
        profile_on_host(checkpoint, home, no_program, {})
    (problem,) = caught.value.problems
    assert re.match(
        r"62\.5 GB of weights and [\d.]+ GB of cache for [\d,]+ tokens need .*; 16\.0 GB are", problem.message
    )
    assert not [*(home.root / "profiles").glob("*.yaml")]

    host(64 * 10**9)
    result = profile_on_host(checkpoint, home, no_program, {})
    limit = load(result.name, catalog=Catalog.of(home)).plan.serving.context
    assert limit % 1024 == 0
    assert f"note: requests are limited to {limit:,} tokens: the longest that fit" in capsys.readouterr().err


def test_cpu_host_memory_respects_available_and_cgroup_limit(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "MemTotal:       65536 kB\nMemFree:  1 kB\nMemAvailable:   40000 kB\n"
    cached = "active_file 262144\ninactive_file 262144\n"  # the page cache, which is evicted first
    for limit, available in (
        ("", 40000 << 10),
        ("max\n9999\n" + cached, 40000 << 10),
        ("3145728\n2097152\n", 1 << 20),
        ("3145728\n2097152\n" + cached, 3 << 19),
    ):
        memory_survey = Survey({"memory": Section(0, text + limit)})
        monkeypatch.setattr(host_profile, "survey", lambda *_, result=memory_survey: result)
        assert detect_hardware(no_program, Catalog.of(home)).memory == available


def test_host_without_docker_uses_pip_engine(home: Home, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_profile, "detect_hardware", lambda *_: HostHardware(name="h200", gpus=1, docker=False))
    plan = load(profile_on_host(checkpoint, home, no_program, {}).name, catalog=Catalog.of(home)).plan
    assert (plan.runtime, plan.engine.name.endswith("-pip")) == ("process", True)


def test_more_gpus_than_host_has_are_rejected(home: Home, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_profile, "detect_hardware", lambda *_: HostHardware(name="h200", gpus=1, docker=True))
    with pytest.raises(UsageError, match="this host has 1 GPU, not 2"):
        profile_on_host(checkpoint, home, no_program, {}, gpus=2)
    assert not (home.root / "profiles").exists()


def test_profile_names_of_directories_are_valid_and_unique(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_profile, "detect_hardware", lambda *_: HostHardware(name="mi355x", gpus=8, docker=True))
    spaced = write_public(tmp_path / "My Model (v2)", "GLM-4.7-Flash")
    assert profile_on_host(str(spaced), home, no_program, {}).name == "mi355x-my-model-v2"
    same_name = write_public(tmp_path / "tiny", "GLM-4.7-Flash")  # the name of a shipped model
    name = profile_on_host(str(same_name), home, no_program, {}).name
    assert name.startswith("mi355x-tiny-")
    assert profile_on_host(str(same_name), home, no_program, {}).name == name


def test_shipped_model_keeps_entry_and_lists_similar_profiles(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_profile, "detect_hardware", lambda *_: HostHardware(name="mi355x", gpus=8, docker=True))
    result = profile_on_host("amd/GLM-5.2-MXFP4", home, no_program, {})
    assert result.name == "mi355x-glm-5.2-mxfp4"
    assert "mi355x-tp4dp2" in result.similar
