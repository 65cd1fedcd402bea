"""Patched images: built, inspected, pushed; and the patches that other sources need."""

from orchestrator.images.base import ensure_base
from orchestrator.images.build import (
    BuildOptions,
    BuiltImage,
    build_image,
    ensure_image,
    image_tag,
    on_base,
    push_image,
    tag_image,
    write_metadata,
)
from orchestrator.images.check import CONFLICT, PatchState, SourceChecker, fetch_wheel
from orchestrator.images.client import Docker, find_docker
from orchestrator.images.found import as_found, differences
from orchestrator.images.receipt import ImageReceipt, parse_receipt, read_receipt
from orchestrator.images.sources import carried_patches, image_sources, input_digests, program_paths, read_inputs

__all__ = [
    "CONFLICT",
    "BuildOptions",
    "BuiltImage",
    "Docker",
    "ImageReceipt",
    "PatchState",
    "SourceChecker",
    "as_found",
    "build_image",
    "carried_patches",
    "differences",
    "ensure_base",
    "ensure_image",
    "fetch_wheel",
    "find_docker",
    "image_sources",
    "image_tag",
    "input_digests",
    "on_base",
    "parse_receipt",
    "program_paths",
    "push_image",
    "read_inputs",
    "read_receipt",
    "tag_image",
    "write_metadata",
]
