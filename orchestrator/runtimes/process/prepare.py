"""Before a process starts: a Python that has the engine."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from orchestrator.environments import interpreter
from orchestrator.plan import Plan
from orchestrator.render import Artifacts, server_command
from orchestrator.runtimes.base import Place, Prepared
from orchestrator.weights import overlay_path


def rendered(plan: Plan, _: Mapping[str, bytes]) -> Artifacts:
    """The command, with paths below the tool's home."""
    command = server_command(plan, model_path=model_path(plan), host=plan.server.host, in_home=True)
    return Artifacts(plan=plan, command=command, build=None)


def model_path(plan: Plan) -> str:
    """The checkpoint, or its overlay with the patched config.json."""
    if overlay := overlay_path(plan):
        return str(PurePosixPath(overlay).parent)
    return plan.model.source.location if plan.model.source.kind == "directory" else f"models/{plan.model.name}"


def prepare(artifacts: Artifacts, place: Place) -> Prepared:
    """Put the interpreter that has the engine into the command. Raises BuildError."""
    argv = (interpreter(artifacts.plan.engine, place.home), *artifacts.command.argv[1:])
    return Prepared(artifacts=replace(artifacts, command=replace(artifacts.command, argv=argv)), records={})
