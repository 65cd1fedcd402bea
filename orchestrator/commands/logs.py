"""The log of a server: of one that exists, or of the last start under its name."""

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice

from orchestrator.commands.runs import latest_run
from orchestrator.commands.servers import Fleet
from orchestrator.core.console import note
from orchestrator.core.log_lines import LogTail
from orchestrator.runtimes import Handle, Runtime


def kept_log(servers: Fleet, name: str) -> Iterator[str] | None:
    """The log that the last start under a name has left, and a note that it is one; None without such a start."""
    run = latest_run(servers.home, name)
    if run is None or not run.log.is_file():
        return None
    note(f"`{name}` is gone; this is its last log, `{run.log}`")
    return LogTail(run.log).to_end()


def log_lines(servers: Fleet, name: str, *, follow: bool, last: int | None) -> Iterator[str]:
    """The log of the server of that name, or of the last one: all of it, or the `last` lines, and what follows.

    Raises StartError where none was started under that name.
    """
    found = servers.find(name)
    if not found and (kept := kept_log(servers, name)) is not None:
        return iter(deque(kept, maxlen=last)) if last is not None else kept
    handle = found[0] if found else servers.one(name)
    return _lines(servers.runtime(handle), handle, follow=follow, last=last)


def _lines(runtime: Runtime, handle: Handle, *, follow: bool, last: int | None) -> Iterator[str]:
    if last is None:
        return runtime.logs(handle, follow=follow)
    so_far = deque(enumerate(runtime.logs(handle, follow=False), start=1), maxlen=last)
    later = islice(runtime.logs(handle, follow=True), so_far[-1][0] if so_far else 0, None) if follow else ()
    return chain((line for _, line in so_far), later)
