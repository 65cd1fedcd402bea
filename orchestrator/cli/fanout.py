"""Fan-out: run a command on several hosts, each in its own process. A label precedes each line of output."""

import json
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os import environ
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit

from orchestrator.core import subprocesses
from orchestrator.core.console import format_duration, info, table
from orchestrator.core.errors import UsageError
from orchestrator.core.signals import defer_signals, start_thread_without_signals
from orchestrator.core.suggest import closest_match

FROM_FILE: Final = "@"  # before the name of a file with one host per line
_INTERVAL: Final = 0.05  # seconds
_SCHEMES: Final = ("ssh", "unix", "tcp", "http", "https")  # of the Docker SDK (7.1, docker/utils/utils.py)


@dataclass(frozen=True, kw_only=True)
class Node:
    """One of several hosts. Its servers are named `NAME-label`, to distinguish them in one home."""

    url: str
    label: str


@dataclass(frozen=True, kw_only=True)
class HostResult:
    """The result of the command on one host, with its standard output."""

    node: Node
    code: int
    output: str
    seconds: float

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it: 128 plus the number of a signal."""
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def data(self) -> Any:  # noqa: ANN401 - JSON
        """The JSON that the command printed; None if it failed before printing any."""
        try:
            return json.loads(self.output)
        except ValueError:
            return None


def parse_hosts(words: Iterable[str]) -> tuple[Node, ...]:
    """Return the hosts of the `--host` options and of the files they name.

    Raises UsageError for a file that is unreadable or empty, and for two hosts with the same label.
    """
    nodes: dict[str, Node] = {}
    for url in (url for word in words for url in _urls(word)):
        label = _label(url)
        if label in nodes:
            raise UsageError(
                f"`{nodes[label].url}` and `{url}` have the same label `{label}`",
                hint="name each host once; use ssh aliases for two hosts with one name",
            )
        nodes[label] = Node(url=url, label=label)
    return tuple(nodes.values())


def require_host_url(word: str, *, location: str = "") -> None:
    """Raise UsageError, with the nearest valid form, for a word that is not the URL of a host."""
    scheme, separator, rest = word.partition("://")
    if separator and scheme in _SCHEMES:
        return
    if not separator:
        scheme, rest = ("unix" if word.startswith("/") else "ssh"), word
    meant = f"{closest_match(scheme, _SCHEMES) or 'ssh'}://{rest}"
    raise UsageError(f"`{word}` is not the URL of a host", location=location, hint=f"did you mean `{meant}`?")


def _urls(word: str) -> Iterator[str]:
    if not word.startswith(FROM_FILE):
        require_host_url(word)
        yield word
        return
    path = Path(word.removeprefix(FROM_FILE))
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UsageError(f"cannot read `{path}`: {reason}", hint="write one host per line: ssh://user@node") from error
    if not any(lines):
        raise UsageError(f"no host found in `{path}`", hint="write one host per line: ssh://user@node")
    for number, line in enumerate(lines, start=1):
        if line:
            require_host_url(line, location=f"{path}:{number}")
            yield line


def _label(url: str) -> str:
    """Return a host's name in a form that is valid in the name of a server."""
    host = urlsplit(url).netloc.rpartition("@")[2].removesuffix(":22") or url
    return re.sub(r"[^a-z0-9]+", "-", host.lower()).strip("-")


@dataclass(kw_only=True)
class _Running:
    node: Node
    program: subprocesses.Program
    output: IO[bytes]
    reader: threading.Thread
    since: float = field(default_factory=time.monotonic)

    def result(self, code: int) -> HostResult:
        self.reader.join()
        with self.output as file:
            file.seek(0)
            text = file.read().decode(errors="replace")
        return HostResult(node=self.node, code=code, output=text, seconds=time.monotonic() - self.since)


def run_on_hosts(
    nodes: Sequence[Node], words: Callable[[Node], Sequence[str]], *, parallel: int | None = None
) -> tuple[HostResult, ...]:
    """Run `deploy` with these words on each host, `parallel` at a time; a failure does not stop the others.

    Ctrl-C interrupts them all and waits for their cleanup.
    """
    waiting, running, done = list(nodes), list[_Running](), dict[Node, HostResult]()
    try:
        while waiting or running:
            while waiting and len(running) < (parallel or len(nodes)):
                with defer_signals():  # a started program must be registered, so that Ctrl-C reaches it
                    running.append(_start(waiting[0], words(waiting[0])))
                    waiting.pop(0)
            for item in tuple(running):
                if (code := item.program.code) is not None:
                    running.remove(item)
                    done[item.node] = item.result(code)
            time.sleep(_INTERVAL)
    except BaseException:
        with defer_signals():
            for item in running:
                item.program.send(signal.SIGTERM)
            for item in running:
                item.result(item.program.wait())
        raise
    return tuple(done[node] for node in nodes)


def _start(node: Node, words: Sequence[str]) -> _Running:
    """Start the command with this environment, including secrets; it ends with this process."""
    output = tempfile.TemporaryFile()  # noqa: SIM115 - read after the program has ended
    argv = subprocesses.python_module_argv("orchestrator", *words, "--host", node.url)
    program = subprocesses.start(argv, env=environ, output=output, errors=subprocesses.PIPE, tied=True)
    reader = threading.Thread(target=_print_lines, args=(node, program), daemon=True)
    start_thread_without_signals(reader)
    return _Running(node=node, program=program, output=output, reader=reader)


def _print_lines(node: Node, program: subprocesses.Program) -> None:
    for line in program.lines():
        info(f"{node.label}: {line}")


def outcome_table(results: Iterable[HostResult], *, width: int | None) -> str:
    """Return the results as a table."""
    rows = [(result.node.label, _outcome(result.code), format_duration(result.seconds)) for result in results]
    return table(("node", "outcome", "took"), rows, width=width)


def _outcome(code: int) -> str:
    return "done" if code == 0 else f"exit code {code}" if code > 0 else f"killed by signal {-code}"
