"""For every test: signals reach what it starts, hypothesis measures no times, and who judges times runs alone."""

import fcntl
import gc
import os
import random
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

from orchestrator.core.known_secrets import know

# `make attack` throws new dice each time, `make test` always the same: it judges the code, not the luck of a run.
settings.register_profile("ours", deadline=None, derandomize="ATTACK" not in os.environ)  # others share the machine
settings.load_profile("ours")
os.environ.setdefault("ATTACK_SEED", str(random.SystemRandom().randrange(1_000_000)) if "ATTACK" in os.environ else "1")


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


def pytest_report_header() -> str:
    return f"attack: ATTACK_SEED={os.environ['ATTACK_SEED']} ATTACK={os.environ.get('ATTACK', '1')}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that judge times come last, when one worker after the other has nothing left to do.

    First of them those that begin with something else: they start what they judge while others still run.
    """
    judged = {item.path for item in items if _judges_times(item)}
    beside = {item.path for item in items if not _judges_times(item)}
    items.sort(key=lambda item: (item.path in judged) + (item.path not in beside))


def pytest_collection_finish() -> None:
    """What was collected stays to the end: no collection of garbage looks through its million objects again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """With several workers a test that judges times waits until no other one runs, and the others wait for it."""
    with ExitStack() as held:
        if hasattr(item.config, "workerinput"):
            shared = item.config._tmp_path_factory.getbasetemp().parent
            with _flocked(shared / "turn", fcntl.LOCK_EX):  # who waits to be alone is not overtaken
                held.enter_context(_flocked(shared / "runs", fcntl.LOCK_EX if _judges_times(item) else fcntl.LOCK_SH))
        return (yield)


def _judges_times(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


@contextmanager
def _flocked(path: Path, kind: int) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, kind)
        yield


def attack_table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """In Markdown, to be pasted."""
    for cells in (("group", "rounds", "survived", "left over", "seconds"), ("---",) * 5, *rows):
        yield f"| {' | '.join(cells)} |"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How the attacks ended, in whichever process they were carried out, as the table of tests/README.md has it."""
    reports = [each for kind in terminalreporter.stats.values() for each in kind if isinstance(each, pytest.TestReport)]
    rows = {value[0]: value for each in reports for name, value in each.user_properties if name == "attack"}
    if rows:
        terminalreporter.section(f"attack, ATTACK_SEED={os.environ['ATTACK_SEED']}")
        terminalreporter.write_line("\n".join(attack_table(rows.values())))


@pytest.fixture(autouse=True)
def no_secret_outlives_its_test() -> Iterator[None]:
    """What one test makes a secret is an ordinary text in the next."""
    yield
    know(())
