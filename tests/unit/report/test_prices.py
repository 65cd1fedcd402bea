"""Prices and power in a report, with their inputs."""

from dataclasses import replace
from pathlib import Path

import pytest
from measured_samples import save, tp4dp2

from orchestrator.cli.report import command as report_command
from orchestrator.core.errors import UsageError
from orchestrator.report.write import make_report


def test_node_power_is_set_per_gpu_type(tmp_path: Path) -> None:
    """2,364 output tok/s at the knee and 13.5 kW are 0.175 tok/s per watt."""
    result = tp4dp2()
    b200 = replace(result, run=replace(result.run, provenance=replace(result.run.provenance, gpu="b200")))
    files = [save(sample, tmp_path / name) for name, sample in (("a", result), ("b", b200))]
    watts = {"mi355x": 13_500.0, "": 12_000.0}
    assert make_report(files, published="none", prices=(), watts=watts).price_notes[-2:] == (
        "a (TP4×DP2 on 8×MI355X): 0.175 output tok/s per watt of the node at the knee (13500 W, given)",
        "b (TP4×DP2 on 8×B200): 0.197 output tok/s per watt of the node at the knee (12000 W, given)",
    )


def test_node_power_is_in_the_report(tmp_path: Path) -> None:
    save(tp4dp2(), tmp_path / "one")
    report_command([tmp_path], node_watts=["MI355X=10000"])
    assert "0.236 output tok/s per watt of the node" in (tmp_path / "report.html").read_text()
    with pytest.raises(UsageError, match="`0` is not a power"):
        report_command([tmp_path], node_watts=["0"])


def test_knee_without_throughput_has_no_power_note(tmp_path: Path) -> None:
    bare = tuple(replace(point, window=None) for point in tp4dp2().points)
    file = save(replace(tp4dp2(), points=bare), tmp_path / "one")
    report = make_report([file], published=None, prices=(), watts={"": 10_000})
    assert not any("watt of the node" in note for note in report.price_notes)


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
