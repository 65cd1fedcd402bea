"""The log of a container: read, followed through restarts, and kept when the container goes."""

import codecs
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from docker.errors import NotFound
from docker.models.containers import Container

from orchestrator.console import note
from orchestrator.secret import redact

LOG_FILE: Final = "server.log"
_PAUSE: Final = 0.2  # seconds between two looks at a container that is between two runs


def container_log(container: Container) -> Iterator[str]:
    """What the container has written so far."""
    return lines(container.logs(stream=True, follow=False))


def follow_log(container: Container) -> Iterator[str]:
    """What the container writes until it has ended for good: Docker ends a stream at every restart."""
    since = None
    while True:
        run = container.attrs["State"]["StartedAt"]
        yield from lines(container.logs(stream=True, follow=True, since=since))
        if not _runs_again(container, run):
            return
        since = datetime.fromisoformat(container.attrs["State"]["StartedAt"]).timestamp()


def save_log(container: Container, run_dir: Path) -> None:
    """Keep the log, redacted, in the run directory; on another machine than the one that started it there is none."""
    if not run_dir.is_dir():
        note(f"the log is not kept: `{run_dir}` is not on this machine")
        return
    unfinished = run_dir / f"{LOG_FILE}.new"
    with unfinished.open("w") as file:
        file.writelines(f"{redact(line)}\n" for line in container_log(container))
    unfinished.replace(run_dir / LOG_FILE)


def read_log(run_dir: Path) -> Iterator[str]:
    """The log that was kept, nothing where none was."""
    path = run_dir / LOG_FILE
    if path.is_file():
        with path.open(errors="replace") as file:
            yield from (line.rstrip("\n") for line in file)


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Whole lines out of chunks that end anywhere, inside a character too."""
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    rest = ""
    for chunk in chunks:
        *whole, rest = (rest + decode(chunk)).split("\n")
        yield from whole
    if rest:
        yield rest


def _runs_again(container: Container, run: str) -> bool:
    """Wait until Docker has decided: another run (true), or none."""
    while True:
        try:
            container.reload()
        except NotFound:
            return False
        state = container.attrs["State"]
        if state["Status"] not in {"running", "restarting"}:
            return False
        if state["Status"] == "running" and state["StartedAt"] != run:
            return True
        time.sleep(_PAUSE)
