"""Hooks and fixtures for all tests: signals, random seeds, the order of tests, and the summary of a run."""

import gc
import importlib
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch_forks
from command_line import commands_forked
from forked import Forks, forking
from hypothesis import settings
from json_schemas import check_all_outputs
from kubernetes_runs import MARKER, record_run
from real_servers import RealServers
from schedule import GroupScheduling, slowest_groups, sort_slowest_first
from summary import last_lines, needlessly_skipped

from orchestrator.core.console import expect_json
from orchestrator.core.secrets import set_known

# `make attack` uses a new random seed each time; the other targets always use the same seed.
MORE_ATTACKS = float(os.environ.get("ATTACK", "1")) > 1
settings.register_profile("ours", deadline=None, derandomize=not MORE_ATTACKS)
settings.load_profile("ours")
os.environ.setdefault("ATTACK_SEED", str(random.SystemRandom().randrange(1_000_000)) if MORE_ATTACKS else "1")

# The scripted engine starts `python3`, which may be a pyenv shim that takes as long as the engine itself.
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
os.environ.setdefault("GOGC", "400")  # fewer garbage collections: a fifth of the CPU time of each kubectl

FORKED_RANKS = Path(__file__).parent / "support/forked_ranks"
STARTED = pytest.StashKey[float]()
SERVERS = pytest.StashKey[RealServers]()


def reset_ignored_signals_for_children() -> None:
    """Let child processes receive the signals that this process ignores.

    A background job of a script ignores SIGINT and SIGQUIT, and a program under `nohup` SIGHUP. Child processes inherit
    ignored signals, but not handlers. With an empty handler, this process still ignores the signal, and its children
    start with the default action.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def clean_up_on_signals() -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that fixtures stop their servers."""

    def interrupt(*_: object) -> NoReturn:
        for number in numbers:
            signal.signal(number, lambda *_: None)  # a second signal must not interrupt the cleanup
        raise KeyboardInterrupt

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, interrupt)


def pytest_configure() -> None:
    check_all_outputs()
    clean_up_on_signals()
    reset_ignored_signals_for_children()


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        session.config.stash[STARTED] = time.monotonic()
        session.config.stash[SERVERS] = RealServers(session.config._tmp_path_factory.getbasetemp())
        session.config.stash[SERVERS].start()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a test was skipped needlessly."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("--fail-on-needless-skips"):
        return
    if session.exitstatus == pytest.ExitCode.OK and needlessly_skipped(reporter.stats.get("skipped", [])):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_report_header() -> str:
    return f"attack: ATTACK_SEED={os.environ['ATTACK_SEED']} ATTACK={os.environ.get('ATTACK', '1')}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-needless-skips", action="store_true", help="fail if a skipped test could have run on this machine"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sort_slowest_first(items)
    for item in items:
        if "cluster_of_tests" in getattr(item, "fixturenames", ()):
            item.add_marker(MARKER)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:  # noqa: ANN401 - xdist's own
    return GroupScheduling(config, log)


def import_in_different_order(config: pytest.Config) -> None:
    """Import the tests, starting at a different file in each worker, so that workers share the compiled files.

    In a fresh clone, each worker would otherwise compile all tests, more than half of the CPU time of the collection.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ or config.args not in ([], ["tests"]):
        return
    tests = Path(__file__).parent
    files = sorted(file for kind in ("unit", "integration") for file in tests.glob(f"{kind}/**/test_*.py"))
    worker, workers = (int(os.environ[f"PYTEST_XDIST_WORKER{name}"].removeprefix("gw")) for name in ("", "_COUNT"))
    begin = len(files) * worker // workers
    for file in (*files[begin:], *files[:begin]):
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))
        with suppress(Exception, pytest.skip.Exception):  # the collection reports errors
            importlib.import_module(file.stem)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Disable garbage collection during the collection of tests: it takes a quarter of that time."""
    gc.disable()
    try:
        import_in_different_order(session.config)
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def attack_table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    for cells in (("group", "rounds", "survived", "left over", "seconds"), ("---",) * 5, *rows):
        yield f"| {' | '.join(cells)} |"


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode, config: pytest.Config
) -> None:
    """Print the table of attacks and the summary of the run, for the tests of all workers."""
    reports = [
        report for kind in terminalreporter.stats.values() for report in kind if isinstance(report, pytest.TestReport)
    ]
    rows = {value[0]: value for report in reports for name, value in report.user_properties if name == "attack"}
    if rows:
        terminalreporter.section(f"attack, ATTACK_SEED={os.environ['ATTACK_SEED']}")
        terminalreporter.write_line("\n".join(attack_table(rows.values())))
    terminalreporter.section("this run")
    seconds, servers = time.monotonic() - config.stash[STARTED], config.stash[SERVERS].stop()
    option = config.option
    whole = config.args in ([], ["tests"]) and not (option.keyword or option.markexpr or config.getoption("lf", False))
    if whole or "KUBERNETES_RUN" in os.environ:
        record_run(reports)
    skipped = needlessly_skipped(terminalreporter.stats.get("skipped", []))
    if hasattr(config, "cache"):
        if exitstatus == pytest.ExitCode.TESTS_FAILED and not skipped:
            config.cache.set("tests/failed", sorted({report.nodeid for report in reports if report.failed}))
        config.cache.set("tests/seconds", {group: round(taken, 1) for group, taken in slowest_groups(reports)})
    for line in last_lines(terminalreporter, seconds=seconds, real_servers=servers):
        terminalreporter.write_line(line)
    if config.getoption("--fail-on-needless-skips"):
        for test in skipped:
            terminalreporter.write_line(f"FAILED: skipped, but could have run on this machine: {test}")


@pytest.fixture(scope="session")
def forked_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let real servers fork their processes, which takes a third of the CPU time of a start with spawned processes."""
    run, folder = os.getpid(), tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run, folder = os.getppid(), folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(FORKED_RANKS), prepend=os.pathsep)
        patch.setenv(torch_forks.FOLDER, str(folder / f"torch-{run}"))
        yield


@pytest.fixture(scope="session")
def forks(forked_ranks: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:  # noqa: ARG001
    """Fork the commands of `CommandLine` from one process for the whole session."""
    with forking(tmp_path_factory.mktemp("forks")) as running, commands_forked(running):
        yield running


@pytest.fixture(autouse=True)
def reset_secrets_and_json_errors() -> Iterator[None]:
    """Forget known secrets and turn off JSON errors after each test."""
    yield
    set_known(())
    expect_json(False)
