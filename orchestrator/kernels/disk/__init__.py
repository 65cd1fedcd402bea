"""Tuned tables on disk, inside images and upstream, and aiter's own tuner: the edges of `orchestrator.kernels`."""

from orchestrator.kernels.disk.checkpoint import read_checkpoint
from orchestrator.kernels.disk.files import read_tables
from orchestrator.kernels.disk.image import ImageTables, read_digest, read_image, tables_below
from orchestrator.kernels.disk.pins import Pins, read_pins, read_tuner_pins
from orchestrator.kernels.disk.store import RowProvenance, Store
from orchestrator.kernels.disk.triton_tuner import TOKENS, VARIABLE, TritonJob, TritonTuned, triton_job, tune_triton
from orchestrator.kernels.disk.tuner import Tuned, TuningJob, group_id, in_container, tune, tuner_command
from orchestrator.kernels.disk.upstream import upstream_file
from orchestrator.kernels.disk.watch import WatchLimits

__all__ = [
    "TOKENS",
    "VARIABLE",
    "ImageTables",
    "Pins",
    "RowProvenance",
    "Store",
    "TritonJob",
    "TritonTuned",
    "Tuned",
    "TuningJob",
    "WatchLimits",
    "group_id",
    "in_container",
    "read_checkpoint",
    "read_digest",
    "read_image",
    "read_pins",
    "read_tables",
    "read_tuner_pins",
    "tables_below",
    "triton_job",
    "tune",
    "tune_triton",
    "tuner_command",
    "upstream_file",
]
