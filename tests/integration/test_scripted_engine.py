"""Tests that the scripted engine behaves like real sglang.

Both run as replicas of one plan behind one gateway, so these tests also cover the gateway with real sglang.
"""

import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import gateway_pair
import httpx
import pytest
from cpu_server import CpuEngine, CpuServer, processes_of
from gateway_pair import ENGINE, NAME, Pair, pair_in
from prometheus import every_second, missing, scraping
from steady_load import complete
from waits import TIMEOUT, wait_for

from orchestrator.core import subprocesses
from orchestrator.core.procfs import Process
from orchestrator.core.secrets import Secret
from orchestrator.engine import endpoints
from orchestrator.engine.client import EngineClient
from orchestrator.engine.gateway import GENERATION
from orchestrator.engine.log import StartupLogParser
from orchestrator.engine.logprobs import read_scored
from orchestrator.engine.metrics import Metric
from orchestrator.engine.requests import chat_body, completion_body, generate_body, scoring_body, tokenize_body
from orchestrator.engine.responses import ServerInfo, read_chat, read_chat_events, read_generated, read_server_info
from orchestrator.engine.sse import has_choices, tokens_so_far
from orchestrator.runtimes.base import Status
from orchestrator.runtimes.process.runtime import ProcessRuntime
from orchestrator.runtimes.supervisor import interpreter

pytestmark = [pytest.mark.engine, pytest.mark.slow]

