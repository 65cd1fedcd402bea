"""`deploy logs`: the log of a server, or of the last run of its name."""

import re
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import Final

from orchestrator.core.console import note
from orchestrator.core.errors import UsageError
from orchestrator.core.logs.lines import LogTail
from orchestrator.runs.run_dir import latest_run, read_plan
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.saved_logs import lines_since
from orchestrator.servers.servers import Servers

_AGO: Final = re.compile(r"(?=.)(?:(\d{1,5})d)?(?:(\d{1,6})h)?(?:(\d{1,7})m)?(?:(\d{1,9})s)?")
_CLOCK: Final = re.compile(r"\d\d:\d\d(:\d\d)?")


def parse_since(text: str, now: datetime, *, option: str = "--since") -> datetime:
    """Parse `5m`, `2h`, `1h30m`, `14:05` or `2026-11-22T14:05`; times are in the time zone of `now`.

    Raises UsageError for other texts.
    """
    if ago := _AGO.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in ago.groups())
        span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        return (now - min(span, timedelta(days=36500))).replace(microsecond=0)
    try:
        moment = datetime.fromisoformat(f"{now.date()}T{text}" if _CLOCK.fullmatch(text) else text)
        return moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)
    except ValueError as error:
        hint = " or ".join(f"`{option} {item}`" for item in ("5m", "2h", "14:05", "2026-11-22T14:05"))
        raise UsageError(f"`{option} {text}` is neither a time nor a duration", hint=hint) from error


def saved_log(servers: Servers, name: str, since: datetime | None = None) -> Iterator[str] | None:
    """Return the log of the last run of a name, and print a note; None if there is no log."""
    run = latest_run(servers.home, name)
    if run is None or not run.log.is_file():
        return None
    note(f"`{name}` is not running; this is the log of its last run: `{run.log}`")
    lines = LogTail(run.log).to_end()
    if since is None:
        return lines
    plan = read_plan(run)
    zone = UTC if plan is not None and runtime_class(plan.runtime).in_container else None  # None: that of this host
    return lines_since(lines, since, started=run.started, zone=zone)


def log_lines(
    servers: Servers, name: str, *, follow: bool, last: int | None = None, since: datetime | None = None
) -> Iterator[str]:
    """Yield the log of the server of that name, or of its last run: all lines or the `last` ones, then new lines.

    `since` omits earlier lines. Raises StartError if there is no server and no log.
    """
    found = servers.find(name)
    if not found and (saved := saved_log(servers, name, since)) is not None:
        return iter(deque(saved, maxlen=last)) if last is not None else saved
    server = servers.server(found[0]) if found else servers.open(name)
    runtime, handle = server.runtime, server.found
    if last is None:
        return runtime.logs(handle, follow=follow, since=since)
    so_far = deque(enumerate(runtime.logs(handle, follow=False, since=since), start=1), maxlen=last)
    written = so_far[-1][0] if so_far else 0
    later = islice(runtime.logs(handle, follow=True, since=since), written, None) if follow else ()
    return chain((line for _, line in so_far), later)
