"""Test `deploy show --capacity` and the capacity line of a dry run, which need no GPU."""

import json
import re
from pathlib import Path

import pytest
from user_profiles import add_profiles

from orchestrator.cli.show import command as show
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.planner.capacity import capacity_table, note_capacity
from orchestrator.planner.planning import load
from orchestrator.servers.start.preview import preview
from orchestrator.servers.start.request import UpRequest


def test_capacity_is_shown_as_table(capsys: pytest.CaptureFixture[str]) -> None:
    show(profile="mi355x-tp4dp2", capacity=True)
    rows = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["cache per GPU"].split("  ")[-1].strip() == "0.85 x 307.4 GB - 109.5 GB"
    assert "2,713,536" in rows["tokens per DP rank"]
    assert "2 DP ranks of 4 GPUs" in rows["tokens per DP rank"]
    assert "at most 80 run" in rows["concurrent requests"]


def test_capacity_is_shown_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    show(profile="h200-glm-mtp", capacity=True, json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["profile"] == "h200-glm-mtp"
    assert report["cache"]["token_bytes"] == 26624
    assert report["memory"]["fraction"] == 0.85
    assert report["load_fit"]["fits"] is True


def test_cache_tier_is_evaluated_against_workload(capsys: pytest.CaptureFixture[str]) -> None:
    show(profile="mi355x-tp4dp2-tiers", capacity=True)
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["tokens in host memory"].startswith("3,955,696")
    assert "885.0 GB for a DP rank" in rows["tokens in host memory"]
    assert "`wafer-20k-1k`" in rows["reuse distance"]
    assert rows["the cache tier helps"].startswith("no")
    assert "60 to retrieve, 150 to store, 71 to compute; published" in rows["saved per prompt token"]

    show(profile="mi355x-tp4dp2", capacity=True, workload="agent-sessions-tiny", tier_costs="1,2,30.5", json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["host"] is None
    assert report["outlook"]["workload"] == "agent-sessions-tiny"
    assert report["outlook"]["costs"] == {"retrieve": 1.0, "store": 2.0, "recompute": 30.5, "source": "as given"}
    assert 0.7 < report["outlook"]["device_hits"] < 0.8


@pytest.mark.parametrize("text", ["1,2", "1,2,3,4", "a,b,c", "1,2,-3", "1,2,nan", "1,2,3,"])
def test_tier_costs_must_be_three_numbers(text: str) -> None:
    with pytest.raises(UsageError, match="is not RETRIEVE,STORE,RECOMPUTE"):
        show(profile="cpu-tiny", capacity=True, tier_costs=text)


def test_concurrency_is_computed_for_given_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    show(profile="cpu-tiny", input_tokens=2000, output_tokens=300)
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("concurrent requests"))
    assert re.search(r"  28  +`2,000 in, 300 out`, 2,300 tokens each", row)


def test_single_length_is_rejected() -> None:
    with pytest.raises(UsageError, match="require each other"):
        show(profile="cpu-tiny", output_tokens=300)


def test_warning_is_shown_if_requests_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    show(profile="mi355x-tp4dp2", capacity=True, set_=["flags.max-running-requests=512"])
    assert re.search(r"warning: 512 concurrent requests of `wafer-20k-1k` need", capsys.readouterr().err)


def test_table_without_the_roles_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    show(profile="mi355x-1p1d", capacity=True, set_=["layout.prefill.flags.mem-fraction-static=0.97"])
    stderr = capsys.readouterr().err
    assert "note: the table ignores `layout.prefill` and `layout.decode`" in stderr
    assert "warning: prefill: `mem-fraction-static` 0.97 leaves" in stderr


def test_pools_exceeding_sglang_estimate_are_reported() -> None:
    capacity = load("b200-tp8", overrides=["hardware=h200", "flags.mem-fraction-static=0.9"]).capacity
    assert "its pools take 62,252 B" in capacity_table(capacity)


def test_model_without_kv_cache_facts_shows_weights_only(capsys: pytest.CaptureFixture[str]) -> None:
    loaded = load("h200-glm-mtp", overrides=["model.kv_cache=null"])
    table = capacity_table(loaded.capacity)
    assert "weights per GPU" in table
    assert "in profiles/models has no `kv_cache`" in table
    note_capacity(loaded.plan, loaded.capacity)
    assert "8.1 GB of weights" in capsys.readouterr().err


@pytest.mark.parametrize("settings", [(), ("flags.max-running-requests=4000",)])
def test_dry_run_prints_capacity_in_one_line(
    settings: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = UpRequest(
        profile="h200-glm-mtp", name=None, overrides=("engine.python=python3", *settings),
        host=None, image=None, replace=False,
        keep_failed=False, stage=True, allow_untuned=False, strict_kernels=False, timeout=None,
    )  # fmt: skip
    preview(request, Home(add_profiles(tmp_path))).report()
    stderr = capsys.readouterr().err
    assert stderr.count("concurrent requests of `random-4k-256` need") == len(settings)
    (line,) = [line for line in stderr.splitlines() if "capacity of" in line]
    assert line == (
        "note: capacity of `h200-glm-mtp`: 8.1 GB of weights and 118.9 GB of cache per GPU; "
        "4,465,676 tokens per DP rank (26,624 B each, bfloat16); 2,393 concurrent requests of `random-4k-256`; "
        "the longest context (32,768 tokens) fits 136.3 times; "
        "`mem-fraction-static` 0.85, at most 0.92"
    )
