"""Several servers and the gateway before them, for every runtime that starts them: one handle, one log.

A later start may have replaced some of them:

::

    runs/<name>/<first>/            the gateway, and the servers that nobody has replaced yet
    runs/<name>/<later>/replica-2/  a server that has replaced one; the plan beside it is the one that was asked for
"""

import hashlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Final

from orchestrator.core.files import read_own
from orchestrator.runtimes.base import LOG, Handle, Runtime, ServerState, Status

NO_GATEWAY: Final = ServerState(
    status=Status.EXITED, exit_code=None, restarts=0, started_at=None, detail="its gateway was not started"
)
_REPLICA: Final = re.compile(r"replica-[1-9][0-9]?")  # as `render.replica_folder` calls it
_PAUSE: Final = 0.2  # seconds between two looks at the logs of several


def top_of(run_dir: Path) -> Path:
    """The directory of the run that a server belongs to: one of several has a folder of its own in it."""
    return run_dir.parent if _REPLICA.fullmatch(run_dir.name) else run_dir


def part_of(run_dir: Path) -> str:
    """Which of several servers has that folder, "" for a server by itself and for a gateway."""
    return run_dir.name if is_replica(run_dir.name) else ""


def is_replica(folder: str) -> bool:
    """Whether a folder of a run is that of one of several servers."""
    return _REPLICA.fullmatch(folder) is not None


def number_of(replica: str) -> int:
    """Which of several servers has that folder, counted from 1; 0 for what is none of them."""
    return int(replica.rpartition("-")[2]) if is_replica(replica) else 0


def together(gateway: Handle | None, servers: Sequence[Handle]) -> Handle:
    """Several servers as one, with the gateway that was started before them, or not yet.

    They are the newest start that any of them is of.
    """
    if gateway is not None:
        newest = max([gateway.own_dir, *(str(start_of(server)) for server in servers)])
        if newest == gateway.own_dir:
            return replace(gateway, replicas=(*servers,))
        digest, first = _planned_digest(Path(newest)), gateway.own_dir
        return replace(gateway, plan_digest=digest, run_dir=newest, gateway_dir=first, replicas=(*servers,))
    top = top_of(Path(servers[0].run_dir)).absolute()
    return replace(
        servers[0],
        plan_digest=_planned_digest(top),
        url="",
        service="",
        forward="",
        run_dir=str(top),
        identity="",
        replicas=(*servers,),
    )


def joined(found: Sequence[Handle]) -> list[Handle]:
    """The servers of one name, each start by itself, as they serve: those without a gateway behind the one there is.

    The newest server of each number counts.
    """
    gateways = [handle for handle in found if handle.identity]
    without = [handle for handle in found if handle.replicas and not handle.identity]
    if len(gateways) != 1 or not without:
        return list(found)
    starts = sorted((gateways[0], *without), key=lambda start: start.run_dir)
    newest = {number_of(Path(server.run_dir).name): server for start in starts for server in start.replicas}
    whole = together(gateways[0], [server for _, server in sorted(newest.items())])
    return [whole, *(handle for handle in found if handle not in starts)]


def start_of(server: Handle) -> Path:
    """The run directory of the start that a server is of, one of several too."""
    return top_of(Path(server.run_dir)).absolute()


def run_dirs(handles: Sequence[Handle]) -> list[Path]:
    """The run directories of all starts that these servers, and those behind them, are of."""
    found = {start_of(each) for handle in handles for each in (handle, *handle.replicas)}
    return sorted(found | {Path(handle.own_dir) for handle in handles})


def goes_beside(run_dir: Path, other: Handle) -> bool:
    """Whether a server may start there beside what has its name: of several the others, or behind their gateway."""
    top = top_of(run_dir)
    behind = run_dir != top and other.identity and other.replicas and Path(other.own_dir).parent == top.parent
    return other.run_dir == str(top) or bool(behind)


def each_of(handle: Handle) -> tuple[Handle, ...]:
    """A server, or a gateway and the servers behind it, each by itself."""
    return (replace(handle, replicas=()), *handle.replicas)


def all_logs(runtime: Runtime, handle: Handle, *, follow: bool, since: datetime | None) -> Iterator[str]:
    """The logs of several servers and their gateway, each piece below the name of its file, as `tail` does."""
    parts = each_of(handle)
    names = [os.path.relpath(Path(part.own_dir, LOG), handle.run_dir) for part in parts]
    for name, part in zip(names, parts, strict=True):
        yield f"==> {name} <=="
        yield from runtime.logs(part, follow=False, since=since)
    tails = [runtime.tail(part) for part in parts] if follow else []
    for tail in tails:
        deque(tail(), maxlen=0)
    last = names[-1]
    while follow and any(runtime.state(part).status is Status.RUNNING for part in parts):
        time.sleep(_PAUSE)
        for name, tail in zip(names, tails, strict=True):
            for line in tail():
                if name != last:
                    yield f"==> {name} <=="
                last = name
                yield line


def all_tails(tails: Sequence[Callable[[], Iterator[str]]]) -> Callable[[], Iterator[str]]:
    """The new lines of several logs at each call."""
    return lambda: chain.from_iterable(tail() for tail in tails)


def _planned_digest(run_dir: Path) -> str:
    """The digest of the plan of a run; "" where it cannot be read."""
    try:
        return hashlib.sha256(read_own(run_dir / "plan.json")).hexdigest()
    except (OSError, ValueError):
        return ""
