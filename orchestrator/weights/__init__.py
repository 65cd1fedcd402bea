"""Checkpoints: fetched so that a cut costs nothing, and whole before a server sees them."""

from orchestrator.weights.config import CheckpointConfig
from orchestrator.weights.describe import Description, describe
from orchestrator.weights.differences import Mismatch
from orchestrator.weights.engine_files import hub_engine_files, local_engine_files
from orchestrator.weights.facts import require_facts
from orchestrator.weights.far import copy_headers
from orchestrator.weights.far_stage import FarStage, far_program
from orchestrator.weights.generate import generate_model, is_made
from orchestrator.weights.hub import Hub, Listing, list_files
from orchestrator.weights.inspect import INDEX
from orchestrator.weights.outline import Outline, hub_outline, local_outline, shard_names
from orchestrator.weights.overlay import overlay_path, write_overlay
from orchestrator.weights.receipt import (
    CheckpointReceipt,
    bytes_here,
    commit_of,
    read_receipt,
    stamps,
    write_receipt,
)
from orchestrator.weights.safetensors import BadShardError, StoredTensor, stored_tensors, tensor_dtypes
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
    verify_made,
)

__all__ = [
    "FROM_RECEIPT",
    "INDEX",
    "BadShardError",
    "CheckpointConfig",
    "CheckpointReceipt",
    "Description",
    "DownloadProgress",
    "Examination",
    "FarStage",
    "Hub",
    "Listing",
    "Mismatch",
    "Outline",
    "StoredTensor",
    "Verified",
    "bytes_here",
    "checkpoint_directory",
    "commit_of",
    "compared",
    "copy_headers",
    "describe",
    "far_program",
    "generate_model",
    "hub_engine_files",
    "hub_outline",
    "is_fatal",
    "is_made",
    "known_mismatches",
    "list_files",
    "local_engine_files",
    "local_outline",
    "needs_mtp",
    "overlay_path",
    "read_receipt",
    "require_facts",
    "shard_names",
    "stage_checkpoint",
    "stamps",
    "stored_tensors",
    "tensor_dtypes",
    "verify_checkpoint",
    "verify_made",
    "write_overlay",
    "write_receipt",
]
