"""The summary of a test run, and the check that no test was skipped needlessly."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pytest
from kubernetes_runs import last_run
from schedule import slowest_groups

_SLOWEST: Final = 5
_ON_KUBERNETES: Final = "a real Kubernetes "


def _installs_packages() -> bool:
    """Return whether the tests install Debian packages, by the same condition as `.ci/packages`."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


@dataclass(frozen=True, kw_only=True)
class Excuse:
    """A valid kind of reason to skip a test."""

    kind: str
    pattern: str
    only_without_packages: bool = False  # not valid where the tests install Debian packages


EXCUSES: Final = (
    Excuse(kind="no NVIDIA GPU", pattern=r"NVIDIA GPU"),
    Excuse(kind="the machine has GPUs", pattern=r"this machine has (GPUs|the real tools)"),
    Excuse(kind="no Kubernetes built", pattern=rf"^{_ON_KUBERNETES}.*`make kubernetes`"),
    Excuse(kind="does not apply", pattern=r"a pod of a Deployment is always started again"),
    Excuse(kind="not asked for", pattern=r"`make quark` runs this"),
    Excuse(kind="the machine was busy", pattern=r"^not judged: "),
    Excuse(kind="not root", pattern=r"only root |takes .*root|as root", only_without_packages=True),
    Excuse(kind="no mounts", pattern=r"no file system may be mounted|right to mount"),
    Excuse(
        kind="not in the package index", pattern=r"(cannot|not) (be|to be) had|^no wheel of|^no (skypilot|dstack|vllm)"
    ),
    Excuse(kind="not in Debian", pattern=r"no longer has|no apt here|knows no mirror"),
    Excuse(kind="another Python", pattern=r"is not this machine's own"),
    Excuse(
        kind="package missing",
        pattern=r"not installed|needs openssh|apt-get install|Docker|BuildKit|needs |has no ",
        only_without_packages=True,
    ),
)


def excuse_for(reason: str) -> Excuse | None:
    """Return the excuse for a skip reason; None if the test could have run."""
    for excuse in EXCUSES:
        if re.search(excuse.pattern, reason):
            return None if excuse.only_without_packages and _installs_packages() else excuse
    return None


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def needlessly_skipped(skipped: Sequence[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Return the tests that were skipped without an excuse, with their reasons."""
    return [f"{item.nodeid}: {reason_of(item)}" for item in skipped if excuse_for(reason_of(item)) is None]


def last_lines(reporter: pytest.TerminalReporter, *, seconds: float, real_servers: int) -> Iterator[str]:
    """Yield the lines of the summary."""
    skipped = reporter.stats.get("skipped", [])
    failed = len(reporter.stats.get("failed", [])) + len(reporter.stats.get("error", []))
    ran = len(reporter.stats.get("passed", [])) + failed
    reports = [item for kind in reporter.stats.values() for item in kind if isinstance(item, pytest.TestReport)]
    yield f"{ran} tests run, {failed} failed, {len(skipped)} skipped"
    for reason, times in Counter(map(reason_of, skipped)).most_common():
        excuse = excuse_for(reason)
        yield f"skipped {times} ({excuse.kind if excuse else 'COULD HAVE RUN'}): {reason}"
    if any(reason_of(item).startswith(_ON_KUBERNETES) for item in skipped):
        yield last_run()
    yield from (f"slowest {taken:6.1f} s  {group}" for group, taken in slowest_groups(reports)[:_SLOWEST])
    yield f"{real_servers} real servers started"
    yield f"{int(seconds) // 60}:{int(seconds) % 60:02} minutes in total"
