"""`deploy restart`: what ran under a name, once more."""

from collections.abc import Callable
from dataclasses import replace

from orchestrator.core.errors import StartError
from orchestrator.core.paths import Home
from orchestrator.runs.run_dir import latest_run, not_started, require_name, require_version
from orchestrator.servers.run_history import ready_runs, repeatable_request
from orchestrator.servers.servers import Servers
from orchestrator.servers.start.launch import UpResult
from orchestrator.servers.start.up import up


def restart(name: str, home: Home, *, healing: Callable[[Servers], object] | None = None) -> UpResult:
    """Start the server of that name again with its last plan; one that still runs is stopped first.

    The last plan is that of the newest run that came up, whatever its profile says by now. `healing` is called as `up`
    calls `claimed`, and may refuse. Raises StartError where no run came up under that name.
    """
    require_name(name)
    run, request = next(ready_runs(home, name), (None, None))
    if run is None or request is None:
        if (newest := latest_run(home, name)) is None:
            raise not_started(home, name, hint="`deploy up PROFILE` starts a server")
        require_version(newest)
        raise StartError(f"no start of `{name}` came up from here", hint="`deploy up PROFILE` starts a server")
    request = replace(repeatable_request(request), replace=True, run=str(run.path), healing=healing is not None)
    again = f"`deploy restart {name}`"
    if healing is None:
        return up(request, home, again=again)
    return up(replace(request, keep_failed=False), home, again=again, claimed=healing)
