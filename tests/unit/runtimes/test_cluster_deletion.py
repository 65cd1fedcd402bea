"""The end of units in a cluster: what is deleted, in which order, and what is left to others."""

from typing import Any, cast

from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.runtimes.kubernetes.deletion import Removal
from orchestrator.runtimes.kubernetes.kubectl import Cluster

PARTS = ("replica-1", "replica-2", "gateway")
MEANT = {part: part for part in PARTS}  # the parts by the uids of their Deployments, which are called alike here


class Namespace:
    """A cluster whose objects are these; what is deleted by name is gone at once."""

    def __init__(self, *items: dict[str, Any]) -> None:
        self.items = {f"{obj['kind']}/{obj['metadata']['name']}".lower(): obj for obj in items}
        self.deleted: list[str] = []

    def json(self, *_: str, **__: float) -> Any:  # noqa: ANN401 - JSON of the API's own shape
        return {"items": list(self.items.values())}

    def ask(self, *words: str, **_: object) -> CompletedProgram:
        names = [word for word in words[1:] if word in self.items]
        self.deleted += names or [words[3]]
        for name in names:
            del self.items[name]
        return CompletedProgram(argv=words, code=0, stdout="", stderr="")


def unit(part: str, uid: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """A Deployment and its pod, which runs."""
    called = "pair" if part in {"", "replica-1"} else f"pair--{part}"
    about = {"name": called, "uid": uid or part, "labels": {"deploy.unit": part} if part else {}}
    pod = {"kind": "Pod", "metadata": {**about, "name": f"pod-{uid or part}"}, "spec": {}, "status": {}}
    return {"kind": "Deployment", "metadata": about}, pod


def deleted(cluster: Namespace, meant: dict[str, str]) -> list[str]:
    Removal(cast("Cluster", cluster), "pair", meant).run(0)
    return cluster.deleted


def selected(part: str = "") -> str:
    which = f"deploy.name=pair{f',deploy.unit={part}' if part else ''}"
    return f"{which},app.kubernetes.io/managed-by=deploy"


def test_all_units_are_deleted_with_named_deployment_last() -> None:
    cluster = Namespace(*unit("replica-1"), *unit("replica-2"), *unit("gateway"))
    shared, *names = deleted(cluster, MEANT)
    assert shared == selected()
    deployments = [name for name in names if name.startswith("deployment/")]
    assert len(deployments) == 3
    assert deployments[-1] == "deployment/pair"
    assert set(names[3:]) == {f"pod/pod-{part}" for part in PARTS}


def test_deleting_one_replica_keeps_the_others() -> None:
    cluster = Namespace(*unit("replica-1"), *unit("replica-2"), *unit("gateway"))
    expected = [selected("replica-2"), "deployment/pair--replica-2", "pod/pod-replica-2"]
    assert deleted(cluster, {"replica-2": "replica-2"}) == expected


def test_deployment_of_another_run_is_not_deleted() -> None:
    cluster = Namespace(*unit("replica-1"), *unit("replica-2", uid="another"), *unit("gateway"))
    found = deleted(cluster, MEANT)
    assert found[:2] == [selected("gateway"), selected("replica-1")]
    assert set(cluster.items) == {"deployment/pair--replica-2", "pod/pod-another"}


def test_nothing_is_deleted_when_name_was_reused() -> None:
    cluster = Namespace(*unit("replica-1", uid="another"))
    assert deleted(cluster, {"ours": ""}) == []
    assert deleted(Namespace(*unit("", uid="another")), {"ours": ""}) == []


def test_pod_left_after_its_deployment_is_deleted() -> None:
    _, late = unit("", uid="ours")
    cluster = Namespace(late)
    assert deleted(cluster, {"ours": ""}) == [selected(), "pod/pod-ours"]
