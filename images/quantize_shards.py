"""Quantize a checkpoint with AMD Quark, shard by shard: python quantize_shards.py FOLDER DEVICE

Run with a Python that has amd-quark. FOLDER/job.json describes the job. Several processes share its shards; each shard
is claimed by one process. Quark gets a folder with a single shard, because it deletes the content of its output folder
at startup and after a failure, and cannot resume. Finished shards are in FOLDER/checkpoint; the metadata of each shard
is in FOLDER/made. The parent process holds standard input open, and this process exits when the parent does.
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


def exit_with_parent() -> None:
    """Exit when standard input is closed.

    This also works in a container, which would otherwise outlive a killed `docker run`.
    """

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin: the interpreter needs its lock at exit
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def claim(folder: Path, shard: str) -> bool:
    """Claim a shard; return False if it is finished or claimed by another process."""
    if (folder / "checkpoint" / shard).exists():
        return False
    try:
        os.close(os.open(folder / "claims" / shard, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def quantize(folder: Path, job: dict, shard: str, device: str) -> None:
    """Quantize one shard and move it into FOLDER/checkpoint atomically."""
    from quark.torch import LLMTemplate, ModelQuantizer

    part, start = folder / "parts" / shard, time.monotonic()
    (part / "in").mkdir(parents=True)
    for name in ("config.json", shard):
        (part / "in" / name).symlink_to(Path(job["source"], name))
    template = LLMTemplate.get(job["model_type"])
    config = template.get_config(scheme=job["scheme"], exclude_layers=job["exclude"], layer_config=job["layers"])
    quantizer = ModelQuantizer(config)
    quantizer.direct_quantize_checkpoint(
        pretrained_model_path=str(part / "in"), save_path=str(part / "out"), device=device
    )
    result = {
        "config": json.loads((part / "out" / "config.json").read_text()),
        "versions": {**{name: version(name) for name in PACKAGES}, "python": platform.python_version()},
        "device": device,
        "seconds": round(time.monotonic() - start, 1),
    }
    made = part / "out" / shard
    made.chmod(0o644)  # Quark writes files with mode 0600
    with made.open("rb") as file:
        os.fsync(file.fileno())
    temporary = part / "result.json"
    temporary.write_text(json.dumps(result))
    temporary.replace(folder / "made" / f"{shard}.json")
    made.replace(folder / "checkpoint" / shard)  # last, because a shard in this folder counts as finished
    shutil.rmtree(part)


def main(folder: Path, device: str) -> None:
    """Quantize every shard that is neither finished nor claimed."""
    exit_with_parent()
    job = json.loads((folder / "job.json").read_text())
    for shard in job["shards"]:
        if claim(folder, shard):
            quantize(folder, job, shard, device)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
