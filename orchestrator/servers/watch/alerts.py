"""Alerts of `deploy watch`: a command that reads an event, or a webhook that is sent one.

Each is a program with an end in time, so that no receiver can hold up the watch, and ends with the watch. It gets the
event alone: no secret of this process is in its environment or its input.
"""

import http.client
import json
import shlex
import shutil
import signal
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from orchestrator.core.errors import DeployError, UsageError
from orchestrator.core.secrets import Secret, redact_data
from orchestrator.core.subprocesses import DEVNULL, PIPE, Program, python_module_argv, start

WITHIN: Final = 30.0  # seconds that a receiver has
_LAST: Final = 2.0  # seconds that all receivers have once the watch ends


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """What is told: a command's words, or a webhook, whose URL may be a secret."""

    shown: str
    argv: tuple[str, ...]
    url: Secret | None = None

    @classmethod
    def command(cls, text: str) -> "Receiver":
        """A command line, split as a shell splits it. Raises UsageError."""
        try:
            argv = tuple(shlex.split(text))
        except ValueError as error:
            raise UsageError(f"`--exec` is no command line: {error}") from error
        if not argv:
            raise UsageError("`--exec` names no command")
        if shutil.which(argv[0]) is None:  # or it would be found out at the first death
            raise UsageError(
                f"there is no program `{argv[0]}`", hint="`--exec` takes a command that is on the PATH, or a path"
            )
        return cls(shown=f"`{argv[0]}`", argv=argv)

    @classmethod
    def webhook(cls, url: str) -> "Receiver":
        """A URL. Raises UsageError, which does not show it."""
        try:
            at = urlsplit(url)
            host = at.hostname if at.scheme in {"http", "https"} and at.port != 0 else None
        except ValueError:  # brackets without an address, a port that is no number
            host = None
        if not host or not url.isprintable() or " " in url:
            raise UsageError("the webhook is no URL", hint="write it as `https://host/path`")
        argv = python_module_argv("orchestrator.servers.watch.worker", "post")
        return cls(shown=f"the webhook at {host}", argv=tuple(argv), url=Secret(url))

    def tell(self, event: Mapping[str, object]) -> Program:
        """Let it read the event. Raises DeployError or OSError where it cannot be started."""
        text = json.dumps(redact_data(event)) + "\n"
        if self.url is None:
            return start(self.argv, stdin=text.encode(), output=DEVNULL, tied=True)
        program = start(self.argv, stdin=PIPE, output=DEVNULL, tied=True)
        program.feed(json.dumps({"url": self.url.reveal(), "event": json.loads(text)}) + "\n")
        return program


@dataclass(frozen=True)
class _Delivery:
    """An event of a server that a receiver is being told."""

    name: str
    event: str
    receiver: Receiver
    program: Program
    began: float  # by the clock


@dataclass
class Alerts:
    """The receivers, and what they are about to be told."""

    receivers: tuple[Receiver, ...]
    clock: Callable[[], float]
    _running: list["_Delivery"] = field(default_factory=list)

    def send(self, event: Mapping[str, object]) -> Iterator[str]:
        """Tell every receiver, without waiting; which of them cannot be told, and why."""
        for receiver in self.receivers:
            try:
                program = receiver.tell(event)
                told = _Delivery(str(event.get("name")), str(event.get("event")), receiver, program, self.clock())
                self._running.append(told)
            except (DeployError, OSError) as error:
                yield f"{receiver.shown}: {error}"

    def failed(self) -> Iterator[tuple[str, str]]:
        """Of which server an alert has failed since the last call, and how; one that takes too long is ended."""
        running, self._running = self._running, []
        for each in running:
            late = self.clock() - each.began >= WITHIN
            if each.program.code is None and not late:
                self._running.append(each)
            elif each.program.code is None:
                each.program.end(signal.SIGKILL)
                yield each.name, f"{each.receiver.shown}: it took longer than {WITHIN:g} s"
            else:
                if each.program.code:
                    yield each.name, f"{each.receiver.shown}: it ended with {each.program.code}"
                each.program.end(signal.SIGKILL)  # what it has left behind

    def close(self) -> list[tuple[str, str]]:
        """End every delivery, after a short wait; return of which servers an alert was not delivered, and why."""
        end = self.clock() + _LAST
        left, failures = list(self._running), list[tuple[str, str]]()
        try:
            for each in left:
                each.program.wait_for(max(end - self.clock(), 0))
            failures = list(self.failed())
        finally:
            for each in self._running:
                each.program.end(signal.SIGKILL)
        failures += [(each.name, f"{each.receiver.shown}: `{each.event}` not delivered") for each in self._running]
        self._running = []
        return failures

    @property
    def under_way(self) -> bool:
        """Whether a receiver is still being told."""
        return bool(self._running)


def post(order: Mapping[str, object]) -> int:
    """Send an event to a webhook; 0 where it was taken."""
    at, body = urlsplit(str(order["url"])), json.dumps(order["event"]).encode()
    kind = http.client.HTTPSConnection if at.scheme == "https" else http.client.HTTPConnection
    user, _, host = at.netloc.rpartition("@")
    headers = {"Content-Type": "application/json"}
    if user:
        headers["Authorization"] = f"Basic {b64encode(unquote(user).encode()).decode()}"
    connection = kind(host, timeout=WITHIN)
    try:
        path = (at.path or "/") + (f"?{at.query}" if at.query else "")
        connection.request("POST", path, body=body, headers=headers)
        return 0 if connection.getresponse().status // 100 == 2 else 1
    except (OSError, http.client.HTTPException):
        return 1
    finally:
        connection.close()
