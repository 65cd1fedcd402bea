"""A tiny GLM-5.2 in BF16 with reproducible bytes, digests of its quantization by real Quark, and a fake Quark."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from quark_samples import Header, Tiny, size_of

FAKE_QUARK: Final = Path(__file__).with_name("fake_quark")
# By recipe: a digest of the checkpoint that `deploy quantize` made from `write_source` with real Quark 0.13
# (`make quark`), without the model card, which contains times.
REAL_FILES: Mapping[str, str] = {
    "glm-5.2-amd": "47cc7673ca06eda0",
    "glm-5.2-quark": "10f1969e5ca606b9",
    "glm-5.2-routed": "3f1c26aebdc540c6",
}


def write_source(folder: Path, tiny: Tiny | None = None) -> Path:
    """Write one shard for each layer; the BF16 values have ten exponents, both signs, and zeros."""
    tiny = tiny or Tiny()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(tiny.config(), indent=2))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("# Of the source\n")
    header = tiny.header()
    files = {name: f"model-{_layer(name) + 1:05}-of-{tiny.layers + 1:05}.safetensors" for name in header}
    for shard in sorted(set(files.values())):
        _write(folder / shard, {name: kind for name, kind in header.items() if files[name] == shard})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return folder


def _layer(name: str) -> int:
    return int(name.split(".")[2]) if name.startswith("model.layers.") else 0


def _write(path: Path, header: Header) -> None:
    entries, chunks, end = {}, [], 0
    for name, (dtype, shape) in header.items():
        data = _values(name, size_of((dtype, shape))) if dtype == "BF16" else bytes(size_of((dtype, shape)))
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end := end + len(data)]}
        chunks.append(data)
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))


def _values(name: str, size: int) -> bytes:
    bits = np.frombuffer(hashlib.shake_256(name.encode()).digest(size), np.uint16)
    sign_and_fraction, octave = bits & 0x807F, 110 + (bits >> 7 & 0xFF) % 10
    return np.where(bits % 61 == 0, 0, sign_and_fraction | octave << 7).astype(np.uint16).tobytes()


def files_digest(folder: Path) -> str:
    """Return a digest of the names and contents of all files except the model card."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name != "README.md":
            total.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def fake_quark_path() -> str:
    """Return a PYTHONPATH with the fake Quark and numpy."""
    return f"{FAKE_QUARK}:{Path(np.__file__).parents[1]}"


def fake_quark_home(home: Path) -> Path:
    """Return a home with an empty environment for Quark, which is on PYTHONPATH instead."""
    (home / "images").mkdir(parents=True)
    (home / "images" / "quark-0.13.txt").write_text("# empty: a fake Quark is on PYTHONPATH\n")
    return home
