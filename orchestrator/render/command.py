"""The server's argv and environment."""

from orchestrator.plan import Plan
from orchestrator.render.artifacts import Command


def server_command(plan: Plan, *, model_path: str, host: str, in_home: bool = False) -> Command:
    """What is executed. Where the checkpoint lies and which address is bound is for the runtime to say.

    Long option names only; the order is fixed: what is served, where, how it is spread, then the flags by name. The
    interpreter is `python3`; the process runtime puts its environment's in that place.
    """
    served = [
        *("--model-path", model_path),
        *("--served-model-name", plan.model.served_name),
        *("--host", host),
        *("--port", str(plan.server.port)),
    ]
    argv = ["python3", "-m", "sglang.launch_server", *served, *_spread(plan)]
    for flag in plan.flags:
        argv += [f"--{flag.name}"] if flag.value is None else [f"--{flag.name}", flag.value]
    env = tuple((variable.name, variable.value) for variable in plan.env)
    return Command(argv=tuple(argv), env=env, in_home=in_home)


def _spread(plan: Plan) -> list[str]:
    argv = ["--tp-size", str(plan.layout.tp)]
    if plan.layout.dp > 1:
        argv += ["--dp-size", str(plan.layout.dp)]
    if plan.layout.ep > 1:
        argv += ["--ep-size", str(plan.layout.ep)]
    if plan.layout.dp_attention:
        argv += ["--enable-dp-attention"]
    return argv
