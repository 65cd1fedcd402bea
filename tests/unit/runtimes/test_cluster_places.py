"""Which clusters are asked for a server."""

import json
from pathlib import Path

import pytest

from orchestrator.core.paths import Home
from orchestrator.runtimes.base import ENDING
from orchestrator.runtimes.kubernetes.kubectl import Cluster
from orchestrator.runtimes.kubernetes.namespaces import known_places

RUNS = {"near": None, "blue": {"context": "one", "namespace": "web"}, "green": {"context": None, "namespace": "web"}}


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("blue", [Cluster("one", "web")]),
        ("near", []),  # it is of another runtime
        ("new", [Cluster("", "web"), Cluster("one", "web")]),
        (None, [Cluster("", "web"), Cluster("one", "web")]),
    ],
)
def test_a_cluster_that_is_gone_is_not_asked_for_a_server_of_another(
    name: str | None, places: list[Cluster], tmp_path: Path
) -> None:
    home = Home(tmp_path)
    for each, place in RUNS.items():
        run = home.runs / each / "20261122T000000Z-00000000"
        run.mkdir(parents=True)
        (run / "plan.json").write_text(json.dumps({"kubernetes": place}))
        (run / "plan.json").chmod(0o600)
    assert list(known_places(home, name)) == places


def test_a_list_asks_no_cluster_for_what_was_stopped(tmp_path: Path) -> None:
    run = Home(tmp_path).runs / "blue" / "20261122T000000Z-00000000"
    run.mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps({"kubernetes": RUNS["blue"]}))
    (run / "plan.json").chmod(0o600)
    (run / ENDING).write_text("{}")
    assert known_places(Home(tmp_path)) == ()
    assert known_places(Home(tmp_path), "blue") == (Cluster("one", "web"),)
