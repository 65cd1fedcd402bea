"""With a hostile endpoint, every command ends in time, with an error and without using much more memory."""

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from signal import SIGINT

import pytest
from deployment import Deployment, Deployments
from forked import Ended
from hostile_server import BEHAVIORS, hostile
from rounds import attack

from orchestrator.runtimes.supervisor.record import read_record, run_marker, write_record

pytestmark = pytest.mark.attack

ROUNDS = 40
AT_ONCE = 8  # they mostly wait
MAX_EXTRA_KIB = 64 << 10  # more than with a normal endpoint
TIMEOUT_S = 4.0  # then the command gets a Ctrl-C


@dataclass(frozen=True)
class Query:
    """A command, the paths that it needs, the optional ones, and its exit code on a failure."""

    words: tuple[str, ...]
    needed: tuple[str, ...]
    optional: tuple[str, ...]
    failure_code: int


COMMANDS = (
    Query(("ask", "target", "Once"), ("/v1/completions",), (), 6),
    Query(
        ("smoke", "target"), ("/generate", "/v1/chat/completions", "/v1/models", "/metrics", "/v1/completions"), (), 8
    ),
    Query(
        ("logprobs", "target", "--max-length", "64"), ("/tokenize", "/generate", "/model_info"), ("/server_info",), 8
    ),
    Query(("status", "target", "--json"), (), ("/health",), 8),
    Query(
        (
            "bench",
            "target",
            "--workload",
            "smoke-tiny",
            "--request-rate",
            "20",
            "--requests",
            "4",
            "--output",
            "measured",
        ),
        ("/v1/models", "/v1/completions"),
        ("/server_info", "/metrics", "/flush_cache"),
        10,
    ),
)
VALID = {("/v1/completions", "stream-of-no-text")}  # may succeed


def test_commands_survive_hostile_endpoints(deployments: Deployments) -> None:
    source = deployments(-1)
    assert source.run(*source.up()).code == 0
    normal = {command: run(deployments(-2 - index), source, command, {})[0] for index, command in enumerate(COMMANDS)}
    assert {command.words[0]: ended.code for command, ended in normal.items()} == dict.fromkeys(
        ("ask", "smoke", "logprobs", "status", "bench"), 0
    ), [ended.stderr for ended in normal.values()]

    def ask(number: int, rng: Random) -> Iterator[str]:
        command = COMMANDS[number % len(COMMANDS)]
        path, behavior = rng.choice([*command.needed, *command.optional]), rng.choice(list(BEHAVIORS))
        yield from (
            f"{command.words[0]}, {path} {behavior}: {fault}" for fault in problems(number, command, path, behavior)
        )

    def problems(number: int, command: Query, path: str, behavior: str) -> Iterator[str]:
        ended, interrupted = run(deployments(number), source, command, {path: behavior})
        codes = {command.failure_code, 130} if interrupted else {command.failure_code}
        if path in command.optional or (path, behavior) in VALID:
            codes |= {0}
        yield from ended.faults(*codes)
        if (more := ended.peak_kib - normal[command].peak_kib) > MAX_EXTRA_KIB:
            yield f"{more >> 10} MiB more than usual"

    attack("hostile endpoints", ROUNDS, ask, at_once=AT_ONCE)
    assert source.run("down", "target").code == 0


def run(deployment: Deployment, source: Deployment, command: Query, rules: Mapping[str, str]) -> tuple[Ended, bool]:
    """Run a command against a hostile address of `source`'s server; return the result, and whether Ctrl-C was sent."""
    with hostile(rules) as url:
        shutil.copytree(source.home / "runs", deployment.home / "runs")
        (run_dir,) = (path.parent for path in deployment.home.glob("runs/*/*/process.json"))
        record = read_record(run_dir)
        assert record is not None
        write_record(run_dir, dataclasses.replace(record, url=url, token=run_marker(run_dir)))
        running = deployment.start(*command.words)
        if interrupted := bool(rules) and not running.ends_within(TIMEOUT_S):
            running.send(SIGINT)
        return running.wait(), interrupted
