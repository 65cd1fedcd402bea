"""Test that `deploy quantize` rejects invalid requests before it creates anything."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from plan_samples import plan_of
from quark_samples import Tiny, write_tiny

from orchestrator.checkpoints.quantize.source import read_source
from orchestrator.checkpoints.quantize.work_dir import WorkDir
from orchestrator.core.errors import HostError, UsageError
from orchestrator.core.paths import Home
from orchestrator.planner import quantize as command
from orchestrator.planner.quantize import QuantizationRequest, quantize


@pytest.fixture
def request_(tmp_path: Path) -> QuantizationRequest:
    source = write_tiny(tmp_path / "tiny", Tiny().config(), Tiny().header())
    return QuantizationRequest(source=source, target=tmp_path / "mxfp4", recipe="glm-5.2-amd")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def rejection(request: QuantizationRequest, home: Home, kind: type[UsageError] | type[HostError]) -> str:
    with pytest.raises(kind) as caught:
        quantize(request, home)
    assert not request.target.with_name("mxfp4.quantizing").exists(), "the work directory must not exist"
    return f"{caught.value.message} | {caught.value.hint}"


def test_existing_target_is_rejected(request_: QuantizationRequest, home: Home) -> None:
    request_.target.symlink_to("nowhere")
    assert rejection(request_, home, UsageError).startswith("the target exists")


def test_root_directory_is_rejected_as_target(request_: QuantizationRequest, home: Home) -> None:
    root = replace(request_, target=Path("/"), name="x")
    with pytest.raises(UsageError, match="the target exists"):
        quantize(root, home)


def test_target_inside_source_is_rejected(request_: QuantizationRequest, home: Home) -> None:
    inside = QuantizationRequest(source=request_.source, target=request_.source / "new", recipe="glm-5.2-amd")
    assert rejection(inside, home, UsageError).startswith("the target is inside the source")


def test_insufficient_disk_space_is_rejected(
    request_: QuantizationRequest, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 1 << 40, 1_000_000_000))  # type: ignore[attr-defined]
    assert rejection(request_, home, HostError).startswith("not enough disk space: 1.1 GB needed, 1.0 GB free")


def test_disk_space_check_includes_copied_files(
    request_: QuantizationRequest, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 1_000_000_000 + (1 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 1 << 40, free))  # type: ignore[attr-defined]
    with (request_.source / "consolidated.pth").open("wb") as file:
        file.truncate(2_000_000_000)
    assert "not enough disk space" in rejection(request_, home, HostError)


def test_missing_compiler_is_rejected(
    request_: QuantizationRequest, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert "no C++ compiler found" in rejection(request_, home, HostError)


@pytest.mark.parametrize(
    ("free", "cores", "workers"),
    [(100_000_000_000, 16, 2), (100_000_000_000, 1, 1), (800_000_000, 16, 1), (None, 16, 2)],
)
def test_worker_count_is_limited_by_cores_shards_memory(
    free: int | None, cores: int, workers: int, request_: QuantizationRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "available_memory", lambda: free)
    source = read_source(request_.source)
    assert command._workers(request_, source, cores=cores, shards=2) == workers


def test_insufficient_memory_for_one_worker_is_rejected(
    request_: QuantizationRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "available_memory", lambda: 500_000_000)
    source = read_source(request_.source)
    with pytest.raises(HostError, match=r"a worker needs about [0-9.]+ MB of memory, and 500.0 MB are free"):
        command._workers(request_, source, cores=2, shards=2)


def test_missing_fact_skips_model_entry_with_hint(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {key: value for key, value in Tiny().config().items() if key != "max_position_embeddings"}
    checkpoint = write_tiny(tmp_path / "made", config, Tiny().header())
    assert command._added_model(checkpoint, "made", home) is None
    assert f"hint: `deploy add model {checkpoint}` names each missing value" in capsys.readouterr().err


def test_model_of_catalog_gets_no_second_entry(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped entry for `glm-5.2-mxfp4` refers to the checkpoint that `quantize` creates."""
    assert command._added_model(tmp_path / "made", "tiny", home) is None
    assert capsys.readouterr().err == "note: the catalog has a model `tiny`; no entry is written\n"


@pytest.mark.parametrize(("requested", "containers"), [(None, 8), (20, 8), (3, 3)])
def test_container_workers_are_limited_to_gpu_count(
    requested: int | None,
    containers: int,
    request_: QuantizationRequest,
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "quark_version", lambda _: "0.13")
    on_gpus = replace(request_, plan=plan_of("mi355x-tp8"), workers=requested)
    folder = WorkDir(request_.target)
    pool = command._pool(on_gpus, read_source(request_.source), folder, home, shards=282)
    assert len(pool.commands) == len(pool.containers) == containers
    assert {"--device", "/dev/kfd"} <= {*pool.commands[0]}
