"""What a look of `deploy watch` sees of a server, and what became of healing it: plain data between programs."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ServerSnapshot:
    """A server as its runtime, the process table and its records tell of it."""

    name: str
    run: str  # the name of its run directory
    url: str
    model: str  # its served name
    processes: tuple[str, ...]  # `procfs.identity` of its processes on this machine, as far as they are known
    status: str  # `runtimes.Status`
    ending: str  # how it ended, where it has
    lost: str  # what of it has ended while it runs
    restarts: int  # by its runtime itself
    busy: bool  # another command works on this name
    wanted: bool  # nobody has ended it
    ready: bool  # it was, since this start
    by_watch: bool  # this start was a healing
    ranks: int  # of all its servers
    behind: tuple[str, ...]  # the servers themselves, where it is their gateway that has the URL
    api_key_env: str | None
    unhealthy_after: float
    limit: int  # restarts in the window
    window: float
    healed: tuple[float, ...]  # when it was since a person started it, Unix time


@dataclass(frozen=True, kw_only=True)
class SnapshotFailure:
    """A look that failed; `code` is that of the error's class."""

    message: str
    hint: str
    code: int


@dataclass(frozen=True, kw_only=True)
class RestartResult:
    """What became of a restart. `attempted`: it is on record; `code` 0: the server is proven, and `run` its own."""

    code: int
    message: str
    attempted: bool
    others: bool  # somebody else worked on the server: nothing was done
    postponed: bool = False  # this machine cannot start anything now, as where its disk is full
    run: str = ""
