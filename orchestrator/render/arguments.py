"""What an engine is asked of a start's arguments, before it."""

from collections.abc import Mapping

from orchestrator.engine.server_args import ArgumentQuestion, server_arguments
from orchestrator.render.artifacts import Artifacts


def argument_question(artifacts: Artifacts, files: Mapping[str, str] | None) -> ArgumentQuestion:
    """The arguments of each server and the plan's GPUs. `files` are the model's; None: they lie at its path."""
    plan, hardware = artifacts.plan, artifacts.plan.hardware
    servers = artifacts.replicas or (artifacts,)
    return ArgumentQuestion(
        argv=tuple(server_arguments(server.command.argv) for server in servers),
        platform=plan.engine.platform,
        arch=hardware.arch,
        gpus=hardware.gpus,
        vram_bytes=hardware.vram_bytes,
        compute_units=hardware.compute_units,
        model=plan.model.name,
        files=files,
    )
