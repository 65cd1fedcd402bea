"""The programs that `deploy watch` starts, so that it need not import what a start needs.

`python -m orchestrator.servers.watch.worker look NAME` prints a `ServerSnapshot` or a `SnapshotFailure`, and
`heal NAME RUN WHY` a `RestartResult`, as one line of JSON; after Ctrl-C nothing, and the exit code is 130. `post` sends
the event on its standard input, a line `{"url": …, "event": …}`, to a webhook.
"""

import json
import signal
import sys
from dataclasses import asdict
from typing import Final

from orchestrator.core.streams import drop_when_stalled, ignore_sigpipe, take_streams, write

_INTERRUPTED: Final = 130  # `core.errors.Interrupted`


def main() -> int:
    """See above. While it imports, Ctrl-C ends it as it ends any program."""
    take_streams()
    ignore_sigpipe()
    drop_when_stalled()
    what, *words = sys.argv[1:]
    if what == "post":
        from orchestrator.servers.watch.alerts import post  # noqa: PLC0415

        return post(json.loads(sys.stdin.readline()))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from orchestrator.core.errors import Interrupted  # noqa: PLC0415
    from orchestrator.core.paths import Home  # noqa: PLC0415
    from orchestrator.servers.watch.recovery import restart_dead, take_snapshot  # noqa: PLC0415

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        home = Home.from_environment()
        result = restart_dead(home, *words) if what == "heal" else take_snapshot(home, *words)
    except (Interrupted, KeyboardInterrupt):
        return _INTERRUPTED
    write(sys.stdout, json.dumps(asdict(result)) + "\n")  # dropped where who asked is dead: the records tell the next
    return 0


if __name__ == "__main__":
    sys.exit(main())
