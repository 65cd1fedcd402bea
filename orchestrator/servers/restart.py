"""`deploy restart`: what ran under a name, once more."""

from collections.abc import Callable
from dataclasses import replace

from orchestrator.core.errors import NameTakenError, StartError
from orchestrator.core.paths import Home
from orchestrator.core.suggest import did_you_mean
from orchestrator.plan.diff import changes
from orchestrator.planner.planning import planned
from orchestrator.planner.prebuilt import ready_preview
from orchestrator.runs.run_dir import known_names, read_plan, require_name
from orchestrator.servers.run_history import asked_again, runs_that_came_up
from orchestrator.servers.servers import Fleet
from orchestrator.servers.start.host import place_of
from orchestrator.servers.start.launch import Up
from orchestrator.servers.start.up import up


def restart(name: str, home: Home, *, healing: Callable[[Fleet], object] | None = None) -> Up:
    """Start the server of that name as it came up last, wherever that was; one that still runs is stopped first.

    To heal it its plan is started, whatever its profile says by now, unless what is called as `up` calls `claimed`
    refuses. Raises StartError where none came up under that name, NameTakenError where its profile says something else.
    """
    require_name(name)
    run, request = next(runs_that_came_up(home, name), (None, None))
    if run is None or request is None:
        near = did_you_mean(name, {*known_names(home)} - {name})
        raise StartError(
            f"no server `{name}` has come up from here", hint=near or "`deploy up PROFILE` starts a server"
        )
    request = asked_again(request)
    again = f"`deploy restart {name}`"
    if healing is not None:
        request = replace(request, replace=True, run=str(run.path), keep=False, healing=True)
        return up(request, home, again=again, claimed=healing)
    request = replace(request, healing=False)
    if request.run is not None:  # it was started as an earlier one was, and so it is again
        return up(replace(request, replace=True, run=str(run.path)), home, again=again)
    before, (now, _) = read_plan(run), planned(request.profile, request.overrides, home)
    if request.image:
        now = ready_preview(request.on_image(request.image), now, place_of(now, home, request.host))
    if before is not None and before.digest != now.digest:
        raise NameTakenError(
            f"profile `{request.profile}` says something else than when `{name}` was started",
            details=changes(before.to_dict(), now.to_dict()),
            hint=f"`{request.command(name)} --replace` starts what it says now",
        )
    return up(replace(request, replace=True), home, again=again)
