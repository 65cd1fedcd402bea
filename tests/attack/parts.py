"""The processes that a server of the process runtime consists of."""

from pathlib import Path

from deployment import Deployment
from survivors import programs_of

from orchestrator.core.procfs import read_process
from orchestrator.runtimes.supervisor.record import Record, read_record


def record_of(deployment: Deployment) -> tuple[Path, Record] | None:
    for path in sorted(deployment.home.glob("runs/*/*/process.json"), reverse=True):  # the newest start
        if (record := read_record(path.parent)) is not None:
            return path.parent, record
    return None


def pids_of(deployment: Deployment, part: str) -> list[int]:
    """The processes of a part; none before it runs."""
    if (found := record_of(deployment)) is None or found[1].server is None:
        return []
    supervisor, server = (int(known.split("/")[1]) for known in (found[1].supervisor, found[1].server))
    programs = dict(programs_of(deployment.home))
    named = [pid for pid, line in programs.items() if line.startswith(part)]
    everything = [pid for pid in programs if (process := read_process(pid)) and process.session == supervisor]
    return {"supervisor": [supervisor], "server": [server], "all": everything}.get(part, named)
