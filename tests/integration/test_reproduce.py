"""Tests of `deploy reproduce` with servers of the scripted engine."""

import json
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import CommandLine, processes_with
from ports import free_port

from orchestrator.core.paths import Home, data_root

pytestmark = pytest.mark.slow
ENGINE = Path(__file__).parents[1] / "support" / "scripted_engine.py"
SHIPPED = data_root() / "profiles"


@dataclass(frozen=True)
class Publication:
    """A user's file of published results, with a profile and a workload of the user."""

    file: Path
    profile: Path
    port: int


@pytest.fixture
def publication(tmp_path: Path) -> Publication:
    port, profile, workload = free_port(), tmp_path / "tiny-again.yaml", tmp_path / "two-rates.yaml"
    changes = (
        ("port: 30010", f"port: {port}"),
        ("engine: sglang-0.5.14-cpu", f"engine: {{use: sglang-0.5.14-cpu, python: {ENGINE}}}"),
        ("model: tiny", "model: {use: tiny, questions: null}"),
    )
    profile.write_text(changed(SHIPPED / "cpu-tiny.yaml", *changes))
    workload.write_text(
        changed(
            SHIPPED / "workloads" / "smoke-tiny.yaml",
            ("request_rates: [1.0, 2.0, 4.0]", "request_rates: [4.0, 5.0]"),
            ("requests: 40", "requests: 10"),
            ("output_tokens: 24", "output_tokens: 12"),
        )
    )
    values, _, _ = (SHIPPED / "published" / "wafer-glm52.yaml").read_text().partition("\nreproduce:")
    runs = f"[{{profile: {profile}, workloads: [{workload}]}}]"
    file = tmp_path / "mine.yaml"
    file.write_text(f"{values}\nreproduce:\n  summary: on a CPU\n  runs: {runs}\n")
    return Publication(file, profile, port)


def changed(file: Path, *changes: tuple[str, str]) -> str:
    """Return the text of a file with replacements; fail if an old text is missing."""
    text = file.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def commands(text: str) -> list[str]:
    """Return the commands in the order of their start, from lines like `[2/4] deploy bench …`."""
    return [line.partition("] deploy ")[2] for line in text.splitlines() if "] deploy " in line]


def test_interrupted_reproduction_is_resumed(publication: Publication, tmp_path: Path) -> None:
    deploy, results = CommandLine(Home(tmp_path / "home")), tmp_path / "results"
    words = ["reproduce", str(publication.file), "--output", str(results)]

    with deploy.running(*words) as first:
        first.wait_for("no step `stage` for `tiny-again`")
        first.wait_for(r"^\[4/6\] deploy bench")
        first.wait_for("5 rps: 10 requests")
        code, output = first.end(signal.SIGINT)
    assert code == 130, output
    assert "repeat the command to continue" in output
    assert_no_server_is_left(deploy, publication.port)

    second = deploy.run(*words)
    assert second.returncode == 0, second.stderr
    assert [command.split()[0] for command in commands(second.stderr)] == ["up", "bench", "report", "down"]
    assert commands(second.stderr)[1].endswith("--resume")
    assert "4 rps: 10 requests" not in second.stderr, "a finished rate was measured again"
    assert_no_server_is_left(deploy, publication.port)
    (comparison,) = json.loads((results / "report.json").read_text())["comparisons"]
    assert [row["rate_rps"] for row in comparison["rows"]] == [4.0, 5.0]
    assert {"another-workload", "another-hardware"} <= {reason["kind"] for reason in comparison["reasons"]}
    assert "NOT COMPARABLE" in second.stderr
    assert "not comparable" in (results / "report.html").read_text().lower()

    third = deploy.run(*words)
    assert (third.returncode, commands(third.stderr)) == (0, [])


def test_reproduce_from_running_server_keeps_it_running(publication: Publication, tmp_path: Path) -> None:
    deploy, results = CommandLine(Home(tmp_path / "home")), tmp_path / "results"
    words = ["reproduce", str(publication.file), "--from", "tiny-again", "--output", str(results)]
    missing = deploy.run(*words)
    assert (missing.returncode, "no server `tiny-again` found" in missing.stderr) == (6, True), missing.stderr

    assert deploy.run("up", str(publication.profile), "--set", "env.OF_THE_USER=1").returncode == 0
    other = deploy.run(*words)
    assert other.returncode == 2, other.stderr
    same = deploy.run(*words, "--set", "env.OF_THE_USER=1")
    assert same.returncode == 0, same.stderr
    assert [command.split()[0] for command in commands(same.stderr)] == ["smoke", "bench", "report"]
    listed = json.loads(deploy.run("status", "--json").stdout)  # other tests may have containers
    assert "tiny-again" in [server["name"] for server in listed]
    assert processes_with(f"--port {publication.port}")

    bench = deploy.run(
        "bench", "tiny-again", "--request-rate", "5", "--requests", "10", "--output", str(tmp_path / "bench")
    )
    assert bench.returncode == 0, bench.stderr
    assert "note: workload `smoke-tiny`: 500 in / 24 out" in bench.stderr  # the profile's workload

    assert deploy.run("down", "tiny-again").returncode == 0
    assert_no_server_is_left(deploy, publication.port)


def assert_no_server_is_left(deploy: CommandLine, port: int) -> None:
    servers = json.loads(deploy.run("status", "--json").stdout)
    assert "tiny-again" not in [server["name"] for server in servers]
    assert not processes_with(f"--port {port}")
