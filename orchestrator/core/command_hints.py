"""Hints with complete commands: the user's own profile, `--set` and `--host` are filled in.

The code that writes a hint does not know the options of the user's command. It writes `deploy stage PROFILE`; the
command line registers the user's options here, and the console expands every hint that it shows.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

PROFILE: Final = "PROFILE"  # in a command of a hint: replaced by the user's profile and its `--set`
SHORT_OPTIONS: Final = {"model.checkpoint.revision": "--revision", "runtime": "--runtime"}  # instead of `--set`
_COMMAND: Final = re.compile(r"`deploy ([a-z]+(?: [a-z]+)?)([^`]*)`")
_SET: Final = re.compile(rf"--set ({'|'.join(map(re.escape, SHORT_OPTIONS))})(=|(?![\w.-]))")


@dataclass
class Invocation:
    """The options of one command line that hints repeat."""

    profile: str | None = None  # as the user wrote it
    overrides: tuple[str, ...] = ()  # the values of `--set`
    host: str | None = None
    takes: Callable[[str, str], bool] = lambda _verb, _option: False  # by the words of a command
    short_options: Mapping[str, str] = field(default_factory=dict)  # of this command, by the key that they set


_asked = Invocation()


def set_invocation(
    profile: str | None,
    overrides: Sequence[str],
    host: str | None,
    takes: Callable[[str, str], bool] = Invocation.takes,
    short_options: Mapping[str, str] | None = None,
) -> None:
    """Register the options of the user's command, replacing earlier ones.

    `takes` returns whether a command, given as its words, has an option. `short_options` are those that the command
    has; without the keys that the user set with `--set`.
    """
    _asked.profile, _asked.overrides, _asked.host, _asked.takes = profile, tuple(overrides), host, takes
    _asked.short_options = short_options or {}


def set_profile(profile: str, overrides: Sequence[str]) -> None:
    """Register the profile of the server that the user named, unless the user named a profile."""
    if _asked.profile is None:
        _asked.profile, _asked.overrides = profile, tuple(overrides)


@contextmanager
def hints_for(profile: str, overrides: Sequence[str]) -> Iterator[None]:
    """Fill in this profile in the hints of a block, and in that of an error which ends it."""
    before = _asked.profile, _asked.overrides
    _asked.profile, _asked.overrides = profile, tuple(overrides)
    yield
    _asked.profile, _asked.overrides = before


def profile_words(name: str) -> str:
    """Return the profile and `--set` of a command on the user's profile, or on `name` if the user named none."""
    return shlex.join([_asked.profile or name, *(word for each in _asked.overrides for word in ("--set", each))])


def expand_commands(text: str) -> str:
    """Return `text` with the user's profile, `--set` and `--host` in each of its `deploy` commands.

    Outside of these, `--set runtime=…` becomes `--runtime …` if this command has that option.
    """
    before, parts = 0, []
    for found in _COMMAND.finditer(text) if "`deploy " in text else ():
        parts += [_shortened(text[before : found.start()]), _whole(found)]
        before = found.end()
    return "".join((*parts, _shortened(text[before:])))


def left_running(target: str) -> str:
    """Say that an interrupted command left the server that it used, a name or a URL, running."""
    stop = "" if "://" in target else f"; `deploy down {target}` stops it"
    return f"`{target}` is left running{stop}"


def _whole(found: re.Match[str]) -> str:
    verb, rest = found[1], found[2]
    if _asked.profile is not None:
        words = profile_words(_asked.profile)
        rest = re.sub(rf"\b{PROFILE}\b", lambda _: words, rest)
    rest = _shortened(rest, lambda option: _asked.takes(verb, option))
    if _asked.host is not None and "--host" not in rest and _asked.takes(verb, "--host"):
        rest += f" --host {shlex.quote(_asked.host)}"
    return f"`deploy {verb}{rest}`"


def _shortened(text: str, taken: Callable[[str], bool] = lambda _: True) -> str:
    def option(found: re.Match[str]) -> str:
        short = _asked.short_options.get(found[1])
        return found[0] if short is None or not taken(short) else f"{short} " if found[2] else short

    return _SET.sub(option, text) if "--set " in text else text
