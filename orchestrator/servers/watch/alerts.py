"""Alerts of `deploy watch`: a command reads the event, or a webhook receives it.

Each delivery is a program with a timeout, so no receiver delays the watcher. It ends with the watcher, and it receives
only the event: neither its environment nor its input contains a secret of this process.
"""

import json
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from orchestrator.core.errors import DeployError, UsageError
from orchestrator.core.secrets import Secret, redact_data
from orchestrator.core.subprocesses import DEVNULL, PIPE, Program, python_module_argv, start

TIMEOUT: Final = 30.0  # seconds for one delivery
_CLOSE_TIMEOUT: Final = 2.0  # seconds for all deliveries when the watcher ends


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """A command, or a webhook, whose URL may be a secret."""

    label: str
    argv: tuple[str, ...]
    url: Secret | None = None

    @classmethod
    def command(cls, text: str) -> "Receiver":
        """Parse a command line as a shell does. Raises UsageError."""
        try:
            argv = tuple(shlex.split(text))
        except ValueError as error:
            hint = "quote the command for the shell"
            raise UsageError(f"cannot parse the command of `--exec`: {error}", hint=hint) from error
        if not argv:
            raise UsageError("`--exec` needs a command", hint="`--exec 'PROGRAM ARGUMENT…'`")
        if shutil.which(argv[0]) is None:  # otherwise the first death would reveal that it is missing
            raise UsageError(f"no program `{argv[0]}` found", hint="pass `--exec` a command on the PATH, or a path")
        return cls(label=f"`{argv[0]}`", argv=argv)

    @classmethod
    def webhook(cls, url: str) -> "Receiver":
        """Parse a URL. Raises UsageError, which does not show the URL."""
        try:
            parts = urlsplit(url)
            host = parts.hostname if parts.scheme in {"http", "https"} and parts.port != 0 else None
        except ValueError:  # brackets without an address, a port that is not a number
            host = None
        if not host or not url.isprintable() or " " in url:
            raise UsageError("the webhook is not a URL", hint="write it as `https://HOST/PATH`")
        argv = python_module_argv("orchestrator.servers.watch.worker", "post")
        return cls(label=f"the webhook at {host}", argv=tuple(argv), url=Secret(url))

    def deliver(self, event: Mapping[str, object]) -> Program:
        """Start a program that delivers the event. Raises DeployError or OSError if it cannot start."""
        safe = redact_data(event)
        if self.url is None:
            return start(self.argv, stdin=f"{json.dumps(safe)}\n".encode(), output=DEVNULL, tied=True)
        program = start(self.argv, stdin=PIPE, output=DEVNULL, tied=True)
        program.feed(json.dumps({"url": self.url.reveal(), "event": safe}) + "\n")
        return program


@dataclass(frozen=True)
class _Delivery:
    """The delivery of one event to one receiver."""

    name: str
    event: str
    receiver: Receiver
    program: Program
    started_at: float  # by the monotonic clock


@dataclass
class Alerts:
    """The receivers, and the deliveries in flight."""

    receivers: tuple[Receiver, ...]
    clock: Callable[[], float]
    _running: list["_Delivery"] = field(default_factory=list)

    def send(self, event: Mapping[str, object]) -> Iterator[str]:
        """Start a delivery to every receiver; yield the reason for each failed start."""
        for receiver in self.receivers:
            try:
                program = receiver.deliver(event)
                delivery = _Delivery(str(event.get("name")), str(event.get("event")), receiver, program, self.clock())
                self._running.append(delivery)
            except (DeployError, OSError) as error:
                yield f"{receiver.label}: {error}"

    def failed(self) -> Iterator[tuple[str, str]]:
        """End overdue deliveries; yield server and reason of each delivery that failed since the last call."""
        running, self._running = self._running, []
        for delivery in running:
            is_late = self.clock() - delivery.started_at >= TIMEOUT
            if delivery.program.code is None and not is_late:
                self._running.append(delivery)
            elif delivery.program.code is None:
                delivery.program.end(signal.SIGKILL)
                yield delivery.name, f"{delivery.receiver.label}: timed out after {TIMEOUT:g} s"
            else:
                if delivery.program.code:
                    yield delivery.name, f"{delivery.receiver.label}: exited with {delivery.program.code}"
                delivery.program.end(signal.SIGKILL)  # its children, if any

    def close(self) -> list[tuple[str, str]]:
        """End every delivery after a short wait; return server and reason of each failure."""
        end = self.clock() + _CLOSE_TIMEOUT
        deliveries, failures = list(self._running), list[tuple[str, str]]()
        try:
            for delivery in deliveries:
                delivery.program.wait_for(max(end - self.clock(), 0))
            failures = list(self.failed())
        finally:
            for delivery in self._running:
                delivery.program.end(signal.SIGKILL)
        failures += [
            (delivery.name, f"{delivery.receiver.label}: `{delivery.event}` not delivered")
            for delivery in self._running
        ]
        self._running = []
        return failures

    @property
    def in_flight(self) -> bool:
        """Whether a delivery is in flight."""
        return bool(self._running)
