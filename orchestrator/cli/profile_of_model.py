"""`deploy up --model`: find or write the profile of a checkpoint, and show it."""

import os

from orchestrator.core.console import note, say, table, terminal_width
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.planner.add.host_profile import profile_on_host
from orchestrator.runtimes import REGISTRY, runtime_class
from orchestrator.servers.start.host import resolve_host_ref, runner_for


def profile_of_model(model: str, home: Home, *, gpus: int | None, host: str | None, runtime: str | None) -> str:
    """Return the name of the profile of a checkpoint on the GPUs of this host, or of `--host`.

    Raises UsageError for a runtime whose GPUs are not those of one host, and what `profile_on_host` raises.
    """
    if runtime is not None and runtime in REGISTRY and runtime_class(runtime).cluster_managed:
        hint = "`deploy add model`, then `deploy add profile` with `--hardware`"
        raise UsageError(f"`--model` reads the GPUs of a host; `{runtime}` chooses one later", hint=hint)
    runner = runner_for(resolve_host_ref(runtime or "docker", home, host))
    found = profile_on_host(model, home, runner, os.environ, gpus=gpus)
    say(f"hardware: {found.hardware.name}, {found.hardware.gpus or 'no'} GPU{'s' * (found.hardware.gpus != 1)} found")
    if found.proposal is None:
        say(f"profile `{found.name}`: {found.path}")
    else:
        say(table(["key", "value", "why"], found.proposal.rows(), width=terminal_width()))
        say(f"wrote {found.path}")
    if found.similar:
        note(f"other profiles of this model on this hardware: {', '.join(found.similar)}")
    return found.name
