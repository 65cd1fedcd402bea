"""What the user asked for, so that a remedy in a message is a command that works as it is printed.

A hint deep in the tool names a command and knows neither the path, the `--set` nor the host that the user gave. It says
`deploy stage PROFILE`; the command line notes what was asked, and whatever is shown has it filled in.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

PROFILE: Final = "PROFILE"  # in a command of a hint: the profile that was asked for, with its `--set`
_COMMAND: Final = re.compile(r"`deploy ([a-z]+(?: [a-z]+)?)([^`]*)`")


@dataclass
class Invocation:
    """The words of one command line: a profile as it was named, what was set, the machine."""

    profile: str | None = None
    overrides: tuple[str, ...] = ()
    host: str | None = None
    takes_host: Callable[[str], bool] = lambda _: False


_asked = Invocation()


def set_invocation(
    profile: str | None,
    overrides: Sequence[str],
    host: str | None,
    takes_host: Callable[[str], bool] = Invocation.takes_host,
) -> None:
    """Take down what was asked for, in the place of what was before; `takes_host` tells it of a command's words."""
    _asked.profile, _asked.overrides, _asked.host, _asked.takes_host = profile, tuple(overrides), host, takes_host


def set_profile(profile: str, overrides: Sequence[str]) -> None:
    """Take down the profile behind a server's name, where none was asked for by its own."""
    if _asked.profile is None:
        _asked.profile, _asked.overrides = profile, tuple(overrides)


def expand_commands(text: str) -> str:
    """The text, its commands with the profile, the `--set` and the host of the user."""
    return _COMMAND.sub(_whole, text) if "`deploy " in text else text


def _whole(found: re.Match[str]) -> str:
    verb, rest = found[1], found[2]
    if _asked.profile is not None:
        settings = [word for override in _asked.overrides for word in ("--set", override)]
        words = shlex.join([_asked.profile, *settings])
        rest = re.sub(rf"\b{PROFILE}\b", lambda _: words, rest)
    if _asked.host is not None and "--host" not in rest and _asked.takes_host(verb):
        rest += f" --host {shlex.quote(_asked.host)}"
    return f"`deploy {verb}{rest}`"
