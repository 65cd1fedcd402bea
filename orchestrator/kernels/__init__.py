"""Tuned fused-MoE tables: which key is looked up, which rows cover it, what the log says of it. Pure.

How aiter chooses a kernel is read from its own sources (`aiter/fused_moe.py`, `aiter/jit/core.py`) at the commits that
the ROCm images of sglang pin, 7d604afe and 9127c94a; nothing here was run on a GPU. Files, images and aiter's tuner are
imported by name: `kernels.disk`.
"""

from orchestrator.kernels.coverage import Coverage, applies_to, coverage_of, looks_up, to_dict, to_text
from orchestrator.kernels.fusion import Fusion, MoeCheckpoint, decide_fusion, would_fuse
from orchestrator.kernels.gate import GateReader, GateReport, gate_report
from orchestrator.kernels.keys import Key, rank_shapes
from orchestrator.kernels.rows import RowOrigin, TunedRow, write_untuned
from orchestrator.kernels.table import Table, assemble, own_rows, promised_rows
from orchestrator.kernels.triton import TritonReader, TritonReport, asks_triton, triton_report

__all__ = [
    "Coverage",
    "Fusion",
    "GateReader",
    "GateReport",
    "Key",
    "MoeCheckpoint",
    "RowOrigin",
    "Table",
    "TritonReader",
    "TritonReport",
    "TunedRow",
    "applies_to",
    "asks_triton",
    "assemble",
    "coverage_of",
    "decide_fusion",
    "gate_report",
    "looks_up",
    "own_rows",
    "promised_rows",
    "rank_shapes",
    "to_dict",
    "to_text",
    "triton_report",
    "would_fuse",
    "write_untuned",
]
