"""A gateway that finds its servers by itself: what is shown to it, and what it counts then."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from plan_samples import plan_of

from orchestrator.core.errors import NotReadyError
from orchestrator.servers.group import RunningServer, ServerGroup
from orchestrator.servers.rollout import gateway_workers
from orchestrator.servers.rollout.gateway_workers import DiscoveredWorkers, open_gateway_workers

SERVER = RunningServer(
    runtime="kubernetes",
    name="pair",
    profile="cpu-tiny",
    plan_digest="0" * 64,
    url="http://127.0.0.1:1",
    run_dir="/runs/pair/1/replica-2",
    runtime_id="2",
)


@dataclass
class Shown:
    """A cluster of two servers, of which one may be shown; its gateway counts what is shown, or always as many."""

    gateway_discovery: ClassVar = True
    shown: bool = True
    ready: bool = True
    always: int | None = None
    calls: list[bool] = field(default_factory=list)

    def set_routable(self, handle: RunningServer, *, routable: bool) -> None:
        assert handle is SERVER
        self.calls.append(routable)
        self.shown = routable

    def is_routable(self, handle: RunningServer) -> bool:
        assert handle is SERVER
        return self.shown

    def is_ready(self, handle: RunningServer) -> bool:
        assert handle is SERVER
        return self.ready

    def count(self, url: str) -> int:
        assert url == "http://127.0.0.1:9"
        return 1 + self.shown if self.always is None else self.always


def discovery(cluster: Shown, monkeypatch: pytest.MonkeyPatch) -> DiscoveredWorkers:
    monkeypatch.setattr(gateway_workers, "count_workers", cluster.count)
    for limit in ("_CHANGE_TIMEOUT", "_ROUTE_TIMEOUT"):
        monkeypatch.setattr(gateway_workers, limit, 0.0)
    return DiscoveredWorkers(url="http://127.0.0.1:9", runtime=cluster)


def test_replica_is_drained_and_uncordoned(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Shown()
    found = discovery(cluster, monkeypatch)
    assert found.is_routed("", SERVER)
    found.drain("", SERVER, 1)
    assert not found.is_routed("", SERVER)
    found.drain("", SERVER, 1)
    found.drain("", None, 1)
    found.uncordon("", SERVER, 1)
    found.cordon(SERVER)
    assert cluster.calls == [False, True, False], "what is not shown is not taken away once more"
    assert capsys.readouterr().err == ""


def test_gateway_still_routing_to_drained_replica_warns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for others in (1, 0):  # with 0 it is the second of two that are removed
        cluster = Shown(always=1 + others, ready=False)
        discovery(cluster, monkeypatch).drain("", SERVER, others)
        assert "the gateway still routes to `replica-2` after 0 s" in capsys.readouterr().err


def test_draining_unrouted_replica_does_not_warn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is dead, or hangs: no fewer are counted without it, and where its cluster knows that, nobody waits."""
    for cluster in (Shown(always=1), Shown(always=1, ready=False)):
        found = discovery(cluster, monkeypatch)
        monkeypatch.setattr(gateway_workers, "_CHANGE_TIMEOUT", 0.0 if cluster.ready else 60.0)
        found.drain("", SERVER, 1)
        assert cluster.calls == [False]
    assert capsys.readouterr().err == ""


def test_uncordon_fails_when_replica_is_never_routed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Shown(shown=False, always=1)
    with pytest.raises(NotReadyError, match="does not route to `replica-2`"):
        discovery(cluster, monkeypatch).uncordon("", SERVER, 1)


def test_transient_gateway_failure_is_not_counted_as_routing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other server is not taken for the new one: it is replaced next."""
    counts = iter((0, 1, 1))
    found = discovery(Shown(shown=False), monkeypatch)
    monkeypatch.setattr(gateway_workers, "_CHANGE_TIMEOUT", 10.0)
    monkeypatch.setattr(gateway_workers, "count_workers", lambda _: next(counts))
    with pytest.raises(NotReadyError, match="does not route to `replica-2`"):
        found.uncordon("", SERVER, 1)


def test_discovered_workers_need_no_gateway_key() -> None:
    plan = plan_of("cpu-tiny", "replicas=2")
    group = ServerGroup(Shown())  # type: ignore[arg-type]  # a part of a runtime
    gateway = open_gateway_workers(SERVER, group, plan=plan, key=None, grace=1)
    assert isinstance(gateway, DiscoveredWorkers)