KEY = Secret(gateway_pair.KEY)
COUNTED = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.fixture(scope="module")
def pair(cpu_engine: CpuEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Start real sglang and the scripted engine as two replicas of one plan behind a gateway."""
    with pair_in(tmp_path_factory.mktemp("pair")) as scripted_pair:
        mixed_pair = scripted_pair.with_real(cpu_engine)
        mixed_pair.up(f"timeouts.progress_deadline={TIMEOUT}")
        yield mixed_pair


def servers_of(pair: Pair) -> list[CpuServer]:
    """Return the real server and the scripted one, in this order."""
    plan = pair.server.require_plan()
    runtime = ProcessRuntime(pair.deploy.home)
    return [CpuServer(handle=replica.unit, runtime=runtime, plan=plan) for replica in pair.server.replicas]


def test_scripted_engine_reports_same_version_as_sglang(cpu_engine: CpuEngine) -> None:
    results = [subprocesses.run([str(python), "-c", interpreter._ASK]) for python in (cpu_engine.python, ENGINE)]
    real, scripted = (json.loads(result.stdout) for result in results)

    assert (scripted.keys(), scripted["sglang"]) == (real.keys(), real["sglang"])


def test_scripted_engine_responses_and_logs_match_sglang(pair: Pair) -> None:
    real_server, scripted_server = servers_of(pair)
    real, scripted = observe(real_server), observe(scripted_server)
    assert {name: value for name, value in scripted.items() if value != real[name]} == {}, real
    # sglang exports the metrics of its processes with a delay
    wait_for(lambda: metric_names(real_server) == metric_names(scripted_server))


def test_gateway_routes_prompts_to_cached_replica(pair: Pair) -> None:
    prompts = [f"{number} is a number and {number} is its name, which is long enough to be kept" for number in range(8)]
    with pair.client() as client:
        first, second = ([complete(client, prompt=prompt).json() for prompt in prompts] for _ in range(2))
    assert all(answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in second)
    assert [answer["choices"][0]["text"] for answer in first] == [answer["choices"][0]["text"] for answer in second]
    top = json.loads(pair.deploy.run("top", NAME, "--once", "--json").stdout)
    assert top["activity"]["kv_tokens"] == 2 * 65536


@missing
def test_panels_have_data_and_faults_fire_only_their_alerts(pair: Pair, tmp_path: Path) -> None:
    """This must be the last test with `pair`: it ends the servers."""
    done = pair.deploy.run("monitoring", NAME, "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    every_second(tmp_path)
    rules = tmp_path / f"{NAME}.rules.yml"
    rules.write_text(re.sub("for: [12]m", "for: 2s", rules.read_text()))
    panels = json.loads((tmp_path / f"{NAME}.dashboard.json").read_text())["panels"]
    queries = {target["expr"] for panel in panels for target in panel["targets"]}
    assert len(queries) == 27
    real, scripted = servers_of(pair)

    def without_data() -> set[str]:
        streamed = {"model": "tiny", "prompt": "once", "max_tokens": 8, "stream": True}
        for url in (pair.url, real.url, scripted.url):
            headers = {"Authorization": f"Bearer {KEY.reveal()}"}
            assert httpx.post(f"{url}/v1/completions", json=streamed, headers=headers, trust_env=False).is_success
        names = {'up{server="pair",job="deploy"}', 'deploy:generation_tokens:rate5m{server="pair"}'}
        return {query for query in queries if len(prometheus.ask(query)) < (2 if query in names else 1)}

    def firing_alerts() -> set[str]:
        return {alert["labels"]["alertname"] for alert in prometheus.alerts() if alert["state"] == "firing"}

    with scraping(tmp_path) as prometheus:
        wait_for(lambda: not without_data())
        assert firing_alerts() == set()
        control = Path(pair.server.run_dir, "gateway.key").read_text()
        with httpx.Client(base_url=pair.url, headers={"Authorization": f"Bearer {control}"}, trust_env=False) as client:
            worker = next(worker for worker in client.get("/workers").json()["workers"] if worker["url"] == real.url)
            assert client.delete(f"/workers/{worker['id']}").status_code == 202
        wait_for(lambda: firing_alerts() == {"DeployReplicaNotRouted"})
        real_exit = exit_after(real, signal.SIGTERM)
        wait_for(lambda: firing_alerts() == {"DeployReplicaDown"})
        os.kill(pair.pid(pair.server), signal.SIGKILL)
        wait_for(lambda: firing_alerts() == {"DeployReplicaDown", "DeployGatewayDown"})
        assert exit_after(scripted, signal.SIGTERM) == real_exit
        wait_for(lambda: firing_alerts() == {"DeployServerDown", "DeployGatewayDown"})


def test_scripted_engine_dies_with_its_scheduler_like_sglang(cpu_engine: CpuEngine) -> None:
    """`test_up.py` tests the same with real sglang."""
    server = replace(cpu_engine, python=ENGINE).start("orphaned")
    try:
        server.wait_until_ready()
        (scheduler,) = (process for process in processes_of(server.handle) if title(process) == "sglang::scheduler")
        os.kill(scheduler.pid, signal.SIGKILL)
        assert exit_of(server) == (137, "killed by SIGKILL")
    finally:
        server.runtime.stop(server.handle, grace=0)


def without_memory(info: ServerInfo | None) -> ServerInfo | None:
    """Set the size of the cache to 0: the scripted engine has no cache."""
    return info and replace(info, cache_bytes=0.0)


def observe(server: CpuServer) -> Mapping[str, object]:
    """Return everything that this project reads from a ready server."""
    name = server.plan.model.served_name
    chat_request = chat_body(name, "Count to ten.", tokens=8, ignore_eos=True)
    with EngineClient(server.url, key=KEY) as client:
        assert client.post_status(endpoints.FLUSH_CACHE, b"") == 200
        first, again = (
            read_generated(client.post(endpoints.GENERATE, generate_body([7] * 64, tokens=5))) for _ in "12"
        )
        chat, streamed = (
            read_chat(client.post(endpoints.CHAT_COMPLETIONS, chat_request)),
            client.events(endpoints.CHAT_COMPLETIONS, {**chat_request, **COUNTED}),
        )
        body = completion_body(name, [7] * 16, tokens=5, ignore_eos=True, **COUNTED)
        events = list(client.events(endpoints.COMPLETIONS, body))
        native = list(client.events(endpoints.GENERATE, generate_body([9] * 16, tokens=5)))
        joined = read_chat_events(streamed)
        schema = {
            "type": "object",
            "properties": {"ready": {"const": True}},
            "required": ["ready"],
            "additionalProperties": False,
        }
        response_format = {"type": "json_schema", "json_schema": {"name": "ready", "schema": schema}}
        schema_request = {**chat_body(name, "?", tokens=64), "response_format": response_format}
        structured = read_chat(client.post(endpoints.CHAT_COMPLETIONS, schema_request))
        tokenized = client.post(endpoints.TOKENIZE, tokenize_body(name, "Once upon a time"))
        scoring = scoring_body([[7] * 16, [9] * 16], top=2, tokens=3, start=4)
        scored = [
            read_scored(item, (7 + 2 * index,) * 16, start=4, tokens=3, top=2)
            for index, item in enumerate(client.post_list(endpoints.GENERATE, scoring))
        ]
        return {
            "health": client.health(tries=3),
            "health for a gateway": client.status("GET", GENERATION, None),
            "models": client.models(),
            "model path": client.get(endpoints.MODEL_INFO)["model_path"],
            "server info": without_memory(read_server_info(client.get(endpoints.SERVER_INFO))),
            "key in server info": client.get(endpoints.SERVER_INFO)["api_key"],
            "without key": client.post_status(endpoints.GENERATE, b"{}", with_key=False),
            "health without key": client.post_status(endpoints.HEALTH, b"", with_key=False) == 401,
            "unknown path": client.post_status("/nothing", b"{}"),
            "malformed": [
                client.post_status(path, b"{broken") for path in (endpoints.GENERATE, endpoints.CHAT_COMPLETIONS)
            ],
            "counts": [
                (len(answer.ids), answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens, answer.dp_rank)
                for answer in (first, again)
            ],
            "greedy": first.ids == again.ids,
            "chat": (
                chat.completion_tokens,
                chat.finish_reason,
                chat.text == joined.text,
                joined.completion_tokens,
            ),
            "chat in pieces": joined.chunks > 1,
            "tokens at the end": [tokens_so_far(stream[-1]) for stream in (events, native)],
            "structured": (structured.finish_reason, json.loads(structured.text)["ready"]),
            "tokens of a text": len(tokenized) > 0,
            "scores": [
                [(len(scores.actual), [len(top) for top in scores.top]) for scores in (answer.prompt, answer.output)]
                for answer in scored
            ],
            "choices": (has_choices(events[0]), has_choices(events[-1])),
            "stages": stages(server),
            "key in log": KEY.reveal() in server.log.read_text(),
            "processes": tree(server),
        }


def metric_names(server: CpuServer) -> set[str]:
    """Return the names of the exported metrics that this project reads."""
    with EngineClient(server.url, key=KEY) as client:
        return {name for name in client.metrics() if name in set(Metric) or name.startswith((Metric.TTFT, Metric.E2E))}


def stages(server: CpuServer) -> list[str]:
    reader = StartupLogParser()
    for line in server.runtime.logs(server.handle, follow=False):
        reader.feed(line)
    return reader.names


def title(process: Process) -> str:
    """Return the first word of the command line: setproctitle replaces it by a title."""
    return Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0].decode()


def tree(server: CpuServer) -> set[tuple[str, bool, bool, bool]]:
    """Return each child with a title: the title, whether it shares session and group, whether it has our variable."""
    processes = processes_of(server.handle)
    leader = next(process for process in processes if process.pid == process.session)
    return {
        (
            title(process),
            process.session == leader.pid,
            os.getpgid(process.pid) == os.getpgid(process.parent),
            b"DEPLOY_SERVER" in Path(f"/proc/{process.pid}/environ").read_bytes(),
        )
        for process in processes
        if title(process).startswith("sglang::")
    }


def exit_after(server: CpuServer, number: signal.Signals) -> object:
    """Send a signal to the server process alone; return exit code and detail."""
    (child,) = (process for process in processes_of(server.handle) if process.parent == leader_of(server))
    os.kill(child.pid, number)
    return exit_of(server)


def leader_of(server: CpuServer) -> int:
    return int(server.handle.runtime_id.split("/")[1])


def exit_of(server: CpuServer) -> object:
    wait_for(lambda: server.runtime.state(server.handle).status is Status.EXITED)
    wait_for(lambda: not processes_of(server.handle))
    state = server.runtime.state(server.handle)
    return state.exit_code, state.detail
