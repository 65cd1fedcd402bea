"""The first step of a pod: the engine in its image judges the server's arguments, without a GPU.

It runs in an init container, so that a refusal costs neither a load of the weights nor a loop of crashes, and is read
from the container's termination message.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from orchestrator.engine.server_args import ArgumentRefusal, first_refusal, is_server
from orchestrator.images.sources import argument_checker
from orchestrator.render.arguments import argument_question
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.kubernetes.liveness import FOLDER

NAME: Final = "arguments"
_PROGRAM: Final = "check_server_args.py"
_QUESTION: Final = "arguments.json"
_MESSAGE: Final = "/dev/termination-log"  # the default of `terminationMessagePath`
_REFUSED: Final = 3  # the program's exit code


def argument_files(artifacts: Artifacts) -> dict[str, str]:
    """The program and its question, for the ConfigMap that is mounted at `FOLDER`."""
    if not is_server(artifacts.command.argv):
        return {}
    return {_PROGRAM: argument_checker(), _QUESTION: argument_question(artifacts, None).to_json() + "\n"}


def argument_command(artifacts: Artifacts) -> list[str]:
    """What the init container runs; empty for another program than a server."""
    if not is_server(artifacts.command.argv):
        return []
    return ["python3", "-B", f"{FOLDER}/{_PROGRAM}", f"{FOLDER}/{_QUESTION}", _MESSAGE]


def refusal_in(pod: Mapping[str, Any]) -> ArgumentRefusal | None:
    """Why the engine refuses the arguments of a pod; None where it does not, or nobody knows yet."""
    for status in pod.get("status", {}).get("initContainerStatuses", ()):
        for state in (status.get("state", {}), status.get("lastState", {})):
            ended = state.get("terminated", {})
            if status["name"] == NAME and ended.get("exitCode") == _REFUSED:
                with suppress(ValueError):
                    return first_refusal(str(ended.get("message", "")))
    return None
