"""Record in a committed file when the tests on a real Kubernetes last passed."""

import json
import os
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

MARKER: Final = "real_kubernetes"
ROOT: Final = Path(__file__).parents[2]
LAST_RUN: Final = Path(os.environ.get("KUBERNETES_RUN") or ROOT / "tests" / "integration" / "kubernetes_run.json")


def record_run(reports: Sequence[pytest.TestReport], path: Path = LAST_RUN) -> None:
    """Write the date, the commit and the number of tests, if all tests on a real Kubernetes passed."""
    called = [report for report in reports if MARKER in report.keywords and report.when == "call"]
    failed = [report for report in reports if MARKER in report.keywords and report.failed]
    passed = sum(item.passed for item in called)
    if failed or not passed:
        return
    record = {"when": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit(), "tests": passed}
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def last_run(path: Path = LAST_RUN) -> str:
    """Return a line for the summary."""
    if not path.is_file():
        return "real Kubernetes: its tests have never run"
    record = json.loads(path.read_text(encoding="utf-8"))
    return f"real Kubernetes: {record['tests']} tests last passed on {record['when']}, at commit {record['commit']}"


def commit() -> str:
    """Return the commit of this checkout, with `-dirty` if files are modified; `unknown` outside a repository."""
    argv = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty", "--abbrev=12"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
