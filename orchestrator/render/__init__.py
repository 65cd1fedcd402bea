"""From a plan to artifacts: pure functions that return text, bytes and argv."""

from orchestrator.render.arguments import argument_question
from orchestrator.render.artifacts import (
    Artifacts,
    BuildContext,
    Command,
    ContextFile,
    gateway_command,
    needs_options,
    server_command,
)
from orchestrator.render.dockerfile import (
    GATEWAY_FOLDER,
    GATEWAY_LABEL,
    ImageSources,
    base_reference,
    build_context,
    repository,
)
from orchestrator.render.scripts import IMAGE_FOLDER, SHELL_HOME, files, replica_folder, script_file, wrapped

__all__ = [
    "GATEWAY_FOLDER",
    "GATEWAY_LABEL",
    "IMAGE_FOLDER",
    "SHELL_HOME",
    "Artifacts",
    "BuildContext",
    "Command",
    "ContextFile",
    "ImageSources",
    "argument_question",
    "base_reference",
    "build_context",
    "files",
    "gateway_command",
    "needs_options",
    "replica_folder",
    "repository",
    "script_file",
    "server_command",
    "wrapped",
]
