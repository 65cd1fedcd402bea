"""A gateway that discovers its workers: routable replicas, and its count of workers."""

from dataclasses import dataclass, field
from typing import ClassVar, cast

import pytest
from plan_samples import plan_of

from orchestrator.core.errors import NotReadyError
from orchestrator.runtimes.base import Runtime, Unit
from orchestrator.servers.group import Server
from orchestrator.servers.rollout import gateway_workers
from orchestrator.servers.rollout.gateway_workers import DiscoveredWorkers, open_gateway_workers

SERVER = Unit(
    runtime="kubernetes",
    name="pair",
    profile="cpu-tiny",
    plan_digest="0" * 64,
    url="http://127.0.0.1:1",
    run_dir="/runs/pair/1/replica-2",
    runtime_id="2",
)


@dataclass
class FakeCluster:
    """A cluster of two replicas; its gateway counts the shown ones, or `always` as many."""

    gateway_discovery: ClassVar = True
    routable: bool = True
    ready: bool = True
    always: int | None = None
    calls: list[bool] = field(default_factory=list)

    def set_routable(self, handle: Unit, *, routable: bool) -> None:
        assert handle is SERVER
        self.calls.append(routable)
        self.routable = routable

    def is_routable(self, handle: Unit) -> bool:
        assert handle is SERVER
        return self.routable

    def is_ready(self, handle: Unit) -> bool:
        assert handle is SERVER
        return self.ready

    def count(self, url: str) -> int:
        assert url == "http://127.0.0.1:9"
        return 1 + self.routable if self.always is None else self.always


def discovery(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> DiscoveredWorkers:
    monkeypatch.setattr(gateway_workers, "count_workers", cluster.count)
    for limit in ("_CHANGE_TIMEOUT", "_ROUTE_TIMEOUT"):
        monkeypatch.setattr(gateway_workers, limit, 0.0)
    return DiscoveredWorkers(url="http://127.0.0.1:9", runtime=cluster)


def test_replica_is_drained_and_uncordoned(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster()
    workers = discovery(cluster, monkeypatch)
    assert workers.is_routed("", SERVER)
    workers.drain("", SERVER, 1)
    assert not workers.is_routed("", SERVER)
    workers.drain("", SERVER, 1)
    workers.drain("", None, 1)
    workers.uncordon("", SERVER, 1)
    workers.cordon(SERVER)
    assert cluster.calls == [False, True, False], "an unroutable replica is not drained again"
    assert capsys.readouterr().err == ""


def test_gateway_still_routing_to_drained_replica_warns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for other_replicas in (1, 0):  # with 0 it is the second of two removed replicas
        cluster = FakeCluster(always=1 + other_replicas, ready=False)
        discovery(cluster, monkeypatch).drain("", SERVER, other_replicas)
        assert "the gateway still routes to `replica-2` after 0 s" in capsys.readouterr().err


def test_draining_unrouted_replica_does_not_warn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gateway never counted the dead replica, so its count does not fall."""
    for cluster in (FakeCluster(always=1), FakeCluster(always=1, ready=False)):
        workers = discovery(cluster, monkeypatch)
        monkeypatch.setattr(gateway_workers, "_CHANGE_TIMEOUT", 0.0 if cluster.ready else 60.0)
        workers.drain("", SERVER, 1)
        assert cluster.calls == [False]
    assert capsys.readouterr().err == ""


def test_uncordon_fails_when_replica_is_never_routed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(routable=False, always=1)
    with pytest.raises(NotReadyError, match="does not route to `replica-2`"):
        discovery(cluster, monkeypatch).uncordon("", SERVER, 1)


def test_transient_gateway_failure_is_not_counted_as_routing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The count of 1 is that of the other replica."""
    counts = iter((0, 1, 1))
    workers = discovery(FakeCluster(routable=False), monkeypatch)
    monkeypatch.setattr(gateway_workers, "_CHANGE_TIMEOUT", 10.0)
    monkeypatch.setattr(gateway_workers, "count_workers", lambda _: next(counts))
    with pytest.raises(NotReadyError, match="does not route to `replica-2`"):
        workers.uncordon("", SERVER, 1)


def test_discovered_workers_need_no_gateway_key() -> None:
    plan = plan_of("cpu-tiny", "replicas=2")
    server = Server.of(SERVER, cast("Runtime", FakeCluster()))
    gateway = open_gateway_workers(server, plan=plan, key=None, grace=1)
    assert isinstance(gateway, DiscoveredWorkers)
