"""The engine of the attacks stands in for sglang: asked the same, both give this project the same to read."""

import json
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from cpu_server import CpuEngine, CpuServer, processes_of
from patience import wait_for

from orchestrator.core import subprocesses
from orchestrator.core.procfs import Process
from orchestrator.core.secrets import Secret
from orchestrator.engine import endpoints
from orchestrator.engine.client import EngineClient
from orchestrator.engine.log import StartupLogParser
from orchestrator.engine.logprobs import read_scored
from orchestrator.engine.metrics import Metric
from orchestrator.engine.requests import chat_body, completion_body, generate_body, scoring_body, tokenize_body
from orchestrator.engine.responses import read_chat, read_chat_events, read_generated, read_server_info
from orchestrator.engine.sse import has_choices, tokens_so_far
from orchestrator.runtimes.base import Status
from orchestrator.runtimes.supervisor import interpreter

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ENGINE = Path(__file__).parents[1] / "support" / "scripted_engine.py"
KEY = Secret("sk-of-the-comparison")
COUNTED = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


class Engines:
    """The same start twice: of sglang, and of what stands in for it."""

    def __init__(self, real: CpuEngine) -> None:
        self._engines = {"real": real, "scripted": replace(real, python=ENGINE)}
        self._started: list[CpuServer] = []

    def start(self, name: str) -> list[CpuServer]:
        """Both, with an API key."""
        servers = []
        for kind, engine in self._engines.items():
            artifacts = engine.artifacts("server.api_key_env=KEY")
            servers.append(engine.start(f"{kind}-{name}", artifacts=artifacts, secrets={"KEY": KEY}))
            self._started.append(servers[-1])
        for server in servers:
            server.wait_until_ready()
        return servers

    def stop(self) -> None:
        for server in self._started:
            server.runtime.stop(server.handle, grace=0)


@pytest.fixture
def engines(cpu_engine: CpuEngine) -> Iterator[Engines]:
    both = Engines(cpu_engine)
    yield both
    both.stop()


def test_scripted_engine_has_the_version_it_stands_for(cpu_engine: CpuEngine) -> None:
    asked = [subprocesses.run([str(python), "-c", interpreter._ASK]) for python in (cpu_engine.python, ENGINE)]
    real, scripted = (json.loads(told.stdout) for told in asked)

    assert (scripted.keys(), scripted["sglang"]) == (real.keys(), real["sglang"])


def test_scripted_engine_answers_writes_and_ends_like_sglang(engines: Engines) -> None:
    servers = engines.start("twin")
    real, scripted = (seen(server) for server in servers)
    assert {what: said for what, said in scripted.items() if said != real[what]} == {}, real
    twin, double = servers
    wait_for(lambda: counters(twin) == counters(double))  # sglang gathers them from its processes, by and by

    real, scripted = (told(server, signal.SIGTERM) for server in servers)
    assert scripted == real


def test_scripted_engine_dies_of_its_scheduler_like_sglang(engines: Engines) -> None:
    for server in (servers := engines.start("orphaned")):
        (scheduler,) = (process for process in processes_of(server.handle) if title(process) == "sglang::scheduler")
        os.kill(scheduler.pid, signal.SIGKILL)
    real, scripted = (ended(server) for server in servers)
    assert scripted == real


