"""Test the work directory of a quantization: finished shards, resumption and rejection."""

import json
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from quark_samples import Tiny, write_tiny

from orchestrator.checkpoints.quantize.assemble import assemble, copied_size
from orchestrator.checkpoints.quantize.forecast import Forecast, forecast
from orchestrator.checkpoints.quantize.recipe import load_recipe
from orchestrator.checkpoints.quantize.source import Source, read_source
from orchestrator.checkpoints.quantize.work_dir import QuantizationJob, WorkDir
from orchestrator.checkpoints.quantize.workers import container_command, local_command
from orchestrator.checkpoints.receipt import CheckpointReceipt, read_receipt
from orchestrator.core.catalog import Catalog
from orchestrator.core.console import Progress
from orchestrator.core.errors import BuildError, UsageError
from orchestrator.core.files import move
from orchestrator.plan.plan import ContainerRequirements
from orchestrator.planner.quantize import _require_new

JOB = QuantizationJob(
    source="/models/tiny",
    files={"config.json": (10, 20)},
    shards=("model-mtp.safetensors", "model.safetensors"),
    model_type="glm_moe_dsa",
    scheme="mxfp4",
    exclude=("lm_head",),
    layers={},
    made_by="quark-0.13.txt",
)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return read_source(write_tiny(tmp_path / "tiny", Tiny().config(), Tiny().header()))


@pytest.fixture
def expected(source: Source) -> Forecast:
    return forecast(source, load_recipe("glm-5.2-amd", Catalog.shipped()))


def finished_work_dir(tmp_path: Path) -> WorkDir:
    """Return a work directory with both shards finished, as Quark writes them."""
    folder = WorkDir(tmp_path / "target")
    folder.begin(JOB)
    quantized = write_tiny(tmp_path / "made", *Tiny().quantized("amd52"))
    for shard in JOB.shards:
        shutil.copy(quantized / shard, folder.checkpoint)
        note = {"config": {"quantization_config": {"exclude": []}}, "versions": {}, "device": "cpu", "seconds": 1.0}
        (folder.root / "made" / f"{shard}.json").write_text(json.dumps(note))
    return folder


def test_shards_matching_forecast_are_finished(tmp_path: Path, expected: Forecast) -> None:
    folder = finished_work_dir(tmp_path)
    assert folder.resume(expected) == {*JOB.shards}
    folder.require_complete(expected)


def test_leftover_temporary_files_are_removed_on_resume(tmp_path: Path, expected: Forecast) -> None:
    """The directory becomes the target, so leftover temporary files would be part of the checkpoint."""
    folder = finished_work_dir(tmp_path)
    (folder.checkpoint / ".config.json.0a1b").write_text("{")
    (folder.checkpoint / "assets").mkdir()
    (folder.checkpoint / "assets" / "part").touch()
    assert folder.resume(expected) == {*JOB.shards}
    assert {entry.name for entry in folder.checkpoint.iterdir()} == {*JOB.shards}


@pytest.mark.parametrize("damage", ["truncated", "wrong shard", "invalid note"])
def test_invalid_shards_are_quantized_again(damage: str, tmp_path: Path, expected: Forecast) -> None:
    folder, shard = finished_work_dir(tmp_path), "model.safetensors"
    if damage == "truncated":
        with (folder.checkpoint / shard).open("r+b") as file:
            file.truncate(100_000)
    elif damage == "wrong shard":
        shutil.copy(folder.checkpoint / "model-mtp.safetensors", folder.checkpoint / shard)
    else:
        (folder.root / "made" / f"{shard}.json").write_text("{")
    with pytest.raises(BuildError, match="does not match the recipe"):
        folder.require_complete(expected)
    assert folder.resume(expected) == {"model-mtp.safetensors"}
    assert not (folder.checkpoint / shard).exists()


@pytest.mark.parametrize(
    "changed", [{"exclude": ()}, {"files": {"config.json": (10, 21)}}, {"made_by": "rocm/sglang:x"}], ids=str
)
def test_work_directory_of_another_job_is_rejected(changed: dict[str, object], tmp_path: Path) -> None:
    folder = finished_work_dir(tmp_path)
    folder.begin(JOB)
    with pytest.raises(UsageError, match="started with another source, recipe or Quark"):
        folder.begin(replace(JOB, **changed))  # type: ignore[arg-type]
    assert len(folder.finished(JOB.shards)) == 2, "the finished shards must remain"


def test_workers_split_the_cores(tmp_path: Path) -> None:
    folder = WorkDir(tmp_path / "x")
    pool = local_command(Path("/env/bin/python"), Path("/p.py"), folder, workers=3, cores=16)
    assert pool.commands == (("/env/bin/python", "-P", "/p.py", f"{tmp_path}/x.quantizing", "cpu"),) * 3
    assert pool.env["OMP_NUM_THREADS"] == "5"


def test_each_worker_container_gets_one_gpu(tmp_path: Path) -> None:
    needs = ContainerRequirements(
        devices=("/dev/kfd",), all_gpus=False, groups=("video",), ipc=None, shm_bytes=None, ulimits=(),
        security_opt=(), cap_add=(),
    )  # fmt: skip
    folder = WorkDir(tmp_path / "x")
    pool = container_command(
        "rocm/sglang:x", Path("/p.py"), folder, source=Path("/bf16"), needs=needs, workers=2, group=lambda _: "44"
    )
    first, second = (" ".join(argv) for argv in pool.commands)
    assert "docker run --rm --init --interactive --name deploy-quantize-" in first
    assert "--device /dev/kfd --group-add 44" in first
    assert f"--volume /bf16:/bf16:ro --volume {folder.root}:{folder.root}" in first
    assert first.endswith(f"--entrypoint python3 rocm/sglang:x /quantize_shards.py {folder.root} cuda:0")
    assert second.endswith("cuda:1")
    assert [f"--name {name} " in argv for name, argv in zip(pool.containers, (first, second), strict=True)] == [
        True
    ] * 2


