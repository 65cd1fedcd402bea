"""The folders of a run: a server by itself and a gateway have its directory, each of several servers one in it.

A later start may have replaced some of them:

::

    runs/<name>/<first>/            the gateway, and the servers that nobody has replaced yet
    runs/<name>/<later>/replica-2/  a server that has replaced one; the plan beside it is the one that was asked for
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.plan.units import Role
from orchestrator.runtimes.base import Unit

_REPLICA: Final = re.compile(r"replica-[1-9][0-9]?")  # as `render.replica_folder` calls it


def run_root(run_dir: Path) -> Path:
    """The directory of the run that a server belongs to: one of several has a folder of its own in it."""
    return run_dir.parent if _REPLICA.fullmatch(run_dir.name) else run_dir


def replica_name(run_dir: Path) -> str:
    """Which of several servers has that folder, "" for a server by itself and for a gateway."""
    return run_dir.name if is_replica(run_dir.name) else ""


def is_replica(folder: str) -> bool:
    """Whether a folder of a run is that of one of several servers."""
    return _REPLICA.fullmatch(folder) is not None


def replica_number(replica: str) -> int:
    """Which of several servers has that folder, counted from 1; 0 for what is none of them."""
    return int(replica.rpartition("-")[2]) if is_replica(replica) else 0


def with_roles(units: Iterable[Unit]) -> tuple[Unit, ...]:
    """Units as they are listed: sorted, and with the gateways told that stand before servers of their name."""
    known = sorted(
        units, key=lambda unit: (unit.name, bool(replica_name(Path(unit.run_dir))), unit.number, unit.run_dir)
    )
    several = {unit.name for unit in known if replica_name(Path(unit.run_dir))}
    return tuple(
        replace(unit, role=Role.GATEWAY)
        if unit.name in several and unit.runtime_id and not replica_name(Path(unit.run_dir))
        else unit
        for unit in known
    )


def may_coexist(run_dir: Path, others: Iterable[Unit]) -> bool:
    """Whether a unit may start there beside those of its name: of several the others, or behind their gateway."""
    top, others = run_root(run_dir), list(others)
    apart = [other for other in others if run_root(Path(other.run_dir)) != top]
    behind = run_dir != top and any(other.role is Role.GATEWAY for other in others)
    return not apart or (behind and all(run_root(Path(other.run_dir)).parent == top.parent for other in apart))