def seen(server: CpuServer) -> Mapping[str, object]:
    """All that this project makes of a server that serves."""
    name = server.plan.model.served_name
    asked = chat_body(name, "Count to ten.", tokens=8, ignore_eos=True)
    with EngineClient(server.url, key=KEY) as client:
        first, again = (
            read_generated(client.post(endpoints.GENERATE, generate_body([7] * 64, tokens=5))) for _ in "12"
        )
        chat, streamed = (
            read_chat(client.post(endpoints.CHAT_COMPLETIONS, asked)),
            client.events(endpoints.CHAT_COMPLETIONS, {**asked, **COUNTED}),
        )
        body = completion_body(name, [7] * 16, tokens=5, ignore_eos=True, **COUNTED)
        events = list(client.events(endpoints.COMPLETIONS, body))
        native = list(client.events(endpoints.GENERATE, generate_body([9] * 16, tokens=5)))
        together = read_chat_events(streamed)
        schema = {
            "type": "object",
            "properties": {"ready": {"const": True}},
            "required": ["ready"],
            "additionalProperties": False,
        }
        wanted = {"type": "json_schema", "json_schema": {"name": "ready", "schema": schema}}
        structured = read_chat(
            client.post(endpoints.CHAT_COMPLETIONS, {**chat_body(name, "?", tokens=64), "response_format": wanted})
        )
        tokenized = client.post(endpoints.TOKENIZE, tokenize_body(name, "Once upon a time"))
        scoring = scoring_body([[7] * 16, [9] * 16], top=2, tokens=3, start=4)
        scored = [
            read_scored(each, (7 + 2 * place,) * 16, start=4, tokens=3, top=2)
            for place, each in enumerate(client.post_list(endpoints.GENERATE, scoring))
        ]
        return {
            "health": client.health(tries=3),
            "models": client.models(),
            "model path": client.get(endpoints.MODEL_INFO)["model_path"],
            "server info": read_server_info(client.get(endpoints.SERVER_INFO)),
            "key in server info": client.get(endpoints.SERVER_INFO)["api_key"],
            "without key": client.post_status(endpoints.GENERATE, b"{}", with_key=False),
            "health without key": client.post_status(endpoints.HEALTH, b"", with_key=False) == 401,
            "flush": client.post_status(endpoints.FLUSH_CACHE, b""),
            "unknown path": client.post_status("/nothing", b"{}"),
            "malformed": [
                client.post_status(path, b"{broken") for path in (endpoints.GENERATE, endpoints.CHAT_COMPLETIONS)
            ],
            "counts": [
                (len(each.ids), each.prompt_tokens, each.completion_tokens, each.cached_tokens, each.dp_rank)
                for each in (first, again)
            ],
            "greedy": first.ids == again.ids,
            "chat": (
                chat.completion_tokens,
                chat.finish_reason,
                chat.text == together.text,
                together.completion_tokens,
            ),
            "chat in pieces": together.pieces > 1,
            "tokens at the end": [tokens_so_far(stream[-1]) for stream in (events, native)],
            "structured": (structured.finish_reason, json.loads(structured.text)["ready"]),
            "tokens of a text": len(tokenized) > 0,
            "scores": [
                [(len(part.own), [len(top) for top in part.top]) for part in (each.prompt, each.said)]
                for each in scored
            ],
            "choices": (has_choices(events[0]), has_choices(events[-1])),
            "stages": stages(server),
            "key in log": KEY.reveal() in server.log.read_text(),
            "processes": tree(server),
        }


def counters(server: CpuServer) -> set[str]:
    """The names of the numbers that it exports, of those that this project reads."""
    with EngineClient(server.url, key=KEY) as client:
        return {name for name in client.metrics() if name in set(Metric) or name.startswith((Metric.TTFT, Metric.E2E))}


def stages(server: CpuServer) -> list[str]:
    reader = StartupLogParser()
    for line in server.runtime.logs(server.handle, follow=False):
        reader.feed(line)
    return reader.names


def title(process: Process) -> str:
    """As setproctitle leaves it; no more than the program of others."""
    return Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0].decode()


def tree(server: CpuServer) -> set[tuple[str, bool, bool, bool]]:
    """Of the children with a title: whether they are in the session and the group, and what their environment shows."""
    found = processes_of(server.handle)
    leader = next(process for process in found if process.pid == process.session)
    return {
        (
            title(process),
            process.session == leader.pid,
            os.getpgid(process.pid) == os.getpgid(process.parent),
            b"DEPLOY_SERVER" in Path(f"/proc/{process.pid}/environ").read_bytes(),
        )
        for process in found
        if title(process).startswith("sglang::")
    }


def told(server: CpuServer, number: signal.Signals) -> object:
    """How it ends by a signal to the server alone."""
    (child,) = (process for process in processes_of(server.handle) if process.parent == leader_of(server))
    os.kill(child.pid, number)
    return ended(server)


def leader_of(server: CpuServer) -> int:
    return int(server.handle.identity.split("/")[1])


def ended(server: CpuServer) -> object:
    wait_for(lambda: server.runtime.state(server.handle).status is Status.EXITED)
    wait_for(lambda: not processes_of(server.handle))
    state = server.runtime.state(server.handle)
    return state.exit_code, state.detail
