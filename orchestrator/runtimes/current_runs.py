"""The current runs of a server, for the runtimes that record units in run directories."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.runtimes.base import Unit


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """The units of one run by their records: a server, or replicas and their gateway."""

    folder: Path
    own: Unit | None  # a server without replicas, or the gateway; None if the start ended before the gateway's
    replicas: tuple[Unit, ...]
    stopped: bool  # all units were stopped on request

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units, the gateway first."""
        return self.replicas if self.own is None else (self.own, *self.replicas)


def current_runs(newest_first: Iterable[RecordedRun], live: Collection[Path]) -> list[RecordedRun]:
    """Return the runs whose folder is in `live`; if `live` is empty, the newest run unless it was stopped.

    A rolling update records replaced replicas in later runs, so unstopped runs of replicas are also returned, back to
    the run of their gateway. `newest_first` is read only as far as needed.
    """
    left, found = set(live), list[RecordedRun]()
    for run in newest_first:
        left.discard(run.folder)
        if run.folder in live or (not run.stopped and (run.replicas or not live)):
            found.append(run)
        ended = run.stopped and run.own is not None
        if not left and (ended or any(item.own is not None for item in found)):
            break
    return found
