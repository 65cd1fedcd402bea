"""`deploy down`: stop a server and everything it started."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from orchestrator.core.console import info, note
from orchestrator.core.errors import DeployError, HostError, Problem
from orchestrator.runs.run_dir import latest_run, name_lock, read_plan
from orchestrator.runtimes import runtime_class
from orchestrator.servers.drain import drain_and_stop
from orchestrator.servers.group import Server
from orchestrator.servers.servers import Servers
from orchestrator.servers.start.host import resolve_host_ref, wait_until_released

_GRACE: Final = 120.0  # seconds for running requests, if this home lacks the server's plan


def down(servers: Servers, name: str, *, all_homes: bool = True, drain: float | None = None) -> None:
    """Stop the server `name` and wait until its ports and VRAM are free.

    `drain` is the time limit for its requests in seconds; None means the termination grace of its plan. Without
    `all_homes`, stop only a server of this home. Raises StartError if no server has this name, and HostError if another
    process holds a port or the VRAM.
    """
    servers.open(name)
    with name_lock(servers.home, name):
        rank_hosts: tuple[str, ...] = ()
        for server in servers.find(name):
            if all_homes or _is_ours(servers, server):
                seconds = grace_of(servers, name) if drain is None else drain
                if seconds:
                    info(f"stopping `{name}`: waiting up to {seconds:g} s for its requests")
                rank_hosts = rank_hosts or server.rank_hosts
                drain_and_stop(servers, server, seconds=seconds, reason="stopped")
        if (plan := read_plan(latest_run(servers.home, name))) is not None:
            wait_until_released(plan, resolve_host_ref(plan.runtime, servers.home, servers.host, rank_hosts=rank_hosts))


def down_all(
    servers: Servers,
    *,
    all_homes: bool = False,
    drain: float | None = None,
    ended: Callable[[str], object] | None = None,
) -> None:
    """Stop every server of this home, or of every home with `all_homes`.

    `ended` is called with the name of each stopped server. Raises HostError at the end, with one problem for each
    server that could not be stopped and each runtime that did not respond.
    """
    failures: dict[str, DeployError] = {}
    found = servers.find()
    names = sorted({server.name for server in found if all_homes or _is_ours(servers, server)})
    for name in names:
        try:
            down(servers, name, all_homes=all_homes, drain=drain)
            info(f"`{name}` is stopped")
            if ended is not None:
                ended(name)
        except (DeployError, OSError) as error:
            failures[name] = error if isinstance(error, DeployError) else HostError(str(error))
    if not names and not servers.unreachable:
        info("no server of this home is running")
    for name in sorted({server.name for server in found} - set(names)):
        note(f"`{name}` was started from another home and is still running: `deploy down {name}` stops it")
    problems = [Problem(text) for text in servers.unanswered()]
    problems += [
        Problem(f"`{name}`: {problem.message}", problem.location, problem.hint)
        for name, error in failures.items()
        for problem in error.problems_or_self()
    ]
    if problems:
        message = f"cannot stop {len(failures)} of {len(names)} servers" if failures else "cannot query every runtime"
        raise HostError(message, problems=problems)


def _is_ours(servers: Servers, server: Server) -> bool:
    """Return whether a server was started from this home; several homes may share a Docker daemon.

    If the run directory was deleted, its path identifies the home of a process. It does not for a container, whose
    labels could name any path.
    """
    run_dir, kind = Path(server.run_dir), runtime_class(server.runtime)
    deleted = not run_dir.exists() and run_dir.is_relative_to(servers.home.runs.resolve())
    return servers.home.holds(run_dir, server.name) or (deleted and kind.is_local and not kind.in_container)


def grace_of(servers: Servers, name: str) -> float:
    """Return the seconds that the server `name` has to finish its running requests."""
    plan = read_plan(latest_run(servers.home, name))
    return float(plan.timeouts.termination_grace) if plan else _GRACE
