"""`deploy logs`: the log of a server, or of the last run of its name."""

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice

from orchestrator.core.console import note
from orchestrator.core.logs.lines import LogTail
from orchestrator.runs.run_dir import latest_run
from orchestrator.servers.servers import Servers


def saved_log(servers: Servers, name: str) -> Iterator[str] | None:
    """Print a note and return the log of the last run of a name; None if there is no log."""
    run = latest_run(servers.home, name)
    if run is None or not run.log.is_file():
        return None
    note(f"`{name}` is not running; this is the log of its last run: `{run.log}`")
    return LogTail(run.log).to_end()


def log_lines(servers: Servers, name: str, *, follow: bool, last: int | None = None) -> Iterator[str]:
    """Yield the log of the server `name`, or of its last run: all lines or the `last` ones, then new lines.

    Raises StartError if there is neither a server nor a log.
    """
    found = servers.find(name)
    if not found and (saved := saved_log(servers, name)) is not None:
        return iter(deque(saved, maxlen=last)) if last is not None else saved
    server = found[0] if found else servers.open(name)
    if last is None:
        return server.logs(follow=follow)
    so_far = deque(enumerate(server.logs(follow=False), start=1), maxlen=last)
    written = so_far[-1][0] if so_far else 0
    later = islice(server.logs(follow=True), written, None) if follow else ()
    return chain((line for _, line in so_far), later)
