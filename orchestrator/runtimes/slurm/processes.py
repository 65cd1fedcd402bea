"""Print the processes of a server on its node as JSON: `python -P -m orchestrator.runtimes.slurm.processes RUN_DIR`."""

import json
import sys
from pathlib import Path

from orchestrator.core.errors import HostError
from orchestrator.core.procfs import read_cmdline, server_processes
from orchestrator.core.streams import write
from orchestrator.runtimes.slurm.record import SERVER
from orchestrator.runtimes.supervisor.record import read_record


def main() -> int:
    """Print the command lines of a server's processes, which its record in the run directory identifies."""
    try:
        record = read_record(Path(sys.argv[1]), SERVER)
    except HostError:
        return 1
    running = server_processes(record.markers) if record is not None else ()
    write(sys.stdout, json.dumps([title for process in running if (title := read_cmdline(process.pid))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
