"""The program that validates server arguments with an engine's Python before a start, and its request."""

from collections.abc import Mapping

from orchestrator.core.paths import data_root
from orchestrator.engine.launch import rank_argv
from orchestrator.engine.server_args import ArgumentQuestion, server_arguments
from orchestrator.plan.networks import needs_rdma
from orchestrator.plan.replicas import LOOPBACK
from orchestrator.render.artifacts import Artifacts


def argument_checker() -> str:
    """Return the text of the program."""
    return (data_root() / "images" / "check_server_args.py").read_text(encoding="utf-8")


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
        rdma=needs_rdma(plan),
    )
