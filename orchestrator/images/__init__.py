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
from orchestrator.images.receipt import ImageReceipt, read_receipt
from orchestrator.images.sources import image_sources, input_digests, read_inputs

__all__ = [
    "CONFLICT",
    "BuildOptions",
    "BuiltImage",
    "Docker",
    "ImageReceipt",
    "PatchState",
    "SourceChecker",
    "build_image",
    "ensure_base",
    "ensure_image",
    "fetch_wheel",
    "find_docker",
    "image_sources",
    "image_tag",
    "input_digests",
    "on_base",
    "push_image",
    "read_inputs",
    "read_receipt",
    "tag_image",
    "write_metadata",
]
