"""A running server whose run directory was deleted is still listed, reported by `deploy watch`, and stopped."""

import shutil

import pytest
from deployment import Deployments
from leftovers import listens

pytestmark = pytest.mark.attack


@pytest.mark.parametrize("depth", ["run", "name"])
@pytest.mark.parametrize("words", [("down", "target"), ("down", "--all")], ids=["down-NAME", "down-all"])
def test_server_with_deleted_run_directory_is_reported_and_stopped(
    deployments: Deployments, depth: str, words: tuple[str, ...]
) -> None:
    deployment = deployments(0)
    assert not list(deployment.run(*deployment.up()).faults(0))
    [run] = (path for path in (deployment.home / "runs" / deployment.name).glob("*-*") if path.is_dir())
    shutil.rmtree(run if depth == "run" else run.parent)
    deleted = f"`{deployment.name}`: running, but its run directory `{run}` was deleted"

    listed = deployment.run("status")
    assert not list(listed.faults(0))
    assert deployment.name in listed.stdout
    assert deleted in listed.stderr
    assert deleted in deployment.run("status", deployment.name).stderr
    again = deployment.run("watch", deployment.name)
    assert not list(again.faults(6))
    assert deleted in again.stderr

    assert listens(deployment.port)
    assert not list(deployment.run(*words).faults(0))
    assert not listens(deployment.port)
    assert deployment.leftovers(killed=True) == []
