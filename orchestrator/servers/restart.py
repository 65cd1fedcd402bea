"""`deploy restart`: restart a server with its last plan."""

from collections.abc import Callable
from dataclasses import replace

from orchestrator.core.errors import StartError
from orchestrator.core.paths import Home
from orchestrator.runs.run_dir import latest_run, not_started, require_name, require_version
from orchestrator.servers.run_history import ready_runs, repeatable_request
from orchestrator.servers.servers import Servers
from orchestrator.servers.start.launch import UpResult
from orchestrator.servers.start.up import up


def restart(
    name: str,
    home: Home,
    *,
    drain: float | None = None,
    on_locked: Callable[[Servers], object] | None = None,
) -> UpResult:
    """Restart the server of that name with its last plan; a running server is stopped first.

    The last plan is that of the newest run that became ready, even if its profile has changed since. `deploy watch`
    passes `on_locked`, see `up`. Raises StartError if no run of the name became ready.
    """
    require_name(name)
    run, request = next(ready_runs(home, name), (None, None))
    if run is None or request is None:
        if (newest := latest_run(home, name)) is None:
            raise not_started(home, name, hint="`deploy up PROFILE` starts a server")
        require_version(newest)
        raise StartError(f"no previous run of `{name}` to restart", hint="`deploy up PROFILE` starts a server")
    again = repeatable_request(request)
    request = replace(again, replace=True, drain=drain, run=str(run.path), by_watch=on_locked is not None)
    command = f"`deploy restart {name}`"
    if on_locked is None:
        return up(request, home, recovery_command=command)
    return up(replace(request, keep_failed=False), home, recovery_command=command, on_locked=on_locked)
