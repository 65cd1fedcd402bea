"""Start SGLang's gateway like `smg launch`, but with keys from a file; clients cannot add or remove servers.

    python launch_gateway.py [options of smg launch] [--config FILE]

FILE is YAML with two keys: `api-key`, which clients must send and the servers require too, and `control-key`,
which permits adding and removing servers. FILE is read once and may be a FIFO. Without `api-key`, the gateway accepts
every request; without `control-key`, a random key is used that is shown nowhere. Runs in the environment of
images/smg-*.txt.
"""

import secrets
import sys
from pathlib import Path

import yaml
from smg.launch_router import launch_router, parse_router_args


def main() -> None:
    """Read the keys and run the gateway until SIGTERM."""
    options = sys.argv[1:]
    config = {}
    if "--config" in options:
        index = options.index("--config")
        config = yaml.safe_load(Path(options[index + 1]).read_text(encoding="utf-8"))
        del options[index : index + 2]
    arguments = parse_router_args(options)
    arguments.api_key = config.get("api-key")
    control_key = config.get("control-key") or secrets.token_hex(32)
    arguments.control_plane_api_keys = [("launcher", "launcher", control_key, "admin")]
    launch_router(arguments)


if __name__ == "__main__":
    main()
