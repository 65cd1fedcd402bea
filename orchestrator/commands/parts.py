"""Which processes of a server have ended while it runs: seen in the process table, before anything is asked of it.

sglang notices the death of a data-parallel rank by the next health request, after 20 s, and that of a tensor-parallel
rank when the others wait for it. What a server is made of is noted when it is ready.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orchestrator.commands.runs import RunDir
from orchestrator.engine import parts
from orchestrator.runtimes import Handle, Runtime

_FILE: Final = "parts.json"


def note_parts(runtime: Runtime, handle: Handle) -> None:
    """Note what a server that is ready is made of."""
    RunDir(Path(handle.run_dir)).save(_FILE, {"parts": parts(runtime.titles(handle))})


def lost_parts(runtime: Runtime, handle: Handle) -> str:
    """What has ended of a server that was ready: `rank DP1 has ended`; "" where all runs, or it cannot be told."""
    noted = RunDir(Path(handle.run_dir)).read(_FILE).get("parts")
    titles = runtime.titles(handle) if noted else ()
    if not titles or not isinstance(noted, Sequence):
        return ""
    running = parts(titles)
    lost = [str(part) for part in noted if part not in running]
    return f"{', '.join(lost)} {'has' if len(lost) == 1 else 'have'} ended while the server runs" if lost else ""
