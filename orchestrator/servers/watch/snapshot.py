"""The state of a server for `deploy watch`, and the result of a restart: plain data between programs."""

from dataclasses import dataclass
from enum import StrEnum


def describe_location(url: str, host: str) -> str:
    """Return the URL of a server and the host on which the URL is valid; `host` is "" for this host."""
    return f"{url} on {host}" if host else url


@dataclass(frozen=True, kw_only=True)
class ServerSnapshot:
    """A server, as its runtime, the process table and its run directories report it."""

    name: str
    run: str  # the name of its run directory
    url: str  # as reached on `host`
    host: str  # ssh URL; "" for this host
    model: str  # its served name
    processes: tuple[str, ...]  # their `procfs.process_identity`; only those on this host
    status: str  # `runtimes.Status`
    exit_reason: str  # "" while it runs
    dead: str  # names the processes that have exited while the server runs
    restarts: int  # by its runtime
    busy: bool  # another command holds the lock of this name
    wanted: bool  # no person has stopped it
    ready: bool  # it has been ready since this start
    by_watch: bool  # `deploy watch` started this run
    ranks: int  # of all replicas
    replica_urls: tuple[str, ...]  # empty without a gateway
    api_key_env: str | None
    unhealthy_after: float
    max_attempts: int  # in `window`
    window: float  # seconds
    restarted_at: tuple[float, ...]  # Unix times of the restarts since a person last started the server
    is_remote: bool = False  # it runs on another host
    has_roles: bool = False  # prefill and decode are separate; each server then counts as one rank

    @property
    def location(self) -> str:
        """The URL, with its host if that is not this host."""
        return describe_location(self.url, self.host)


@dataclass(frozen=True, kw_only=True)
class SnapshotFailure:
    """A failed snapshot, with the reason; `code` is the exit code of the error."""

    message: str
    hint: str
    code: int


class RestartOutcome(StrEnum):
    """The outcome of a restart."""

    VERIFIED = "verified"
    FAILED = "failed"  # the attempt is recorded
    REJECTED = "rejected"  # nothing was attempted, and another attempt would not help
    SUPERSEDED = "superseded"  # another command changed the server first; nothing was done
    POSTPONED = "postponed"  # this host cannot start a server now: a full disk, for example


@dataclass(frozen=True, kw_only=True)
class RestartResult:
    """The result of a restart; `run` is the name of the run directory of a verified server."""

    outcome: RestartOutcome
    message: str
    run: str = ""
