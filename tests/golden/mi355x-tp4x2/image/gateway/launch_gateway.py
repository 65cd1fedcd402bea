"""Start SGLang's gateway as `smg launch` does: clients' key from a file, and nobody adds or removes servers.

    python launch_gateway.py [options of smg launch] [--config FILE]

FILE is YAML with the key `api-key`, which clients have to give and the servers too. It is read once and may be a FIFO.
Without it the gateway answers everyone who reaches it, but for what changes the servers it stands before: that takes a
key which is made here and told to nobody. Runs in the environment of images/smg-*.txt.
"""

import secrets
import sys
from pathlib import Path

import yaml
from smg.launch_router import launch_router, parse_router_args


def main() -> None:
    """Read the key, and serve until SIGTERM."""
    options = sys.argv[1:]
    config = {}
    if "--config" in options:
        place = options.index("--config")
        config = yaml.safe_load(Path(options[place + 1]).read_text(encoding="utf-8"))
        del options[place : place + 2]
    arguments = parse_router_args(options)
    arguments.api_key = config.get("api-key")
    arguments.control_plane_api_keys = [("launcher", "launcher", secrets.token_hex(32), "admin")]
    launch_router(arguments)


if __name__ == "__main__":
    main()
