"""How an API key reaches sglang: through its own `--config FILE.yaml` option, so that no argv holds it.

sglang reads such a file once, before anything else, and takes its keys for options (0.5.14, 0.5.16, 0.5.23:
sglang/srt/…/server_args_config_parser.py; the name has to end in `.yaml` or `.yml`). Its child processes get the parsed
arguments through a pipe. What the file is, each runtime decides: the process runtime gives a FIFO that exists for one
reading, so the key is never on a disk; a container gets a file that only root in it may read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.core.secret import Secret


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The secrets by the way they take: the text of a config file, None without a key, and the other variables."""

    config: Secret | None
    env: Mapping[str, Secret]


def delivery(secrets: Mapping[str, Secret], *, api_key_env: str | None) -> Delivery:
    """Sort the secrets: the API key is the one in `api_key_env`."""
    api_key = secrets.get(api_key_env or "")
    if api_key is None:
        return Delivery(config=None, env=secrets)
    text = json.dumps({"api-key": api_key.reveal()}) + "\n"  # JSON is YAML
    others = {name: secret for name, secret in secrets.items() if name != api_key_env}
    return Delivery(config=Secret.around(text), env=others)
