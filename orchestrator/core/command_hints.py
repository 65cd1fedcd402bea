"""Hints with complete commands, which repeat the user's own profile, `--set` and `--host`.

The code that writes a hint does not know the options of the user's command. It writes `deploy stage PROFILE`; the
command line registers the user's options here, and the console expands every hint that it shows.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

PROFILE: Final = "PROFILE"  # in a command of a hint: replaced by the user's profile and its `--set`
_COMMAND: Final = re.compile(r"`deploy ([a-z]+(?: [a-z]+)?)([^`]*)`")


@dataclass
class Invocation:
    """The options of one command line that hints repeat."""

    profile: str | None = None  # as the user wrote it
    overrides: tuple[str, ...] = ()  # the values of `--set`
    host: str | None = None
    has_option: Callable[[str, str], bool] = lambda _verb, _option: False  # for a command, given as its words


_invocation = Invocation()


def set_invocation(
    profile: str | None,
    overrides: Sequence[str],
    host: str | None,
    has_option: Callable[[str, str], bool] = Invocation.has_option,
) -> None:
    """Register the options of the user's command, replacing earlier ones.

    `has_option` returns whether a command, given as its words, has an option.
    """
    _invocation.profile, _invocation.overrides = profile, tuple(overrides)
    _invocation.host, _invocation.has_option = host, has_option


def set_profile(profile: str, overrides: Sequence[str]) -> None:
    """Register the profile of the user's server, unless the user named a profile."""
    if _invocation.profile is None:
        _invocation.profile, _invocation.overrides = profile, tuple(overrides)


@contextmanager
def hints_for(profile: str, overrides: Sequence[str]) -> Iterator[None]:
    """Use this profile in the hints of a block, and in the hint of an error that ends the block."""
    before = _invocation.profile, _invocation.overrides
    _invocation.profile, _invocation.overrides = profile, tuple(overrides)
    yield
    _invocation.profile, _invocation.overrides = before


def profile_words(name: str) -> str:
    """Return the words for a command's profile and `--set`: the user's, or `name` if the user named no profile."""
    return shlex.join(
        [_invocation.profile or name, *(word for override in _invocation.overrides for word in ("--set", override))]
    )


def expand_commands(text: str) -> str:
    """Return `text` with the user's profile, `--set` and `--host` in each of its `deploy` commands."""
    return _COMMAND.sub(_expanded, text) if "`deploy " in text else text


def left_running(target: str) -> str:
    """Return a note that an interrupted command left its server, a name or a URL, running."""
    stop = "" if "://" in target else f"; `deploy down {target}` stops it"
    return f"`{target}` is left running{stop}"


def _expanded(match: re.Match[str]) -> str:
    verb, rest = match[1], match[2]
    if _invocation.profile is not None:
        words = profile_words(_invocation.profile)
        rest = re.sub(rf"\b{PROFILE}\b", lambda _: words, rest)
    if _invocation.host is not None and "--host" not in rest and _invocation.has_option(verb, "--host"):
        rest += f" --host {shlex.quote(_invocation.host)}"
    return f"`deploy {verb}{rest}`"
