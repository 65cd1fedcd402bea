"""The output of `deploy up`, `restart` and `rollback`."""

import sys

from orchestrator.core.console import note, print_json, say, terminal_width
from orchestrator.servers.start.launch import UpResult


def show_up(done: UpResult, *, json: bool) -> None:
    """Print the URL of the server, and its smoke test if it was started now."""
    if json:
        print_json(done.to_dict())
        return
    handle, already = done.handle, "already " if done.smoke is None else ""
    if done.smoke is not None:
        say(done.smoke.to_table(width=terminal_width(sys.stderr)))
    url = f"{handle.service_url}, where it runs" if handle.service_url else handle.url
    say(f"`{handle.name}` is {already}up at {url}")
    if handle.forward_command:
        note(f"to reach it from this host: `{handle.forward_command}`")
