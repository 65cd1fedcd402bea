"""Inventory of NVIDIA GPUs from `nvidia-smi` (CSV without header and units; sizes in MiB)."""

import csv
import re
from collections.abc import Iterator, Mapping

from orchestrator.hosts.gpus.inventory import MIB, Gpu, GpuInventory, GpuProcess
from orchestrator.hosts.survey import Section, Survey

_SMI = "timeout 30"  # the tool hangs if the driver hangs
_FORMAT = "--format=csv,noheader,nounits"
SECTIONS: Mapping[str, str] = {
    "nvidia gpus": f"{_SMI} nvidia-smi "
    f"--query-gpu=index,uuid,name,compute_cap,memory.total,memory.used,driver_version {_FORMAT}",
    "nvidia processes": f"{_SMI} nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory {_FORMAT}",
    "nvidia version": f"{_SMI} nvidia-smi --version",
}


def read_nvidia(survey: Survey) -> GpuInventory | None:
    """Return the NVIDIA GPUs in a survey; None if `nvidia-smi` is not installed."""
    section = survey["nvidia gpus"]
    if section.missing:
        return None
    rows = tuple(_rows(section, 7))
    index_of = {row[1]: int(row[0]) for row in rows}
    cuda = re.search(r"CUDA Version\s*: ([\d.]+)", survey["nvidia version"].text)
    return GpuInventory(
        vendor="nvidia",
        tool="nvidia-smi",
        driver=rows[0][6] if rows else None,
        toolkit=cuda[1] if cuda else None,
        gpus=tuple(_gpu(row) for row in rows),
        processes=tuple(
            GpuProcess(pid=int(row[1]), name=row[2], gpu=index_of.get(row[0]), vram_bytes=_mib(row[3]))
            for row in _rows(survey["nvidia processes"], 4)
            if row[1].isdigit()
        ),
        errors=_errors(section, has_gpus=bool(rows)),
    )


def _rows(section: Section, columns: int) -> Iterator[list[str]]:
    if section.code == 0:
        for row in csv.reader(section.text.splitlines(), skipinitialspace=True):
            if len(row) == columns and (columns == 4 or row[0].isdigit()):
                yield [cell.strip() for cell in row]


def _gpu(row: list[str]) -> Gpu:
    capability = row[3].replace(".", "")
    return Gpu(
        index=int(row[0]),
        arch=f"sm{capability}" if capability.isdigit() else None,
        name=row[2],
        compute_units=None,
        vram_bytes=_mib(row[4]),
        vram_used=_mib(row[5]),
    )


def _mib(cell: str) -> int | None:
    return int(cell) * MIB if cell.isdigit() else None


def _errors(section: Section, *, has_gpus: bool) -> tuple[str, ...]:
    if has_gpus:
        return ()
    lines = section.text.strip().splitlines()
    return (f"`nvidia-smi` lists no GPU: {lines[-1] if lines else f'exit code {section.code}'}",)
