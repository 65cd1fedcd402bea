"""Run Debian's Prometheus and promtool on the files of `deploy monitoring`."""

import json
import math
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from ports import free_port
from waits import TIMEOUT

from orchestrator.monitoring.request import MonitoringRequest

PACKAGE = "prometheus is not installed: apt-get install prometheus"
_NOTHING = {"name": None, "profile": None, "overrides": (), "workload": None, "expected": (), "target": None}
is_installed = shutil.which("promtool") is not None and shutil.which("prometheus") is not None
missing = pytest.mark.skipif(not is_installed, reason=PACKAGE)


def monitoring_request(**asked: object) -> MonitoringRequest:
    return MonitoringRequest(**{**_NOTHING, "gpu_exporter": None, **asked})  # type: ignore[arg-type]


def promtool(*words: str | Path) -> str:
    """Run promtool; return its stdout, and fail if it fails."""
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def firing(
    rules: Path,
    series: Mapping[str, str],
    *,
    after: Sequence[str],
    alerts: Sequence[str],
    values: Mapping[str, float] | None = None,
) -> None:
    """Fail unless exactly these alerts fire at each time in `after`, with `series` scraped every 15 s.

    `values` are the expected values of expressions without labels at the last time.
    """
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in alerts]
    requested = 'count by (alertname) (ALERTS{alertstate="firing"})'
    numbers = [
        {"expr": expression, "eval_time": after[-1], "exp_samples": [{"labels": "{}", "value": value}]}
        for expression, value in (values or {}).items()
    ]
    fires = [{"expr": requested, "eval_time": time, "exp_samples": samples} for time in after]
    case = {
        "interval": "15s",
        "input_series": [{"series": name, "values": scraped} for name, scraped in series.items()],
        "promql_expr_test": [*fires, *numbers],
    }
    file = rules.with_name("case.yml")
    tests = {"rule_files": [rules.name], "evaluation_interval": "15s", "tests": [case]}
    file.write_text(yaml.safe_dump(tests))
    promtool("test", "rules", file)


def every_second(folder: Path) -> None:
    """Set the scrape and evaluation intervals to 1 s, so that tests do not wait for minutes."""
    for path in folder.glob("*.yml"):
        path.write_text(path.read_text().replace(": 15s", ": 1s"))


class Prometheus:
    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def is_ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def ask(self, expression: str) -> list[float]:
        """Return the current values of an expression, without NaN."""
        answer = self._client.get("/api/v1/query", params={"query": expression})
        result = json.loads(answer.text)
        assert result["status"] == "success", result
        values = [float(sample["value"][1]) for sample in result["data"]["result"]]
        return [value for value in values if not math.isnan(value)]

    def alerts(self) -> list[dict[str, Any]]:
        """Return the pending and firing alerts."""
        answer = self._client.get("/api/v1/alerts")
        return list(json.loads(answer.text)["data"]["alerts"])


@contextmanager
def scraping(folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus with the configuration in a folder."""
    url = f"127.0.0.1:{free_port()}"
    argv = ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address={url}", "--storage.tsdb.path=data"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(argv, cwd=folder, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://{url}", timeout=TIMEOUT, trust_env=False) as client:
            prometheus, deadline = Prometheus(client), time.monotonic() + TIMEOUT
            while not prometheus.is_ready():
                assert process.poll() is None, (folder / "prometheus.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield prometheus
    finally:
        process.terminate()
        process.wait()
