"""The server's argv and environment."""

from orchestrator.engine import Launch, launch_argv
from orchestrator.plan import Plan
from orchestrator.render.artifacts import Command


def server_command(plan: Plan, *, model_path: str, host: str, in_home: bool = False) -> Command:
    """What is executed. Where the checkpoint lies and which address is bound is for the runtime to say.

    The interpreter is `python3`; the process runtime puts its environment's in that place.
    """
    launch = Launch(
        model_path=model_path,
        served_name=plan.model.served_name,
        host=host,
        port=plan.server.port,
        tp=plan.layout.tp,
        dp=plan.layout.dp,
        ep=plan.layout.ep,
        dp_attention=plan.layout.dp_attention,
        flags=tuple((flag.name, flag.values) for flag in plan.flags),
    )
    env = tuple((variable.name, variable.value) for variable in plan.env)
    return Command(argv=launch_argv(launch, python="python3"), env=env, in_home=in_home)
