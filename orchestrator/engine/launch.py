"""The launch line of sglang, and the delivery of its API key.

An API key reaches sglang through sglang's `--config FILE.yaml` option, so no argv contains it. sglang first reads the
file, once, and treats its keys as options (0.5.14, 0.5.16, 0.5.23: sglang/srt/…/server_args_config_parser.py; the name
must end in `.yaml` or `.yml`). Child processes get the parsed arguments through a pipe. Each runtime chooses the kind
of file: the process runtime uses a FIFO that is read once, so the key is never on a disk; a container gets a file that
only its root user may read.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.secrets import Secret
from orchestrator.engine.flags import DP_SIZE, RESERVED

MODULE: Final = "sglang.launch_server"
CONTROL_KEY: Final = "GATEWAY_CONTROL_KEY"  # the gateway's key among the secrets of a server; never a variable
# Options that `launch_argv` derives from other keys of a profile, with the path of each key.
_DERIVED: Final = (
    *("model-path", "served-model-name", "host", "port", "nnodes", "node-rank"),
    *("tp-size", "dp-size", "attn-dp-size", "ep-size", "enable-dp-attention"),
)
PROFILE_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    **{option: tuple(RESERVED[option].split(".")) for option in _DERIVED},
    "dist-init-addr": ("layout", "nodes"),
}
# Placeholders for words that differ between a server's nodes: `rank_argv` and each runtime replace them.
NODE_RANK: Final = "$(NODE_RANK)"
HEAD_ADDRESS: Final = "$(HEAD_ADDRESS)"
# The variable with a rank's address for other nodes; without it sglang takes the address of the default route or of the
# host's name (`get_local_ip_auto` in srt/utils/network.py, sglang 0.5.14 to 0.5.23).
HOST_ADDRESS: Final = "SGLANG_HOST_IP"
_OURS: Final = (
    "sglang::"  # scheduler_DP1_TP0, detokenizer, data_parallel_controller (0.5.14, managers/scheduler.py:4148)
)
_SCHEDULER: Final = "scheduler"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The launch parameters of sglang. `flags` are option names without dashes and their values, empty for a switch."""

    model_path: str
    served_name: str
    host: str
    port: int
    tp: int
    dp: int
    ep: int
    dp_attention: bool
    dp_option: str = DP_SIZE
    flags: Sequence[tuple[str, Sequence[str]]] = ()
    nodes: int = 1
    rank_port: int = 0  # on the node of rank 0, with several nodes


def launch_argv(launch: Launch, *, python: str) -> tuple[str, ...]:
    """Return the command line of sglang; `python` is the engine's interpreter.

    Option names are complete: sglang's parser accepts abbreviations, which may become ambiguous in another version.
    The order of the options is fixed; the flags come last, in their own order.
    """
    argv = [python, "-m", MODULE]
    argv += ["--model-path", launch.model_path, "--served-model-name", launch.served_name]
    argv += ["--host", launch.host, "--port", str(launch.port)]
    argv += _parallelism_options(launch)
    for name, values in launch.flags:
        argv += [f"--{name}", *values]
    if launch.nodes > 1:
        argv += ["--nnodes", str(launch.nodes), "--node-rank", NODE_RANK]
        argv += ["--dist-init-addr", f"{HEAD_ADDRESS}:{launch.rank_port}"]
    return tuple(argv)


def key_file_words(path: str) -> tuple[str, str]:
    """Return the option that names the file with the API key."""
    return "--config", path


def rank_argv(argv: Sequence[str], *, rank: int, head: str) -> tuple[str, ...]:
    """Return the command line of one rank of a server; `head` is the address of the node with rank 0.

    The ranks have different ports, since two may share a host; only rank 0 serves requests. The command line of a
    server on one node is unchanged.
    """
    if NODE_RANK not in argv:
        return tuple(argv)
    words = [word.replace(NODE_RANK, str(rank)).replace(HEAD_ADDRESS, head) for word in argv]
    port = words.index("--port") + 1
    words[port] = str(int(words[port]) + rank)
    return tuple(words)


def _parallelism_options(launch: Launch) -> list[str]:
    argv = ["--tp-size", str(launch.tp)]
    if launch.dp > 1:
        argv += [f"--{launch.dp_option}", str(launch.dp)]
    if launch.ep > 1:
        argv += ["--ep-size", str(launch.ep)]
    if launch.dp_attention and launch.dp_option == DP_SIZE:
        argv += ["--enable-dp-attention"]
    return argv


@dataclass(frozen=True, kw_only=True)
class SecretDelivery:
    """The secrets of a server, split into the text of a config file (None without a key) and variables."""

    config: Secret | None
    env: Mapping[str, Secret]


def split_secrets(secrets: Mapping[str, Secret], *, api_key_env: str | None) -> SecretDelivery:
    """Move the API key, named by `api_key_env`, and a gateway's control key into the config file; keep the others."""
    keys = {api_key_env or "": "api-key", CONTROL_KEY: "control-key"}
    config = {key: secrets[name].reveal() for name, key in keys.items() if name in secrets}
    if not config:
        return SecretDelivery(config=None, env=secrets)
    env = {name: secret for name, secret in secrets.items() if name not in keys}
    return SecretDelivery(config=Secret.around(json.dumps(config) + "\n"), env=env)  # JSON is YAML


def process_names(cmdlines: Iterable[str]) -> tuple[str, ...]:
    """Return readable names of sglang's processes, sorted: `rank DP1 TP0`, `detokenizer`.

    Processes set their command lines with `setproctitle`; those of other programs are ignored.
    """
    words = (cmdline.split()[0].removeprefix(_OURS) for cmdline in cmdlines if cmdline.startswith(_OURS))
    return tuple(sorted(_readable(word) for word in words))


def _readable(word: str) -> str:
    ranks = word.removeprefix(_SCHEDULER).replace("_", " ").strip()
    return f"rank {ranks}" if ranks and word.startswith(_SCHEDULER) else word