@pytest.mark.parametrize("link", [False, True])
def test_directory_with_other_files_is_not_used_for_work(tmp_path: Path, *, link: bool) -> None:
    folder = WorkDir(tmp_path / "target")
    directory = tmp_path / "elsewhere" if link else folder.root
    (directory / "parts").mkdir(parents=True)
    (directory / "parts" / "thesis.txt").write_text("mine")
    if link:
        folder.root.symlink_to(directory)
    with pytest.raises(UsageError, match="not made by `deploy quantize`"):
        folder.begin(JOB)
    assert (directory / "parts" / "thesis.txt").read_text() == "mine"


def test_work_directory_killed_before_start_is_resumed(tmp_path: Path) -> None:
    folder = WorkDir(tmp_path / "target")
    folder.root.mkdir()
    (folder.root / "quantization.lock").touch()
    (folder.root / ".job.json.77").touch()
    folder.begin(JOB)
    folder.begin(JOB)


def test_container_names_are_unique_despite_equal_pids(tmp_path: Path) -> None:
    no_values: dict[str, tuple[str, ...]] = dict.fromkeys(
        ("devices", "groups", "ulimits", "security_opt", "cap_add"), ()
    )
    needs = ContainerRequirements(all_gpus=False, ipc=None, shm_bytes=None, **no_values)

    def names() -> tuple[str, ...]:
        folder, program = WorkDir(tmp_path), Path("/p.py")
        source, group = Path("/s"), lambda _: None
        return container_command("i", program, folder, source=source, needs=needs, workers=1, group=group).containers

    assert names() != names()


@pytest.mark.parametrize(
    "note",
    [
        {"config": {}, "versions": {}, "device": "cpu", "seconds": 1.0},
        {"config": {"quantization_config": {"exclude": None}}, "versions": {}, "device": "cpu", "seconds": 1.0},
        {"config": {"quantization_config": {"exclude": [1]}}, "versions": {}, "device": "cpu", "seconds": 1.0},
        {"config": {"quantization_config": {"exclude": []}}, "versions": [], "device": "cpu", "seconds": 1.0},
        {"config": {"quantization_config": {"exclude": []}}, "versions": {}, "device": "cpu", "seconds": "much"},
    ],
)
def test_incomplete_shard_note_is_ignored(tmp_path: Path, expected: Forecast, note: object) -> None:
    folder = finished_work_dir(tmp_path)
    (folder.root / "made" / f"{JOB.shards[0]}.json").write_text(json.dumps(note))
    assert folder.resume(expected) == {JOB.shards[1]}


def test_no_lock_is_left_in_directory_with_other_files(tmp_path: Path) -> None:
    folder = WorkDir(tmp_path / "target")
    folder.root.mkdir()
    (folder.root / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="not made by `deploy quantize`"), folder.lock(Progress()):
        pass
    assert [path.name for path in folder.root.iterdir()] == ["thesis.txt"]


def test_interrupted_publish_never_leaves_target_without_receipt(
    tmp_path: Path, source: Source, expected: Forecast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kills occur just before the target appears, and just after."""
    folder, target = finished_work_dir(tmp_path), tmp_path / "target"
    config = {"architectures": ["x"], "quantization_config": {"exclude": list(expected.exclude)}}
    for shard in JOB.shards:
        note = {"config": config, "versions": {}, "device": "cpu", "seconds": 1.0}
        (folder.root / "made" / f"{shard}.json").write_text(json.dumps(note))
    receipt = CheckpointReceipt(
        location=str(target),
        revision=None,
        mtp_layer=None,
        shards=2,
        tensors=1,
        files={},
        mismatches=(),
        allow_mismatch=False,
    )
    monkeypatch.setattr(sys.modules[assemble.__module__], "verify_created", lambda *_, **__: receipt)
    recipe = load_recipe("glm-5.2-amd", Catalog.shipped())
    assemble_into = partial(assemble, source=source, recipe_name="glm-5.2-amd", recipe=recipe, forecast=expected)
    assemble_module, remove = sys.modules[assemble.__module__], WorkDir.remove

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(assemble_module, "move", kill)
    with pytest.raises(KeyboardInterrupt):
        assemble_into(folder, target)
    assert not target.exists()
    assert folder.resume(expected) == {*JOB.shards}

    monkeypatch.setattr(assemble_module, "move", move)
    monkeypatch.setattr(WorkDir, "remove", kill)
    with pytest.raises(KeyboardInterrupt):
        assemble_into(folder, target)
    assert target.is_dir()
    assert read_receipt(target) is not None
    monkeypatch.setattr(WorkDir, "remove", remove)
    with pytest.raises(UsageError, match="the target exists"):
        _require_new(target)


def test_copied_files_count_toward_size(source: Source) -> None:
    before = copied_size(source.directory)
    (source.directory / "vocabulary.txt").write_text("x" * 5000)
    (source.directory / "code").mkdir()
    (source.directory / "code" / "modeling.py").write_text("x" * 700)
    (source.directory / "README.md").write_text("not copied")
    assert copied_size(source.directory) - before == 5700
