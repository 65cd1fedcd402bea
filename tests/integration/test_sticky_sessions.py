"""Tests that the real gateway routes a session's requests to the replica that has cached its prompts."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gateway_pair import KEY, NAME, Pair, pair_in

from orchestrator.engine.metrics import Metric, read_metrics

SESSIONS = 12
WORKLOAD = f"""
sessions: {{count: {SESSIONS}, turns: [4, 4], first_prompt_tokens: 64, turn_tokens: 16, output_tokens: 8}}
load: closed
concurrency: 3
"""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with pair_in(tmp_path) as pair:
        yield pair


def cached_tokens(pair: Pair, folder: Path) -> dict[str, list[int]]:
    """Run a benchmark; return the cached tokens of each session's requests in order."""
    workload = folder / "w.yaml"
    workload.write_text(WORKLOAD)
    done = pair.deploy.run("bench", NAME, "-w", str(workload), "--output", str(folder / "out"))
    assert done.returncode == 0, done.stderr
    sessions = defaultdict[str, list[int]](list)
    for line in (folder / "out/requests-closed-3.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert record["failure"] is None, record
        sessions[record["session"]].append(record["cached_tokens"])
    assert len(sessions) == SESSIONS
    return sessions


def prompt_tokens(port: int) -> float:
    headers = {"Authorization": f"Bearer {KEY}"}
    response = httpx.get(f"http://127.0.0.1:{port}/metrics", headers=headers, trust_env=False)
    return read_metrics(response.content)[Metric.PROMPT_TOKENS]


@pytest.mark.parametrize("policy", ["consistent_hashing", "round_robin"])
def test_consistent_hashing_keeps_session_on_cached_replica(pair: Pair, tmp_path: Path, policy: str) -> None:
    pair.up(f"gateway.policy={policy}")
    sessions = cached_tokens(pair, tmp_path)
    expected = [72, 96, 120]  # after the first turn: the previous prompt and its answer
    sticky = [tokens for tokens in sessions.values() if tokens[1:] == expected]
    assert len(sticky) == SESSIONS if policy == "consistent_hashing" else len(sticky) < SESSIONS
    assert all(prompt_tokens(port) > 0 for port in pair.ports)
