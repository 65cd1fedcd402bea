"""The first step of a pod: the engine in the image validates the server's arguments, without a GPU.

An init container runs it, so rejected arguments cost neither a load of the weights nor a crash loop. The result is the
container's termination message.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from orchestrator.engine.server_args import ArgumentRefusal, first_refusal, is_server
from orchestrator.images.argument_checker import argument_checker
from orchestrator.render.arguments import argument_question
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.kubernetes.liveness import FOLDER

NAME: Final = "arguments"
_PROGRAM: Final = "check_server_args.py"
_QUESTION: Final = "arguments.json"
_MESSAGE: Final = "/dev/termination-log"  # the default of `terminationMessagePath`
_REFUSED: Final = 3  # the program's exit code


def argument_files(artifacts: Artifacts) -> dict[str, str]:
    """Return the checker program and its input, for the ConfigMap mounted at `FOLDER`."""
    if not is_server(artifacts.command.argv):
        return {}
    return {_PROGRAM: argument_checker(), _QUESTION: argument_question(artifacts, None).to_json() + "\n"}


def argument_command(artifacts: Artifacts) -> list[str]:
    """Return the command of the init container; empty if the program is not a server."""
    if not is_server(artifacts.command.argv):
        return []
    return ["python3", "-B", f"{FOLDER}/{_PROGRAM}", f"{FOLDER}/{_QUESTION}", _MESSAGE]


def refusal_in(pod: Mapping[str, Any]) -> ArgumentRefusal | None:
    """Return the arguments that the engine of a pod rejects; None if it accepts them or has not finished."""
    for status in pod.get("status", {}).get("initContainerStatuses", ()):
        for state in (status.get("state", {}), status.get("lastState", {})):
            ended = state.get("terminated", {})
            if status["name"] == NAME and ended.get("exitCode") == _REFUSED:
                with suppress(ValueError):
                    return first_refusal(str(ended.get("message", "")))
    return None
