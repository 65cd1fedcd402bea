"""What a token costs: by price, by utilization, by power; every input named."""

from dataclasses import replace
from pathlib import Path

import pytest
from measured_samples import save, single_stream, tp4dp2

from orchestrator.bench import metrics
from orchestrator.bench.result import BenchResult
from orchestrator.cli.report import command as report_command
from orchestrator.core.errors import UsageError
from orchestrator.report.document import Details
from orchestrator.report.economics import CostRow, Costs, NodePower
from orchestrator.report.render import render_html, render_json, render_markdown
from orchestrator.report.write import make_report

NOTHING = NodePower()


def costs(tmp_path: Path, *results: BenchResult, prices: tuple[str, ...] = (), power: NodePower = NOTHING) -> Costs:
    for place, result in enumerate(results):
        save(result, tmp_path / str(place))
    files = [tmp_path / str(place) / "result.json" for place in range(len(results))]
    found = make_report(files, published=None, prices=prices, details=Details(power=power)).costs
    assert found is not None
    return found


def rows(found: Costs) -> dict[str, CostRow]:
    return {row.name: row for row in found.rows}


def test_rental_and_ownership_costs_scale_with_utilization(tmp_path: Path) -> None:
    """2,364 output tok/s at the knee of eight GPUs: at $2.10 an hour each, 16.8 / 3600 / 2364 × 1e6 = $1.97."""
    found = costs(tmp_path, tp4dp2(), prices=("2.10",))
    table = rows(found)

    assert table["rented, 100% of the hours used"].values[0] == pytest.approx(16.8 / 3600 / 2364 * 1e6, rel=1e-3)
    assert table["owned, 100% of the hours used"].values[0] == pytest.approx(8 * 1.48 / 3600 / 2364 * 1e6, rel=1e-3)
    for kind in ("rented", "owned"):
        (whole,), (fifth,) = (table[f"{kind}, {share} of the hours used"].values for share in ("100%", "20%"))
        assert whole is not None
        assert fifth == pytest.approx(5 * whole)
    assert "rented: $2.10 per GPU-hour, given" in found.inputs
    assert any(each.startswith("owned: $1.48 per mi355x-hour, InferenceX") for each in found.inputs)


def test_rental_costs_are_omitted_without_price(tmp_path: Path) -> None:
    result = tp4dp2()
    unpriced = replace(result, run=replace(result.run, price=None))

    assert not any(name.startswith("rented") for name in rows(costs(tmp_path, unpriced)))


def test_electricity_cost_is_computed_from_node_power(tmp_path: Path) -> None:
    """10 kW × 1.3 × $0.20 = $2.60 an hour."""
    found = costs(tmp_path, tp4dp2(), power=NodePower(watts={"": 10_000}, per_kwh=0.2, pue=1.3))
    table = rows(found)

    assert table["electricity alone"].values[0] == pytest.approx(2.6 / 3600 / 2364 * 1e6, rel=1e-3)
    assert table["output tok/s per watt of the node"].values[0] == pytest.approx(0.2364, rel=1e-3)
    assert "power of the mi355x node: 10000 W, given" in found.inputs
    assert "electricity: 0.2 USD a kWh, PUE 1.3, given: 2.60 USD an hour" in found.inputs


def test_electricity_cost_uses_the_given_currency(tmp_path: Path) -> None:
    save(tp4dp2(), tmp_path / "one")
    report_command([tmp_path], node_watts=["10000"], electricity_price="0.30EUR")
    text = (tmp_path / "report.md").read_text()
    assert "| electricity alone, EUR per million output tokens | 0.35 |" in text
    assert "- electricity: 0.3 EUR a kWh, PUE 1, given: 3.00 EUR an hour" in text
    with pytest.raises(UsageError, match="invalid price `--electricity-price cheap`"):
        report_command([tmp_path], node_watts=["10000"], electricity_price="cheap")


