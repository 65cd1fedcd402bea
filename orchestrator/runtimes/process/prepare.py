"""Before a process starts: a Python that has the engine."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from orchestrator.core.console import warn
from orchestrator.environments import interpreter
from orchestrator.plan import Plan
from orchestrator.render import Artifacts, server_command
from orchestrator.runtimes.base import Place, Prepared
from orchestrator.weights import overlay_path

_OF_AN_IMAGE: Final = frozenset({"diff", "file"})  # kinds of patches that change what an image holds


def rendered(plan: Plan, _: Mapping[str, bytes]) -> Artifacts:
    """The command, with paths below the tool's home; the interpreter of an environment is put in once it is built."""
    command = server_command(
        plan,
        model_path=model_path(plan),
        host=plan.server.host,
        python=plan.engine.python or "python3",
        in_home=True,
    )
    return Artifacts(plan=plan, command=command, build=None)


def model_path(plan: Plan) -> str:
    """The checkpoint, or its overlay with the patched config.json."""
    if overlay := overlay_path(plan):
        return str(PurePosixPath(overlay).parent)
    return plan.model.source.location if plan.model.source.kind == "directory" else f"models/{plan.model.name}"


def prepare(artifacts: Artifacts, place: Place) -> Prepared:
    """Put the interpreter that has the engine into the command, and name the patches it goes without.

    Raises BuildError.
    """
    for patch in artifacts.plan.patches:
        if patch.kind in _OF_AN_IMAGE:
            warn(
                f"patch `{patch.id}` is not applied: a process runs the sources of its interpreter as they are",
                hint="`deploy patches check --source DIR` says whether they need it; `--set runtime=docker` applies it",
            )
    argv = (interpreter(artifacts.plan.engine, place.home), *artifacts.command.argv[1:])
    return Prepared(artifacts=replace(artifacts, command=replace(artifacts.command, argv=argv)), records={})
