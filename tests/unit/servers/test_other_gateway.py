"""`server.gateway`: a server that joins another server's gateway, and each of them without the other.

`tests/integration/test_gateway.py` uses the real gateway; the one here lists workers and records its calls.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from plan_samples import plan_of
from run_samples import request_of

from orchestrator.core.errors import DeployError, HostError, Interrupted, SmokeError, StartError
from orchestrator.core.paths import Home
from orchestrator.engine.gateway import GatewayWorker
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load, render_artifacts
from orchestrator.runtimes.base import ServerState, Status, Unit
from orchestrator.servers import status
from orchestrator.servers.drain import drain_and_stop
from orchestrator.servers.group import Server
from orchestrator.servers.rollout import join
from orchestrator.servers.rollout.gateway_workers import saved_workers
from orchestrator.servers.servers import Servers
from orchestrator.servers.start import launch, up
from orchestrator.verify.report import SmokeReport

JOINS = ("server.gateway=pair", "server.port=30100", "model.served_name=second")
URL = "http://127.0.0.1:30100"


@dataclass
class Gateway:
    """A fake of the gateway of `pair`."""

    listed: tuple[GatewayWorker, ...] = ()
    failure: BaseException | None = None  # raised by the next change
    removed: list[tuple[str, float]] = field(default_factory=list)  # URL, seconds for its requests

    def open(self, _: Unit, *, key: object = None, seconds: float = 30) -> "Opened":
        assert key is None
        return Opened(self, seconds)


@dataclass
class Opened:
    gateway: Gateway
    seconds: float

    def workers(self) -> tuple[GatewayWorker, ...]:
        return self.gateway.listed

    def is_routed(self, url: str, _: Unit) -> bool:
        return any(server.url == url and server.ready for server in self.gateway.listed)

    def uncordon(self, url: str, _: Unit) -> None:
        self.gateway.listed = (*self.gateway.listed, worker(url, "second"))
        if self.gateway.failure is not None:
            raise self.gateway.failure

    def drain(self, url: str, _: Unit) -> None:
        self.gateway.removed.append((url, self.seconds))
        self.gateway.listed = tuple(server for server in self.gateway.listed if server.url != url)


def worker(url: str, model: str) -> GatewayWorker:
    return GatewayWorker(identity=url, url=url, ready=True, requests=0, role="", model=model)


@dataclass
class Runtime:
    servers: list[Unit] = field(default_factory=list)

    def find(self, name: str | None = None) -> tuple[Unit, ...]:
        return tuple(server for server in self.servers if name in (None, server.name))

    def state(self, server: Unit) -> ServerState:
        return server.state

    def start(self, *_: object, name: str, run_dir: Path, **__: object) -> Unit:
        self.servers.append(listed(name, run_dir))
        return self.servers[-1]

    def stop(self, server: Unit, *, grace: float) -> None:
        assert grace >= 0
        self.servers = [item for item in self.servers if item.run_dir != server.run_dir]

    def logs(self, _: Unit, *, follow: bool) -> tuple[str, ...]:
        assert not follow
        return ()

    def process_cmdlines(self, _: Unit) -> tuple[str, ...]:
        return ()

    drains_on_stop = False


def listed(name: str, run_dir: Path, state: Status = Status.RUNNING) -> Unit:
    return Unit(
        runtime="process",
        name=name,
        profile="cpu-tiny",
        plan_digest="",
        url="http://127.0.0.1:1",
        run_dir=str(run_dir),
        runtime_id="1",
        state=ServerState(status=state),
    )


@dataclass
class World:
    home: Home
    gateway: Gateway
    runtime: Runtime = field(default_factory=Runtime)

    @property
    def servers(self) -> Servers:
        return Servers(self.home, {"process": self.runtime})  # type: ignore[dict-item]

    def add(self, name: str, *overrides: str, state: Status = Status.RUNNING) -> Server:
        """Add a server whose run directory has its plan."""
        plan = plan_of("cpu-tiny", *overrides)
        run_dir = self.home.runs / name / "20260701T000000Z-00000000"
        run_dir.mkdir(parents=True)
        (run_dir / "plan.json").write_text(plan.to_json())
        server = replace(listed(name, run_dir, state), plan_digest=plan.digest)
        if plan.gateway is not None:
            server = replace(server, url=f"http://127.0.0.1:{plan.server.port}")
            self.runtime.servers.append(listed(name, run_dir / "replica-1"))
        self.runtime.servers.append(server)
        return next(item for item in self.servers.find(name) if item.run_dir == str(run_dir))

    def pair(self, state: Status = Status.RUNNING) -> Server:
        """Add the server whose gateway the others join."""
        return self.add("pair", "replicas=2", state=state)

    def start_server(self, **request: object) -> launch.UpResult:
        """Start `second` without the smoke test."""
        artifacts = render_artifacts(load("cpu-tiny", overrides=JOINS).plan)
        start = launch.StartSpec(
            name="second", request=request_of(*JOINS, **request), artifacts=artifacts, records={}, key=None
        )
        return launch.start_server(start, self.servers)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    gateway = Gateway()
    monkeypatch.setattr(join, "saved_workers", gateway.open)
    monkeypatch.setattr(launch, "wait_for_server", lambda *_, **__: 1.0)
    monkeypatch.setattr(launch, "run_smoke_test", lambda *_, **__: SmokeReport(url="", served_name="second", checks=()))
    monkeypatch.setattr(launch, "kernel_gate", lambda *_, **__: None)
    monkeypatch.setattr(launch, "explain_failure", lambda *_: "")
    monkeypatch.setattr(up, "await_healthy", lambda *_, **__: None)
    monkeypatch.setattr(status, "_health", lambda _: "healthy")
    return World(Home(tmp_path), gateway)


def joining() -> Plan:
    return plan_of("cpu-tiny", *JOINS)


@pytest.mark.parametrize(
    ("prepare", "change", "reason"),
    [
        (lambda world: world.pair(Status.EXITED), {}, "`pair` is not running"),
        (lambda world: world.add("pair"), {}, "no gateway of replicas"),
        (lambda world: world.add("pair", "replicas=2", "model.served_name=second"), {}, "another model `second`"),
        (lambda world: world.add("pair", "replicas=2", "server.api_key_env=KEY"), {}, "different API keys"),
        (lambda world: world.pair(), {"runtime": "docker"}, "the runtime `docker` is on another host"),
    ],
)
def test_unsuitable_gateway_is_rejected_before_start(
    world: World, prepare: Callable[[World], object], change: dict[str, str], reason: str
) -> None:
    prepare(world)
    servers = Servers(world.home, world.servers.runtimes, frozenset({"docker"}))
    with pytest.raises(StartError, match=reason) as caught:
        join.require_gateway(servers, replace(joining(), **change), "second")  # type: ignore[arg-type]
    assert caught.value.message.startswith("cannot join the gateway of `pair`: ")
    assert caught.value.hint


def test_invalid_gateway_name_in_plan_is_ignored(world: World) -> None:
    second = world.add("second", *JOINS)
    (Path(second.run_dir) / "plan.json").write_text('{"server": {"gateway": "../pair"}}')
    assert world.servers.gateway_of(second) is None


def test_server_cannot_join_its_own_gateway(world: World) -> None:
    world.pair()
    with pytest.raises(StartError, match="it is this server"):
        join.require_gateway(world.servers, joining(), "pair")


def test_joining_servers_need_distinct_models(world: World) -> None:
    world.pair()
    world.add("second", *JOINS, "server.port=30200")
    world.gateway.listed = (worker("http://127.0.0.1:30200", "second"),)
    join.require_gateway(world.servers, joining(), "second")
    with pytest.raises(StartError, match="the gateway already routes another model `second`"):
        join.require_gateway(world.servers, joining(), "third")
    third = world.add("third", *JOINS)
    with pytest.raises(StartError, match="the gateway already routes another model `second`"):
        join.join(third, world.servers)


@pytest.mark.parametrize(("failure", "raised"), [(HostError("no"), DeployError), (KeyboardInterrupt(), Interrupted)])
def test_failed_join_leaves_no_worker_or_server(
    world: World, failure: BaseException, raised: type[DeployError]
) -> None:
    world.pair()
    world.gateway.failure = failure
    with pytest.raises(raised):
        world.start_server()
    assert (world.gateway.listed, world.gateway.removed) == ((), [(URL, 0)])
    assert {server.name for server in world.runtime.servers} == {"pair"}


def test_restart_succeeds_without_running_gateway(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.pair(Status.EXITED)
    assert world.start_server(run="/runs/second/1").server.unit in world.runtime.servers
    stderr = capsys.readouterr().err
    assert "no gateway routes to `second`: cannot join the gateway of `pair`: `pair` is not running" in stderr
    assert "`deploy restart pair` restarts it" in stderr


def test_started_gateway_is_rejoined_by_compatible_servers(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    pair = world.pair()
    world.add("second", *JOINS)
    world.add("third", *JOINS, "model.served_name=tiny")
    world.add("stopped", *JOINS, "model.served_name=other", state=Status.EXITED)
    join.join_again(pair, world.servers)
    assert [server.url for server in world.gateway.listed] == [URL]
    assert "no gateway routes to `third`: cannot join the gateway of `pair`" in capsys.readouterr().err


def test_running_server_rejoins_gateway(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.pair()
    world.add("second", *JOINS)
    request = request_of(*JOINS, name="second")
    result = up._already_up(world.servers, "second", plan=joining(), request=request)
    assert result is not None
    assert [server.url for server in world.gateway.listed] == [URL]
    assert "the gateway of `pair` routes the model `second` at http://127.0.0.1:" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", [0, 60])
def test_stop_passes_drain_time_to_gateway(world: World, seconds: float) -> None:
    world.pair()
    second = world.add("second", *JOINS)
    drain_and_stop(world.servers, replace(second, url=""), seconds=seconds, reason="stopped")
    assert world.gateway.removed == [(URL, seconds)]


@pytest.mark.parametrize(("seconds", "limited"), [(0.0, 0), (7.9, 7), (60.0, 30)])
def test_worker_drain_time_is_limited(tmp_path: Path, seconds: float, limited: int) -> None:
    (tmp_path / "gateway.key").write_text("0" * 64)
    (tmp_path / "gateway.key").chmod(0o600)
    pair = Server.of(listed("pair", tmp_path), Runtime())  # type: ignore[arg-type]  # as above
    assert saved_workers(pair, seconds=seconds).drain_seconds == limited


def test_status_shows_url_of_routing_gateway(world: World) -> None:
    second = world.add("second", *JOINS)
    [without_gateway] = status.statuses(world.servers, "second", check_health=True)
    assert (without_gateway.url, without_gateway.health, without_gateway.detail) == (
        second.url,
        "unhealthy",
        "the gateway of `pair` is not running",
    )
    with pytest.raises(SmokeError, match="the gateway of `pair` is not running") as caught:
        status.require_healthy(world.servers, [without_gateway], explicit=True)
    assert "`deploy restart pair` restarts it" in caught.value.hint

    pair = world.pair()
    [unrouted] = status.statuses(world.servers, "second", check_health=True)
    assert (unrouted.url, unrouted.detail) == (second.url, "the gateway of `pair` does not route to it")
    with pytest.raises(SmokeError) as caught:
        status.require_healthy(world.servers, [unrouted], explicit=True)
    assert "`deploy restart second` restarts it" in caught.value.hint

    join.join(second, world.servers)
    [routed] = status.statuses(world.servers, "second", check_health=True)
    assert (routed.url, routed.health) == (pair.url, "healthy")
