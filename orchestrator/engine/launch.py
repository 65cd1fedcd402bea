"""sglang's launch line: what is served, where, how it is spread, then the flags."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MODULE: Final = "sglang.launch_server"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of sglang. `flags` are option names without dashes and their values, none for a bare switch."""

    model_path: str
    served_name: str
    host: str
    port: int
    tp: int
    dp: int
    ep: int
    dp_attention: bool
    flags: Sequence[tuple[str, Sequence[str]]] = ()


def launch_argv(launch: Launch, *, python: str) -> tuple[str, ...]:
    """The whole command line, `python` being the engine's interpreter.

    Long option names only, since sglang's parser takes abbreviations and they become ambiguous from version to version.
    The order is fixed; the flags come as they are given.
    """
    argv = [python, "-m", MODULE]
    argv += ["--model-path", launch.model_path, "--served-model-name", launch.served_name]
    argv += ["--host", launch.host, "--port", str(launch.port)]
    argv += _spread(launch)
    for name, values in launch.flags:
        argv += [f"--{name}", *values]
    return tuple(argv)


def _spread(launch: Launch) -> list[str]:
    argv = ["--tp-size", str(launch.tp)]
    if launch.dp > 1:
        argv += ["--dp-size", str(launch.dp)]
    if launch.ep > 1:
        argv += ["--ep-size", str(launch.ep)]
    if launch.dp_attention:
        argv += ["--enable-dp-attention"]
    return argv
