"""Test the overlay of a checkpoint: a patched config.json with links to all other files."""

import json
import struct
from pathlib import Path

import pytest

from orchestrator.checkpoints.overlay import overlay_path, write_overlay
from orchestrator.core.errors import CheckpointError
from orchestrator.core.paths import Home
from orchestrator.planner.planning import load, render_artifacts
from orchestrator.runtimes.base import HostRef, PreparedRun
from orchestrator.servers.start import prepare

EXCLUDE = ("mtp-exclude",)

CONFIG = {
    "num_hidden_layers": 78,
    "quantization_config": {"quant_method": "quark", "exclude": ["model.layers.78.eh_proj"]},
}


def write_shard(path: Path, **dtypes: str) -> None:
    header = {name: {"dtype": dtype, "shape": [1], "data_offsets": [0, 2]} for name, dtype in dtypes.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0\0")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "glm"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    write_shard(folder / "a.safetensors", **{"model.layers.0.mlp.gate.weight": "U8"})
    write_shard(folder / "b.safetensors", **{"model.layers.78.mlp.experts.0.up_proj.weight": "BF16"})
    files = {"model.layers.0.mlp.gate.weight": "a.safetensors"}
    files["model.layers.78.mlp.experts.0.up_proj.weight"] = "b.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return folder


def test_overlay_patches_config_and_links_other_files(checkpoint: Path, tmp_path: Path) -> None:
    message = write_overlay(checkpoint, tmp_path / "overlays/glm", EXCLUDE)

    overlay = tmp_path / "overlays/glm"
    patched = json.loads((overlay / "config.json").read_text())["quantization_config"]["exclude"]
    assert patched == ["model.layers.78.eh_proj", "model.eh_proj", "model.decoder.mlp.experts"]
    assert message == "1 entries of `model.layers.78` repeated under the names sglang builds that layer with"
    links = {path.name: path.readlink() for path in overlay.iterdir() if path.is_symlink()}
    assert links == {path.name: path for path in checkpoint.iterdir() if path.name != "config.json"}


def test_the_original_is_never_touched(checkpoint: Path, tmp_path: Path) -> None:
    write_overlay(checkpoint, tmp_path / "overlay", EXCLUDE)

    assert json.loads((checkpoint / "config.json").read_text()) == CONFIG


def test_config_is_unchanged_if_sources_need_no_patch(checkpoint: Path, tmp_path: Path) -> None:
    message = write_overlay(checkpoint, tmp_path / "overlay", ())

    assert message == "the engine's sources need no patched config; config.json is unchanged"
    assert json.loads((tmp_path / "overlay/config.json").read_text()) == CONFIG


def test_overlay_is_replaced_without_leftovers(checkpoint: Path, tmp_path: Path) -> None:
    write_overlay(checkpoint, tmp_path / "overlays/glm", EXCLUDE)
    (checkpoint / "tokenizer.json").unlink()
    write_overlay(checkpoint, tmp_path / "overlays/glm", EXCLUDE)

    assert not (tmp_path / "overlays/glm/tokenizer.json").is_symlink()
    assert [path.name for path in (tmp_path / "overlays").iterdir()] == ["glm"]


def test_only_shards_of_mtp_layer_are_opened(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "a.safetensors").write_bytes(b"not a shard")

    write_overlay(checkpoint, tmp_path / "overlay", EXCLUDE)

    patched = json.loads((tmp_path / "overlay/config.json").read_text())["quantization_config"]["exclude"]
    assert "model.decoder.mlp.experts" in patched, "the other shard has the MTP layer"


def test_unreadable_shard_leaves_no_partial_overlay(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "b.safetensors").write_bytes(b"torn")

    with pytest.raises(CheckpointError, match=r"`b\.safetensors` has no safetensors header"):
        write_overlay(checkpoint, tmp_path / "overlays/glm", EXCLUDE)
    assert not (tmp_path / "overlays/glm").exists()


@pytest.mark.parametrize("not_needed", [True, False])
def test_config_is_patched_unless_sources_do_not_need_it(checkpoint: Path, tmp_path: Path, not_needed: bool) -> None:
    plan, home = load("mi355x-tp8-july").plan, Home(tmp_path / "home")
    home.models.mkdir(parents=True)
    (home.models / plan.model.name).symlink_to(checkpoint)

    not_needed_patches = frozenset({"mtp-shared-expert-exclude"} if not_needed else ())
    prepared = PreparedRun(artifacts=render_artifacts(plan), records={}, not_needed=not_needed_patches)
    prepare.prepare_overlay(prepared, HostRef(home=home))

    config = json.loads((home.root / str(overlay_path(plan))).read_text())
    assert (config == CONFIG) == not_needed