def test_unknown_cost_is_none_not_zero(tmp_path: Path) -> None:
    result = tp4dp2()
    unknown = replace(
        result, run=replace(result.run, price=None, provenance=replace(result.run.provenance, gpu="l40s", gpus=None))
    )
    found = costs(tmp_path, tp4dp2(), unknown)

    assert rows(found)["owned, 100% of the hours used"].values[1] is None
    assert make_report([tmp_path / "1" / "result.json"], published="none", prices=()).costs is None


def test_single_stream_has_no_cost(tmp_path: Path) -> None:
    save(single_stream(), tmp_path / "one")

    for published in (None, ""):
        assert make_report([tmp_path / "one" / "result.json"], published=published, prices=()).costs is None


def test_cost_table_is_in_every_format(tmp_path: Path) -> None:
    save(tp4dp2(), tmp_path / "one")
    report_command([tmp_path], node_watts=["10000"], electricity_price="0.2", pue=1.3)
    details = Details(power=NodePower(watts={"": 10_000}))
    made = make_report([tmp_path / "one" / "result.json"], published=None, prices=(), details=details)

    assert "| electricity alone, USD per million output tokens | $0.31 |" in (tmp_path / "report.md").read_text()
    assert '<th scope="row">output tok/s per watt of the node</th><td>0.236</td>' in render_html(made)
    assert "| output tok/s per watt of the node | 0.236 |" in render_markdown(made)
    assert '"costs": {' in render_json(made)


def test_node_power_is_set_per_gpu_type(tmp_path: Path) -> None:
    result = tp4dp2()
    b200 = replace(result, run=replace(result.run, provenance=replace(result.run.provenance, gpu="b200")))
    power = NodePower.parse(["MI355X=13500", "B200=12000"], None, 1.0)
    found = costs(tmp_path, result, b200, power=power)
    per_watt = rows(found)["output tok/s per watt of the node"].values
    assert per_watt == (pytest.approx(2364 / 13500, rel=1e-3), pytest.approx(2364 / 12000, rel=1e-3))
    assert {"power of the mi355x node: 13500 W, given", "power of the b200 node: 12000 W, given"} <= {*found.inputs}
    with pytest.raises(UsageError, match="`0` is not a power"):
        NodePower.parse(["0"], None, 1.0)


def test_published_price_claims_are_computed_with_inputs(tmp_path: Path) -> None:
    save(tp4dp2(), tmp_path / "one")
    notes = make_report([tmp_path / "one" / "result.json"], published="wafer-glm52", prices=()).price_notes
    assert "8×MI355X reaches 82% of 8×B200 as published: 2,626 and 3,192 output tok/s per node" in notes
    assert (
        "published output tok/s per watt of rated board power: 0.234 on 8×MI355X (8 × 1,400 W) and 0.333 on 8×B200 "
        "(8 × 1,200 W)"
    ) in notes
    stated = "the post says that MI355X is 2.75 times cheaper per GPU than B300"
    assert f"{stated}; price of B300 unknown: set it with `--price B300=USD`" in notes
    priced = make_report(
        [tmp_path / "one" / "result.json"], published="wafer-glm52", prices=("MI355X=2", "B300=5")
    ).price_notes
    assert f"{stated}; at $2.00 and $5.00 per GPU-hour it is 2.50 times" in priced


@pytest.mark.parametrize(
    ("watts", "kwh", "pue", "option"),
    [(["9000"], "-1", 1.0, "--electricity-price -1"), (["9000"], None, 0.9, "--pue 0.9"), ([], "0.2", 1.0, "--elec")],
)
def test_invalid_power_options_are_rejected(watts: list[str], kwh: str | None, pue: float, option: str) -> None:
    with pytest.raises(UsageError, match=option):
        NodePower.parse(watts, kwh, pue)


def test_knee_without_throughput_has_no_cost(tmp_path: Path) -> None:
    result = tp4dp2()
    bare = tuple(replace(point, window=None) for point in result.points)
    save(replace(result, points=bare), tmp_path / "one")

    made = make_report([tmp_path / "one" / "result.json"], published=None, prices=("2",))
    assert made.costs is None
    assert made.comparisons[0].best is not None
    assert made.comparisons[0].best.of(metrics.OUTPUT).measured is None
