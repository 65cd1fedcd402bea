"""The server's argv and environment."""

from pathlib import PurePosixPath

from orchestrator.plan import Plan
from orchestrator.render.artifacts import Command
from orchestrator.runtimes.docker.container import container_model, overlay_path


def server_command(plan: Plan) -> Command:
    """What is executed: in a container as it stands, as a process with the tool's home as working directory.

    Long option names only; the order is fixed: what is served, where, how it is spread, then the flags by name. The
    interpreter is `python3`; the process runtime puts its environment's in that place.
    """
    argv = ["python3", "-m", "sglang.launch_server", *_served(plan), *_spread(plan)]
    for flag in plan.flags:
        argv += [f"--{flag.name}"] if flag.value is None else [f"--{flag.name}", flag.value]
    return Command(argv=tuple(argv), env=tuple((variable.name, variable.value) for variable in plan.env))


def model_path(plan: Plan) -> str:
    """Where the server finds the checkpoint: absolute in a container, below the tool's home for a process."""
    if plan.runtime == "docker":
        return container_model(plan)
    if overlay := overlay_path(plan):
        return str(PurePosixPath(overlay).parent)
    return plan.model.source.location if plan.model.source.kind == "directory" else f"models/{plan.model.name}"


def _served(plan: Plan) -> list[str]:
    """A container listens on all its addresses: which of the host's it is reached by is decided when publishing."""
    host = "0.0.0.0" if plan.runtime == "docker" else plan.server.host  # noqa: S104
    return [
        *("--model-path", model_path(plan)),
        *("--served-model-name", plan.model.served_name),
        *("--host", host),
        *("--port", str(plan.server.port)),
    ]


def _spread(plan: Plan) -> list[str]:
    argv = ["--tp-size", str(plan.layout.tp)]
    if plan.layout.dp > 1:
        argv += ["--dp-size", str(plan.layout.dp)]
    if plan.layout.ep > 1:
        argv += ["--ep-size", str(plan.layout.ep)]
    if plan.layout.dp_attention:
        argv += ["--enable-dp-attention"]
    return argv
