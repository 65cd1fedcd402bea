"""For every test: signals reach what it starts, and hypothesis measures no times."""

import signal
from collections.abc import Iterator
from typing import NoReturn

import pytest
from hypothesis import settings

from orchestrator.core.known_secrets import know

settings.register_profile("untimed", deadline=None)  # other programs share the machine
settings.load_profile("untimed")


def hand_on_no_deafness() -> None:
    """Let every program that is started from here hear the signals that this one was told to ignore.

    The background job of a script ignores SIGINT and SIGQUIT, a program under `nohup` SIGHUP, and what they start
    inherits it. A handler ends at `exec` and what was ignored does not: with one that does nothing, this process stays
    as deaf as it was told to be, and its children begin with their signals as a terminal gives them.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def end_well_on_signals() -> None:
    """A run that is told to end by whatever started it ends as by Ctrl-C: what it has running is taken down."""

    def interrupt(*_: object) -> NoReturn:
        for number in ends:
            signal.signal(number, lambda *_: None)  # once is enough: the next one would end the taking down
        raise KeyboardInterrupt

    ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in ends:
        signal.signal(number, interrupt)


def pytest_configure() -> None:
    end_well_on_signals()
    hand_on_no_deafness()


@pytest.fixture(autouse=True)
def no_secret_outlives_its_test() -> Iterator[None]:
    """What one test makes a secret is an ordinary text in the next."""
    yield
    know(())
