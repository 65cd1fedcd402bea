"""Inventory of AMD GPUs from `amd-smi`, part of ROCm since release 6.

The formats, from the source code of the tools and from posted output:

- `amd-smi static|metric --json`: a list with one object per GPU up to ROCm 6; the same list under `gpu_data` since
  amd-smi 26 (ROCm 7) (ROCm/rocprofiler-compute PR 836, ROCm/rocm-systems PR 223).
- A number is bare in old releases and `{"value": 294896, "unit": "MB"}` in newer ones. "MB" means MiB
  (amdsmi_commands.py divides by 1024*1024). An unknown value is `"N/A"`.
- `amd-smi process --json`: `process_info` is an object, or the sentence "No running processes detected".
- Lines before the JSON: SyntaxWarnings of Python (seen with Python 3.14).
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from orchestrator.hosts.gpus.inventory import MIB, Gpu, GpuInventory, GpuProcess
from orchestrator.hosts.survey import Section, Survey

_SMI = "timeout 30"  # the tool hangs if the driver hangs
SECTIONS: Mapping[str, str] = {
    "amd-smi static": f"{_SMI} amd-smi static --asic --vram --driver --json",
    "amd-smi metric": f"{_SMI} amd-smi metric --mem-usage --json",
    "amd-smi process": f"{_SMI} amd-smi process --json",
    "amd-smi version": f"{_SMI} amd-smi version --json",
}

_UNITS = {"B": 1, "KB": 1 << 10, "MB": MIB, "GB": 1 << 30}

Record = Mapping[str, object]


def read_amd(survey: Survey) -> GpuInventory | None:
    """Return the AMD GPUs in a survey; None if `amd-smi` is not installed."""
    if survey["amd-smi static"].missing:
        return None
    errors: list[str] = []
    static, metric, process, version = (
        _records(name, survey[name], errors)
        for name in ("amd-smi static", "amd-smi metric", "amd-smi process", "amd-smi version")
    )
    usage = {record.get("gpu"): record for record in metric}
    return GpuInventory(
        vendor="amd",
        tool="amd-smi",
        driver=next((text for record in static if (text := _text(_at(record, "driver", "version")))), None),
        toolkit=_text(version[0].get("rocm_version")) if version else None,
        gpus=tuple(_gpu(record, usage.get(record.get("gpu"), {})) for record in static),
        processes=tuple(item for record in process for item in _processes(record)),
        errors=tuple(errors),
    )


def _gpu(static: Record, metric: Record) -> Gpu:
    return Gpu(
        index=_number(static.get("gpu")) or 0,
        arch=(_text(_at(static, "asic", "target_graphics_version")) or "").lower().partition(":")[0] or None,
        name=_text(_at(static, "asic", "market_name")),
        compute_units=_number(_at(static, "asic", "num_compute_units")),
        vram_bytes=_size(_at(static, "vram", "size"), "MB") or _size(_at(metric, "mem_usage", "total_vram"), "MB"),
        vram_used=_size(_at(metric, "mem_usage", "used_vram"), "MB"),
    )


def _processes(record: Record) -> Iterator[GpuProcess]:
    entries = record.get("process_list")
    for entry in entries if isinstance(entries, list) else ():
        info = entry.get("process_info") if isinstance(entry, dict) else None
        if not isinstance(info, dict) or (pid := _number(info.get("pid"))) is None:
            continue
        vram = _size(_at(info, "memory_usage", "vram_mem"), "B")
        yield GpuProcess(
            pid=pid,
            name=_text(info.get("name")) or "unknown",
            gpu=_number(record.get("gpu")),
            vram_bytes=vram if vram is not None else _size(info.get("mem_usage"), "B"),
        )


def _records(name: str, section: Section, errors: list[str]) -> list[Record]:
    """Return the objects of the first JSON document in a tool's output; without one, append a message to `errors`."""
    decoder = json.JSONDecoder()
    for start in re.finditer(r"^[\[{]", section.text, re.MULTILINE):
        with suppress(json.JSONDecodeError):
            document, _ = decoder.raw_decode(section.text, start.start())
            entries = document.get("gpu_data", [document]) if isinstance(document, dict) else document
            return [record for record in entries if isinstance(record, dict)] if isinstance(entries, list) else []
    lines = section.text.strip().splitlines()
    printed = f"printed no JSON: {lines[-1] if lines else 'nothing'}"
    errors.append(f"`{name}` {'did not respond within 30 s' if section.code == 124 else printed}")
    return []


def _at(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _text(value: object) -> str | None:
    return value.strip() if isinstance(value, str) and value.strip() not in {"", "N/A"} else None


def _number(value: object) -> int | None:
    if isinstance(value, dict):
        value = value.get("value")
    try:
        return None if isinstance(value, bool) else int(float(str(value)))
    except ValueError:
        return None


def _size(value: object, unit: str) -> int | None:
    """Return a size in bytes; None if it is unknown. `unit` applies to a bare number."""
    number = _number(value)
    unit_name = value.get("unit") if isinstance(value, dict) else unit
    return None if number is None else number * _UNITS.get(str(unit_name), 1)
