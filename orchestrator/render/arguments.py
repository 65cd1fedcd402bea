"""The request by which an engine's Python validates server arguments before a start."""

from collections.abc import Mapping

from orchestrator.engine.launch import rank_argv
from orchestrator.engine.server_args import ArgumentQuestion, server_arguments
from orchestrator.plan.replicas import LOOPBACK
from orchestrator.render.artifacts import Artifacts


def argument_question(artifacts: Artifacts, files: Mapping[str, str] | None) -> ArgumentQuestion:
    """Return the request to validate the arguments of each server for the plan's GPUs.

    `files` maps names of the model's files to their text; None if the files are at the model's path.
    """
    plan, hardware = artifacts.plan, artifacts.plan.hardware
    servers = artifacts.replicas or (artifacts,)
    return ArgumentQuestion(
        argv=tuple(server_arguments(rank_argv(server.command.argv, rank=0, head=LOOPBACK)) for server in servers),
        platform=plan.engine.platform,
        arch=hardware.arch,
        gpus=hardware.gpus,
        vram_bytes=hardware.vram_bytes,
        compute_units=hardware.compute_units,
        model=plan.model.name,
        files=files,
    )
