"""The sessions of a load behind the real gateway: does each stay where its prompts are cached?"""

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
    with pair_in(tmp_path) as made:
        yield made


def cached(pair: Pair, folder: Path) -> dict[str, list[int]]:
    """The cached tokens of each session's requests, in their order."""
    workload = folder / "w.yaml"
    workload.write_text(WORKLOAD)
    ended = pair.deploy.run("bench", NAME, "-w", str(workload), "--output", str(folder / "out"))
    assert ended.returncode == 0, ended.stderr
    found = defaultdict[str, list[int]](list)
    for line in (folder / "out/requests-closed-3.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert record["failure"] is None, record
        found[record["session"]].append(record["cached_tokens"])
    assert len(found) == SESSIONS
    return found


def tokens_of(port: int) -> float:
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {KEY}"}, trust_env=False)
    return read_metrics(answer.content)[Metric.PROMPT_TOKENS]


@pytest.mark.parametrize("policy", ["consistent_hashing", "round_robin"])
def test_consistent_hashing_keeps_session_on_cached_replica(pair: Pair, tmp_path: Path, policy: str) -> None:
    pair.up(f"gateway.policy={policy}")
    found = cached(pair, tmp_path)
    whole = [72, 96, 120]  # of each turn after the first, the prompt and the answer before it
    sticky = [workers for workers in found.values() if workers[1:] == whole]
    assert len(sticky) == SESSIONS if policy == "consistent_hashing" else len(sticky) < SESSIONS
    assert all(tokens_of(port) > 0 for port in pair.ports)
