"""The programs that `deploy watch` starts; the watcher itself imports no runtime.

`python -m orchestrator.servers.watch.worker snapshot NAME` prints a `ServerSnapshot` or a `SnapshotFailure`, and
`restart NAME RUN REASON` a `RestartResult`, as one line of JSON. After Ctrl-C it prints nothing and exits with 130.
`post` reads a line `{"url": …, "event": …}` from standard input and sends the event to a webhook.
"""

# ruff: noqa: PLC0415
# Each program imports only what it needs.

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from orchestrator.core.streams import drop_when_stalled, ignore_sigpipe, install_streams, write
from orchestrator.servers.watch.snapshot import RestartResult, ServerSnapshot, SnapshotFailure

_INTERRUPTED: Final = 130  # `core.errors.Interrupted`


def main() -> int:
    """Run one of the module's programs. During imports, Ctrl-C ends it at once."""
    install_streams()
    ignore_sigpipe()
    drop_when_stalled()
    task, *words = sys.argv[1:]
    if task == "post":
        return _post(**json.loads(sys.stdin.readline()))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from orchestrator.core.errors import Interrupted
    from orchestrator.core.paths import Home

    program: Callable[..., RestartResult | ServerSnapshot | SnapshotFailure]
    if task == "restart":
        from orchestrator.servers.watch.restarts import restart_dead

        program = restart_dead
    else:
        from orchestrator.servers.watch.recovery import take_snapshot

        program = take_snapshot
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        result = program(Home.from_environment(), *words)
    except (Interrupted, KeyboardInterrupt):
        return _INTERRUPTED
    write(sys.stdout, json.dumps(asdict(result)) + "\n")  # lost if the watcher is dead; the records remain
    return 0


def _post(url: str, event: object) -> int:
    """Send an event to a webhook. Return 0 if the webhook accepted it, else 1."""
    import ssl

    import httpx

    from orchestrator.servers.watch.alerts import TIMEOUT

    verify = ssl.create_default_context()  # the certificates of this host
    content, headers = json.dumps(event), {"Content-Type": "application/json"}  # ASCII: a log may have lone surrogates
    try:
        with httpx.stream(
            "POST", url, content=content, headers=headers, timeout=TIMEOUT, trust_env=False, verify=verify
        ) as answer:
            return 0 if answer.is_success else 1
    except (httpx.HTTPError, httpx.InvalidURL):
        return 1


if __name__ == "__main__":
    sys.exit(main())
