"""Find the processes of a server of the process runtime."""

from pathlib import Path

from deployment import Deployment
from leftovers import programs_of

from orchestrator.core.procfs import read_process
from orchestrator.runtimes.supervisor.record import Record, read_record


def record_of(deployment: Deployment) -> tuple[Path, Record] | None:
    for path in sorted(deployment.home.glob("runs/*/*/process.json"), reverse=True):  # the newest run first
        if (record := read_record(path.parent)) is not None:
            return path.parent, record
    return None


def pids_of(deployment: Deployment, process_name: str) -> list[int]:
    """Return the pids of a process, such as `server`, `all` or the start of a command line."""
    if (newest := record_of(deployment)) is None or newest[1].server is None:
        return []
    supervisor, server = (int(identity.split("/")[1]) for identity in (newest[1].supervisor, newest[1].server))
    programs = dict(programs_of(deployment.home))
    named = [pid for pid, line in programs.items() if line.startswith(process_name)]
    everything = [pid for pid in programs if (process := read_process(pid)) and process.session == supervisor]
    return {"supervisor": [supervisor], "server": [server], "all": everything}.get(process_name, named)
