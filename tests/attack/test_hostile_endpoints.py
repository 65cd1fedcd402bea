"""Endpoints that keep to no rule, under every command that asks one: it ends, says so, and stays small."""

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
AT_ONCE = 8  # most of them wait
MORE_KIB = 64 << 10  # than the same command takes with an endpoint that keeps to the rules
TIMEOUT_S = 4.0  # what takes longer is ended by Ctrl-C


@dataclass(frozen=True)
class Asks:
    """A command, the paths whose answers it stands on, others that it asks, and its exit code where those are bad."""

    words: tuple[str, ...]
    needed: tuple[str, ...]
    asked: tuple[str, ...]
    fails: int


COMMANDS = (
    Asks(("ask", "target", "Once"), ("/v1/completions",), (), 6),
    Asks(
        ("smoke", "target"), ("/generate", "/v1/chat/completions", "/v1/models", "/metrics", "/v1/completions"), (), 8
    ),
    Asks(("logprobs", "target", "--max-length", "64"), ("/tokenize", "/generate", "/model_info"), ("/server_info",), 8),
    Asks(("status", "target", "--json"), (), ("/health",), 8),
    Asks(
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
TRUE = {("/v1/completions", "stream-of-no-text")}  # what may be a success all the same


def test_commands_survive_hostile_endpoints(deployments: Deployments) -> None:
    source = deployments(-1)
    assert source.run(*source.up()).code == 0
    usual = {command: asked(deployments(-2 - index), source, command, {})[0] for index, command in enumerate(COMMANDS)}
    assert {command.words[0]: ended.code for command, ended in usual.items()} == dict.fromkeys(
        ("ask", "smoke", "logprobs", "status", "bench"), 0
    ), [ended.stderr for ended in usual.values()]

    def ask(number: int, dice: Random) -> Iterator[str]:
        command = COMMANDS[number % len(COMMANDS)]
        path, behavior = dice.choice([*command.needed, *command.asked]), dice.choice(list(BEHAVIORS))
        yield from (
            f"{command.words[0]}, {path} {behavior}: {fault}" for fault in endured(number, command, path, behavior)
        )

    def endured(number: int, command: Asks, path: str, behavior: str) -> Iterator[str]:
        ended, interrupted = asked(deployments(number), source, command, {path: behavior})
        codes = {command.fails, 130} if interrupted else {command.fails}
        if path in command.asked or (path, behavior) in TRUE:
            codes |= {0}
        yield from ended.faults(*codes)
        if (more := ended.peak_kib - usual[command].peak_kib) > MORE_KIB:
            yield f"{more >> 10} MiB more than usual"

    attack("hostile endpoints", ROUNDS, ask, at_once=AT_ONCE)
    assert source.run("down", "target").code == 0


def asked(deployment: Deployment, source: Deployment, command: Asks, rules: Mapping[str, str]) -> tuple[Ended, bool]:
    """How it ended, and whether only Ctrl-C ended it; the server is the other home's, at a hostile address."""
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
