"""Test that the published tables match their publications."""

from pathlib import Path

import pytest

from orchestrator.bench.published import (
    Prices,
    Published,
    all_published,
    load_published,
    read_published,
)
from orchestrator.bench.workload import load_workload
from orchestrator.core.errors import ProfileError, UsageError
from orchestrator.core.paths import data_root

WAFER = load_published("wafer-glm52")


def test_wafer_rates_match_publication() -> None:
    assert [(line.rate_rps, line.output_tok_s, line.ttft_p50_s, line.ttft_p95_s) for line in WAFER.rates] == [
        (0.5, 449, 0.59, 0.60),
        (1.0, 974, 0.60, 0.81),
        (1.5, 1913, 0.62, 1.03),
        (2.0, 1944, 0.62, 1.05),
        (2.25, 2089, 0.63, 1.23),
        (2.4, 2626, 0.81, 2.22),
    ]
    assert all(line.success_share == 1 for line in WAFER.rates)


def test_tokens_per_request_caveat_matches_table() -> None:
    per_request = [round(line.output_tok_s / line.rate_rps) for line in WAFER.rates]
    assert per_request == [898, 974, 1275, 972, 928, 1094]
    assert "898, 974, 1275, 972, 928 and 1094" in WAFER.caveats[0]


def test_published_workload_matches_shipped_workload() -> None:
    shipped = load_workload(WAFER.workload.name)
    assert (shipped.input_tokens, shipped.output_tokens, shipped.cache_hit_rate) == (20000, 1000, 0.60)
    assert {line.rate_rps for line in WAFER.rates} <= set(shipped.request_rates)
    assert shipped.slo.ttft_p95_s == WAFER.knee.ttft_p95_limit_s
    single = load_workload(WAFER.single_stream.workload)
    assert (single.input_tokens, single.output_tokens, single.concurrency) == (10000, 1500, 1)


def test_every_file_names_its_source_and_its_unit() -> None:
    assert len(all_published(Published)) == 1
    everything: tuple[Published | Prices, ...] = (*all_published(Published), *all_published(Prices))
    assert all(entry.source and entry.unit and entry.caveats for entry in everything)


def test_gpu_price_lookup_ignores_case() -> None:
    (prices,) = all_published(Prices)
    assert (prices.gpu_price("mi355x"), prices.gpu_price("B200"), prices.gpu_price("h100")) == (1.48, 1.95, None)


def test_unknown_published_name_lists_known_names() -> None:
    with pytest.raises(UsageError) as caught:
        load_published("nobody")
    assert "wafer-glm52" in caught.value.hint


def test_published_file_problem_has_line_number(tmp_path: Path) -> None:
    head = "kind: prices\nname: x\ntitle: x\nsource: x\nunit: USD per GPU-hour\ncaveats: []\nprices:\n"
    path = tmp_path / "x.yaml"
    path.write_text(head + "  - {gpu: X, usd_per_gpu_hour: -1}\n")
    with pytest.raises(ProfileError) as caught:
        read_published(path, "x.yaml")
    assert [problem.location for problem in caught.value.problems] == ["x.yaml:8"]


def test_published_comparison_may_be_a_user_file(tmp_path: Path) -> None:
    shipped = data_root() / "profiles" / "published"
    mine = tmp_path / "mine.yaml"
    mine.write_text((shipped / "wafer-glm52.yaml").read_text().replace("name: wafer-glm52", "name: mine"))
    assert load_published(str(mine)).name == "mine"
    with pytest.raises(UsageError, match="kind `prices`, not `comparison`"):
        load_published(str(shipped / "inferencex-tco.yaml"))
    with pytest.raises(UsageError, match="no file"):
        load_published(str(tmp_path / "none.yaml"))
