"""Patched images: built, inspected, pushed; and the patches that other sources need."""

from orchestrator.images.base import IMAGE_BYTES, ensure_base
from orchestrator.images.build import (
    BuildOptions,
    BuiltImage,
    build_image,
    ensure_image,
    found_image,
    image_tag,
    push_image,
    tag_image,
    write_metadata,
)
from orchestrator.images.check import CONFLICT, PatchState, SourceChecker, fetch_wheel, python_in, wheel_version
from orchestrator.images.client import Docker, find_docker
from orchestrator.images.config import ImageConfig, docker_config, local_config
from orchestrator.images.facts import ImageFacts, copy_package, read_facts
from orchestrator.images.found import as_found, differences
from orchestrator.images.ready import ReadyImage, fetch_ready, find_ready, read_ready, read_table, require_ready
from orchestrator.images.receipt import ImageReceipt, parse_receipt, read_receipt, receipt_in, require_receipt
from orchestrator.images.registry import Registry
from orchestrator.images.sources import (
    argument_checker,
    carried_patches,
    image_sources,
    input_digests,
    program_paths,
    read_inputs,
)

__all__ = [
    "CONFLICT",
    "IMAGE_BYTES",
    "BuildOptions",
    "BuiltImage",
    "Docker",
    "ImageConfig",
    "ImageFacts",
    "ImageReceipt",
    "PatchState",
    "ReadyImage",
    "Registry",
    "SourceChecker",
    "argument_checker",
    "as_found",
    "build_image",
    "carried_patches",
    "copy_package",
    "differences",
    "docker_config",
    "ensure_base",
    "ensure_image",
    "fetch_ready",
    "fetch_wheel",
    "find_docker",
    "find_ready",
    "found_image",
    "image_sources",
    "image_tag",
    "input_digests",
    "local_config",
    "parse_receipt",
    "program_paths",
    "push_image",
    "python_in",
    "read_facts",
    "read_inputs",
    "read_ready",
    "read_receipt",
    "read_table",
    "receipt_in",
    "require_ready",
    "require_receipt",
    "tag_image",
    "wheel_version",
    "write_metadata",
]
