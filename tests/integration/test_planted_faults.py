"""Tests each check of the smoke test, and the soak, with a fault planted in a real sglang on this CPU.

docs/how-to/smoke-test.md lists the checks whose faults a CPU cannot have. test_real_smoke.py tests servers that lack
features of their plan, wrong answers, and a stalled scheduler.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cpu_server import CpuEngine, CpuServer

from orchestrator.diagnose.match import diagnose
from orchestrator.engine.client import EngineClient
from orchestrator.servers.group import Server
from orchestrator.servers.soaks import memory_gauges
from orchestrator.verify import soak
from orchestrator.verify.checks import CHECKS
from orchestrator.verify.client import SmokeClient
from orchestrator.verify.memory import MIN_SECONDS
from orchestrator.verify.report import CheckOutcome, Verdict
from orchestrator.verify.target import target_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]
PLANTED = Path(__file__).parents[1] / "support" / "planted"
FAULTS = {  # fault: (check, evidence)
    "temperature ignored": ("sampling varies", "rank 0 returns the same 32 tokens twice at temperature 2"),
    "greedy ignored": ("greedy deterministic", "two greedy answers differ at token "),
    "a chunk is lost": ("streaming matches", "streaming gives "),
    "cut answers": ("token counts", "output ids: 15, not 16; "),
    "no cache": ("prefix cache", "a repeated prompt of 1024 tokens: 0 from cache"),
    "grammar ignored": ("structured output", 'JSON that does not match the schema: "yes"'),
    "calls by qwen25": (
        "tool call parsed",
        "`tool-call-parser` glm47 left a call in the text: '<tool_call>get_weather",
    ),
    "thinks by kimi": ("reasoning separated", "`reasoning-parser` glm45 left `<think>` in the answer: "),
    "a mistake is an error of the server": ("bad requests rejected", "messages of the wrong type returns status 500"),
    "too long is an error of the server": ("overlong prompt rejected", "500"),
    "nothing is counted": ("metrics", r"`sglang:generation_tokens_total` went from (\d+) to \1 over 17 tokens"),
    "a fault in the log": ("clean log", ""),
}
CONTROLS = {"calls by qwen25": "calls by glm47", "thinks by kimi": "thinks by glm45"}  # the same with the right parser
SOAK_FAULTS = {  # fault: (minimum seconds, evidence)
    "requests fail": (10, r"\d+ of \d+ requests failed, the first one of kind \w+: .*500"),
    "cache tokens are held": (5, r"[\d,]+ cache tokens are in use without a request, \d+ before"),
    "host memory leaks": (MIN_SECONDS, r"host memory keeps growing: [\d,]+(, [\d,]+){3} MiB at least"),
}


@dataclasses.dataclass(frozen=True)
class FaultyServer:
    """A server with a fault that can be switched on."""

    server: CpuServer
    file: Path

    def run_check(self, check: str, fault: str = "", *, minutes: float = 0.0) -> CheckOutcome:
        handle = Server.of(self.server.handle, self.server.runtime)
        target = dataclasses.replace(
            target_of(self.server.plan, url=self.server.url, api_key=None),
            tool_parser="glm47",
            reasoning_parser="glm45",
            soak_seconds=minutes * 60,
            memory=memory_gauges(handle, self.server.plan),
        )
        self.file.write_text(fault)
        try:
            with EngineClient(self.server.url, key=None) as client:
                log = self.server.log
                faults = lambda: diagnose(log.read_text().splitlines()).degraded  # noqa: E731
                smoke_client = SmokeClient(target, client, seed=len(fault), faults=faults)
                if check == "clean log":
                    smoke_client.usage("once", tokens=1)  # makes the server log its fault
                return dict(CHECKS)[check](smoke_client)
        finally:
            self.file.write_text("")


@pytest.fixture(scope="module")
def faulty(cpu_engine: CpuEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    file = tmp_path_factory.mktemp("planted") / "fault"
    server = cpu_engine.start("planted", f"env.PYTHONPATH={PLANTED}", f"env.PLANTED_FAULT={file}")
    try:
        server.wait_until_ready()
        yield FaultyServer(server, file)
    finally:
        server.runtime.stop(server.handle, grace=0)


@pytest.mark.parametrize("name", FAULTS)
def test_check_fails_only_with_its_planted_fault(faulty: FaultyServer, name: str) -> None:
    check, evidence = FAULTS[name]
    control, outcome = faulty.run_check(check, CONTROLS.get(name, "")), faulty.run_check(check, name)
    print(f"{check}: {control.verdict}: {control.evidence}\n{name}: {outcome.verdict}: {outcome.evidence}")
    assert control.verdict is Verdict.PASSED
    assert outcome.verdict is Verdict.FAILED
    assert re.search(evidence, outcome.evidence)


def test_soak_passes_and_monitors_memory(faulty: FaultyServer) -> None:
    outcome = faulty.run_check("soak", minutes=1.05 * MIN_SECONDS / 60)
    print(outcome.evidence)
    assert outcome.verdict is Verdict.PASSED
    assert re.search(r"; host memory [\d,]+, then [\d,]+ MiB$", outcome.evidence)


@pytest.mark.parametrize("name", SOAK_FAULTS)
def test_soak_fails_with_its_planted_fault(faulty: FaultyServer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_DRAIN_SECONDS", 15.0)  # aborted requests end later on a busy machine
    seconds, evidence = SOAK_FAULTS[name]
    outcome = faulty.run_check("soak", name, minutes=1.05 * seconds / 60)
    print(outcome.evidence)
    assert outcome.verdict is Verdict.FAILED
    assert re.match(evidence, outcome.evidence)
