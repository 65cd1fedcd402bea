"""The process of `deploy watch`. It replaces the command line, which has imported 20 MB that the watcher does not need.

`python -m orchestrator.cli.watch_main REQUEST` takes the request as JSON. A webhook's URL may be a secret and is only
in the variable DEPLOY_WEBHOOK.
"""

import _signal  # type: ignore[import-not-found]


def main() -> None:
    """Run the watcher. During imports, Ctrl-C ends the process at once, see `orchestrator.__main__`."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from orchestrator.core.streams import drop_when_stalled, ignore_sigpipe, install_streams

    install_streams()
    ignore_sigpipe()  # a lost terminal or log must not end the watcher
    drop_when_stalled()
    from orchestrator.cli.exit_codes import run_and_exit

    run_and_exit(_watch)


def _watch() -> None:
    import json
    import os
    import sys
    from time import monotonic

    from orchestrator.core.console import print_data, print_json
    from orchestrator.core.paths import Home
    from orchestrator.servers.watch.alerts import Alerts, Receiver
    from orchestrator.servers.watch.watch import watch

    request = json.loads(sys.argv[1])
    receivers = [Receiver.command(request["exec"])] if request["exec"] else []
    if url := os.environ.pop("DEPLOY_WEBHOOK", ""):  # so that no child process inherits it
        receivers.append(Receiver.webhook(url))
    watch(
        request["names"],
        Home.from_environment(),
        show=lambda event: (
            print_json(event.to_dict(), one_line=True) if request["json"] else print_data(event.to_text())
        ),
        alerts=Alerts(tuple(receivers), monotonic),
    )


if __name__ == "__main__":
    main()
