"""What the user asked for, so that a remedy in a message is a command that works as it is printed.

A hint deep in the tool names a command and knows neither the path, the `--set` nor the host that the user gave. It says
`deploy stage PROFILE`; the command line notes what was asked, and whatever is shown has it filled in.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PROFILE: Final = "PROFILE"  # in a command of a hint: the profile that was asked for, with its `--set`
# The commands that take `--host`; `tests/unit/cli/test_remedies.py` holds this against the command line.
FAR: Final = frozenset(
    {
        *(
            "up",
            "preflight",
            "stage",
            "status",
            "sweep",
            "top",
            "ask",
            "logs",
            "smoke",
            "down",
            "diagnose",
            "bench",
            "probe",
            "eval",
        ),
        *("history", "prune"),
        *("reproduce", "cache ls", "cache clear", "build", "inspect", "patches check"),
        *("kernels coverage", "kernels table", "onboard engine"),
    }
)
_COMMAND: Final = re.compile(r"`deploy ([a-z]+(?: [a-z]+)?)([^`]*)`")


@dataclass
class UserWords:
    """The words of one command line: a profile as it was named, what was set, the machine."""

    profile: str | None = None
    overrides: tuple[str, ...] = ()
    host: str | None = None


_asked = UserWords()


def note_asked(profile: str | None, overrides: Sequence[str], host: str | None) -> None:
    """Take down what was asked for, in the place of what was before."""
    _asked.profile, _asked.overrides, _asked.host = profile, tuple(overrides), host


def note_profile(profile: str, overrides: Sequence[str]) -> None:
    """Take down the profile behind a server's name, where none was asked for by its own."""
    if _asked.profile is None:
        _asked.profile, _asked.overrides = profile, tuple(overrides)


def as_asked(text: str) -> str:
    """The text, its commands with the profile, the `--set` and the host of the user."""
    return _COMMAND.sub(_whole, text) if "`deploy " in text else text


def _whole(found: re.Match[str]) -> str:
    verb, rest = found[1], found[2]
    if _asked.profile is not None:
        settings = [word for override in _asked.overrides for word in ("--set", override)]
        words = shlex.join([_asked.profile, *settings])
        rest = re.sub(rf"\b{PROFILE}\b", lambda _: words, rest)
    far = verb in FAR or verb.partition(" ")[0] in FAR
    if _asked.host is not None and far and "--host" not in rest:
        rest += f" --host {shlex.quote(_asked.host)}"
    return f"`deploy {verb}{rest}`"
