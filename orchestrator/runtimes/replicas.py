"""The layout of run directories: a single server or the gateway has the directory, each replica a subdirectory.

A later run may have replaced some replicas:

::

    runs/<name>/<first>/            the gateway, and the replicas of the first run
    runs/<name>/<later>/replica-2/  a replacement; the plan beside it is the requested one

On several nodes, each rank but the first has a subdirectory `rank-N` in that of its server, with its record and log.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Final

from orchestrator.core.errors import NameTakenError
from orchestrator.core.safe_paths import FileName
from orchestrator.plan.units import Role
from orchestrator.runtimes.base import Unit

_RANK: Final = re.compile(r"rank-[1-9][0-9]*")
_REPLICA: Final = re.compile(r"(replica|prefill|decode)-[1-9][0-9]?")  # `Plan.server_names`


def rank_dir(run_dir: Path, rank: int) -> Path:
    """Return the directory of a rank of the server with that run directory; rank 0 has none of its own."""
    return run_dir / FileName(rank_name(rank)) if rank else run_dir


def rank_name(rank: int) -> str:
    """Return the name of a rank's directory."""
    return f"rank-{rank}"


def rank_of(run_dir: Path) -> int:
    """Return the rank whose directory this is; 0 for the run directory of a server."""
    return int(run_dir.name.rpartition("-")[2]) if _RANK.fullmatch(run_dir.name) else 0


def rank_dirs(run_dir: Path) -> tuple[Path, ...]:
    """Return the directories of the ranks on further nodes, in order; () for a server on one node."""
    return tuple(takewhile(Path.is_dir, (rank_dir(run_dir, rank) for rank in count(1))))


def failed_rank(ended: Mapping[int, str], lost: Collection[int]) -> tuple[int, str]:
    """Return the failed rank, from the end times of all ranks, and the text to append to its exit reason.

    A rank that `lost` another one is not the cause: it may be gone 6 s before that one's main process (sglang 0.5.14).
    """
    rank = min(ended, key=lambda rank: (rank in lost, ended[rank], rank))
    return rank, ", after another rank had failed" if rank in lost else ""


def run_root(run_dir: Path) -> Path:
    """Return the run directory of a server; a replica has a subdirectory in it, and so has a rank."""
    run_dir = run_dir.parent if _RANK.fullmatch(run_dir.name) else run_dir
    return run_dir.parent if _REPLICA.fullmatch(run_dir.name) else run_dir


def replica_name(run_dir: Path) -> str:
    """Return the name of the replica with that folder, "" for a server without replicas and for a gateway."""
    return run_dir.name if is_replica(run_dir.name) else ""


def is_replica(folder: str) -> bool:
    """Return whether a subfolder of a run is that of a replica."""
    return _REPLICA.fullmatch(folder) is not None


def replica_number(replica: str) -> int:
    """Return the number of a replica by its name, from 1; 0 if it is no replica."""
    return int(replica.rpartition("-")[2]) if is_replica(replica) else 0


def in_order(folder: str) -> tuple[bool, int]:
    """Return the key that sorts servers behind a gateway: by number, prefill before decode."""
    return folder.startswith(Role.DECODE), replica_number(folder)


def role_of(folder: str) -> Role:
    """Return the role of a server behind a gateway by the name of its folder."""
    kind = folder.rpartition("-")[0]
    return Role(kind) if kind in {Role.PREFILL, Role.DECODE} else Role.SERVER


def require_name_free(run_dir: Path, existing: Sequence[Unit]) -> None:
    """Raise NameTakenError unless a unit may start beside others of its name: in the same run, or at their gateway."""
    top = run_root(run_dir)
    other_runs = [unit for unit in existing if run_root(Path(unit.run_dir)) != top]
    # a gateway is in its run directory itself, beside replicas in subdirectories
    has_gateway = len({is_replica(Path(unit.run_dir).name) for unit in existing if unit.runtime_id}) > 1
    if other_runs and (
        run_dir == top
        or not has_gateway
        or any(run_root(Path(unit.run_dir)).parent != top.parent for unit in other_runs)
    ):
        name = existing[0].name
        hint = f"`deploy down {name}` stops it"
        raise NameTakenError(f"server `{name}` already exists", location=existing[0].run_dir, hint=hint)


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """The units of one run by their records: a server, or replicas and their gateway."""

    folder: Path
    main_unit: Unit | None  # a server without replicas, or the gateway; None if the start ended before the gateway's
    replicas: tuple[Unit, ...]
    stopped: bool  # all units were stopped on request

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units, the gateway first."""
        return self.replicas if self.main_unit is None else (self.main_unit, *self.replicas)


def current_runs(newest_first: Iterable[RecordedRun], live: Collection[Path]) -> list[RecordedRun]:
    """Return the runs whose folder is in `live`; if `live` is empty, the newest run unless it was stopped.

    A rolling update records replaced replicas in later runs, so unstopped runs of replicas are also returned, back to
    the run of their gateway. `newest_first` is read only as far as needed. Runtimes select runs themselves, because
    records outlive their units.
    """
    unseen, current = set(live), list[RecordedRun]()
    for run in newest_first:
        unseen.discard(run.folder)
        if run.folder in live or (not run.stopped and (run.replicas or not live)):
            current.append(run)
        ended = run.stopped and run.main_unit is not None
        if not unseen and (ended or any(item.main_unit is not None for item in current)):
            break
    return current
