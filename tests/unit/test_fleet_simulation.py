"""tests/benchmarks/fleet_simulation.py: its simulation agrees with its formulas in simple cases."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from fleet_simulation import (
    DAY_S,
    LAYOUTS,
    Fleet,
    Inputs,
    Layout,
    capacity_with_spares,
    capacity_without_spares,
    mean_capacity,
    short_of_nodes,
    spares_needed,
    update_s,
)

ONE_NODE, TWO_NODES, POOLS = LAYOUTS
NODES = 100


def simulated(inputs: Inputs, spares: int, layout: Layout = ONE_NODE) -> Fleet:
    fleet = Fleet(inputs=inputs, layout=layout, nodes=NODES, spares=spares, rng=random.Random(1))
    return fleet.run(2e6 / NODES * DAY_S)


def test_with_enough_spares_only_starts_cost_capacity() -> None:
    inputs = Inputs(repair_s=60.0)  # shorter than the search for another node
    lost = 1 - mean_capacity(simulated(inputs, spares=10))
    assert lost == pytest.approx(1 - capacity_with_spares(inputs, ONE_NODE), rel=0.1)


def test_without_spares_failed_nodes_cost_capacity() -> None:
    lost = 1 - mean_capacity(simulated(Inputs(), spares=0))
    assert lost == pytest.approx(1 - capacity_without_spares(Inputs(), ONE_NODE, NODES), rel=0.1)


def test_two_node_server_loss_matches_formula() -> None:
    lost = 1 - mean_capacity(simulated(Inputs(), spares=0, layout=TWO_NODES))
    assert lost == pytest.approx(1 - capacity_without_spares(Inputs(), TWO_NODES, NODES), rel=0.1)


def test_smaller_pool_limits_capacity() -> None:
    one, two = (1 - mean_capacity(simulated(Inputs(), spares=0, layout=layout)) for layout in (ONE_NODE, POOLS))
    assert one < two < 1 - capacity_without_spares(Inputs(), POOLS, NODES)


def test_repaired_node_joins_smaller_pool() -> None:
    fleet = Fleet(inputs=Inputs(), layout=POOLS, nodes=4, spares=0, rng=random.Random(1))
    prefill, decode = fleet.servers[0], fleet.servers[1]
    fleet.serving[decode.pool] -= 1
    fleet.waiting, fleet.free = [prefill, decode], [0]
    fleet.assign_nodes()
    assert fleet.waiting == [prefill]


def test_spares_suffice_for_999_of_1000_hours() -> None:
    spares = spares_needed(Inputs(), NODES)
    assert short_of_nodes(simulated(Inputs(), spares=spares)) < 2e-3
    assert short_of_nodes(simulated(Inputs(), spares=spares - 1)) > 1e-3


@pytest.mark.parametrize("at_once", [1, 5])
def test_rolling_update_duration_matches_formula(at_once: int) -> None:
    inputs = replace(Inputs(), faults_per_node_day=0.0)
    fleet = Fleet(inputs=inputs, layout=ONE_NODE, nodes=NODES, spares=0, rng=random.Random(1)).update(at_once).run()
    assert fleet.updated_after_s == pytest.approx(update_s(inputs, NODES, at_once), rel=0.02)
    assert min(fleet.capacity_s) == 1 - at_once / NODES
