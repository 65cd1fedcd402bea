"""Quantize a checkpoint with AMD Quark, shard by shard: python quantize_shards.py FOLDER DEVICE

Run by a Python that has amd-quark. FOLDER/job.json says what to do; several of these share its shards, each of which
is claimed by one. Quark is given a folder with one shard: it deletes what lies where it writes, at its start and where
it fails, and cannot go on. What is done lies in FOLDER/checkpoint, and beside it, in FOLDER/made, what Quark said of
it. Standard input is held open by who started this: when that ends, so does this.
"""

import json
import os
import platform
import shutil
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("amd-quark", "torch", "transformers", "safetensors")


def end_with_whoever_started_this() -> None:
    """Also in a container, which outlives a `docker run` that is killed."""

    def watch() -> None:
        while os.read(0, 1):  # not by sys.stdin, whose lock the interpreter wants at its end
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def claim(folder: Path, shard: str) -> bool:
    """Whether this shard is left to be done, and nobody else's."""
    if (folder / "checkpoint" / shard).exists():
        return False
    try:
        os.close(os.open(folder / "claims" / shard, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def quantize(folder: Path, job: dict, shard: str, device: str) -> None:
    """Make one shard; it is in its place whole or not at all."""
    from quark.torch import LLMTemplate, ModelQuantizer

    part, began = folder / "parts" / shard, time.monotonic()
    (part / "in").mkdir(parents=True)
    for name in ("config.json", shard):
        (part / "in" / name).symlink_to(Path(job["source"], name))
    template = LLMTemplate.get(job["model_type"])
    config = template.get_config(scheme=job["scheme"], exclude_layers=job["exclude"], layer_config=job["layers"])
    quantizer = ModelQuantizer(config)
    quantizer.direct_quantize_checkpoint(
        pretrained_model_path=str(part / "in"), save_path=str(part / "out"), device=device
    )
    said = {
        "config": json.loads((part / "out" / "config.json").read_text()),
        "versions": {**{name: version(name) for name in PACKAGES}, "python": platform.python_version()},
        "device": device,
        "seconds": round(time.monotonic() - began, 1),
    }
    made = part / "out" / shard
    made.chmod(0o644)  # Quark's have 0600
    with made.open("rb") as file:
        os.fsync(file.fileno())
    note = folder / "made" / f"{shard}.json"
    beside = part / "note.json"
    beside.write_text(json.dumps(said))
    beside.replace(note)
    made.replace(folder / "checkpoint" / shard)  # the last of all: what lies there is done
    shutil.rmtree(part)


def main(folder: Path, device: str) -> None:
    """Do what is left."""
    end_with_whoever_started_this()
    job = json.loads((folder / "job.json").read_text())
    for shard in job["shards"]:
        if claim(folder, shard):
            quantize(folder, job, shard, device)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
