"""Start SGLang's gateway as `smg launch` does: its keys from a file, and no client adds or removes servers.

    python launch_gateway.py [options of smg launch] [--config FILE]

FILE is YAML with two keys: `api-key`, which clients have to give and the servers too, and `control-key`, which adds
and removes servers. It is read once and may be a FIFO. Without `api-key` the gateway answers everyone who reaches it;
without `control-key` that key is made here and told to nobody. Runs in the environment of images/smg-*.txt.
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
    control = config.get("control-key") or secrets.token_hex(32)
    arguments.control_plane_api_keys = [("launcher", "launcher", control, "admin")]
    launch_router(arguments)


if __name__ == "__main__":
    main()
