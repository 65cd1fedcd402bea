"""Deletion of a server's units in a cluster: which objects are deleted, and in which order."""

from typing import Any, cast

from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.runtimes.kubernetes.deletion import Removal
from orchestrator.runtimes.kubernetes.kubectl import Cluster

UNITS = ("replica-1", "replica-2", "gateway")
UNITS_BY_UID = {name: name for name in UNITS}  # the uid of a Deployment is the name of its unit here


class Namespace:
    """A cluster with the given objects, which deletes objects by name at once."""

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


def unit(unit_name: str, uid: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a Deployment and its running pod."""
    name = "pair" if unit_name in {"", "replica-1"} else f"pair--{unit_name}"
    metadata = {"name": name, "uid": uid or unit_name, "labels": {"deploy.unit": unit_name} if unit_name else {}}
    pod = {"kind": "Pod", "metadata": {**metadata, "name": f"pod-{uid or unit_name}"}, "spec": {}, "status": {}}
    return {"kind": "Deployment", "metadata": metadata}, pod


def deleted(cluster: Namespace, units_by_uid: dict[str, str]) -> list[str]:
    Removal(cast("Cluster", cluster), "pair", units_by_uid).run(0)
    return cluster.deleted


def selector(unit_name: str = "") -> str:
    labels = f"deploy.name=pair{f',deploy.unit={unit_name}' if unit_name else ''}"
    return f"{labels},app.kubernetes.io/managed-by=deploy"


def test_all_units_are_deleted_with_named_deployment_last() -> None:
    cluster = Namespace(*unit("replica-1"), *unit("replica-2"), *unit("gateway"))
    shared, *names = deleted(cluster, UNITS_BY_UID)
    assert shared == selector()
    deployments = [name for name in names if name.startswith("deployment/")]
    assert len(deployments) == 3
    assert deployments[-1] == "deployment/pair"
    assert set(names[3:]) == {f"pod/pod-{unit_name}" for unit_name in UNITS}


def test_deleting_one_replica_keeps_the_others() -> None:
    cluster = Namespace(*unit("replica-1"), *unit("replica-2"), *unit("gateway"))
    expected = [selector("replica-2"), "deployment/pair--replica-2", "pod/pod-replica-2"]
    assert deleted(cluster, {"replica-2": "replica-2"}) == expected


def test_deployment_of_another_run_is_not_deleted() -> None:
    cluster = Namespace(*unit("replica-1"), *unit("replica-2", uid="another"), *unit("gateway"))
    names = deleted(cluster, UNITS_BY_UID)
    assert names[:2] == [selector("gateway"), selector("replica-1")]
    assert set(cluster.items) == {"deployment/pair--replica-2", "pod/pod-another"}


def test_nothing_is_deleted_when_name_was_reused() -> None:
    cluster = Namespace(*unit("replica-1", uid="another"))
    assert deleted(cluster, {"ours": ""}) == []
    assert deleted(Namespace(*unit("", uid="another")), {"ours": ""}) == []


def test_pod_left_after_its_deployment_is_deleted() -> None:
    _, pod = unit("", uid="ours")
    cluster = Namespace(pod)
    assert deleted(cluster, {"ours": ""}) == [selector(), "pod/pod-ours"]
