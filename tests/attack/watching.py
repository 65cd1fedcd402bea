"""Run a server under `deploy watch` and read the events."""

import json
import signal
import time

from deployment import Deployment
from forked import Command

EVENT_TIMEOUT_S = 120  # an event takes 3 s; a deceived watch would need 300 s


def events(watch: Command) -> list[str]:
    return [json.loads(line)["event"] for line in watch.stdout.splitlines()]


def wait_for_event(watch: Command, event: str) -> None:
    deadline = time.monotonic() + EVENT_TIMEOUT_S
    while event not in events(watch):
        assert time.monotonic() < deadline, f"no `{event}` among {events(watch)}"
        time.sleep(0.1)


def watched(deployment: Deployment, *settings: str) -> Command:
    chosen = [
        word
        for setting in ("restart_policy.unhealthy_after=3", "restart_policy.max_attempts=1000")
        for word in ("--set", setting)
    ]
    assert not list(deployment.run(*deployment.up(*settings, *chosen)).faults(0))
    watch = deployment.start("watch", deployment.name, "--json")
    wait_for_event(watch, "watching")
    return watch


def end(deployment: Deployment, watch: Command) -> None:
    assert not list(deployment.run("down", deployment.name).faults(0))
    watch.send(signal.SIGINT)
    assert not list(watch.wait().faults(130))
    assert deployment.leftovers(killed=True) == []
