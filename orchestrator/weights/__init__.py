"""Checkpoints: fetched so that a cut costs nothing, and whole before a server sees them."""

from orchestrator.weights.describe import Description, describe
from orchestrator.weights.differences import Mismatch
from orchestrator.weights.facts import require_facts
from orchestrator.weights.far import copy_headers
from orchestrator.weights.far_stage import FarStage, far_program
from orchestrator.weights.generate import generate_model, is_made
from orchestrator.weights.hub import Hub, Listing, list_files
from orchestrator.weights.outline import hub_outline, local_outline
from orchestrator.weights.overlay import overlay_path, write_overlay
from orchestrator.weights.receipt import bytes_here, read_receipt, stamps
from orchestrator.weights.safetensors import BadShardError, tensor_dtypes
from orchestrator.weights.stage import DownloadProgress, stage_checkpoint
from orchestrator.weights.verify import (
    FROM_RECEIPT,
    Examination,
    Verified,
    checkpoint_directory,
    compared,
    is_fatal,
    known_mismatches,
    needs_mtp,
    verify_checkpoint,
)

__all__ = [
    "FROM_RECEIPT",
    "BadShardError",
    "Description",
    "DownloadProgress",
    "Examination",
    "FarStage",
    "Hub",
    "Listing",
    "Mismatch",
    "Verified",
    "bytes_here",
    "checkpoint_directory",
    "compared",
    "copy_headers",
    "describe",
    "far_program",
    "generate_model",
    "hub_outline",
    "is_fatal",
    "is_made",
    "known_mismatches",
    "list_files",
    "local_outline",
    "needs_mtp",
    "overlay_path",
    "read_receipt",
    "require_facts",
    "stage_checkpoint",
    "stamps",
    "tensor_dtypes",
    "verify_checkpoint",
    "write_overlay",
]
