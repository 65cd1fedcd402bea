"""`deploy top`: metrics, events, kernels and GPUs of two samples."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator.bench.energy import EnergyReading, EnergyUnavailableError
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.engine import client
from orchestrator.engine.responses import NoResponseError
from orchestrator.hosts.gpus.inventory import GIB, Gpu, GpuInventory
from orchestrator.planner.planning import load
from orchestrator.runtimes.base import ServerState, Status, Unit
from orchestrator.servers import top
from orchestrator.servers.group import Server

H200_LOG = Path(__file__).parents[1] / "engine/logs/h200-0.5.16-mtp-start.log"
MISS = (
    "[aiter] [fused_moe] using 2stage default for (256, {tokens}, 6144, 256, 257, 9, <ActivationType.Silu: 0>, "
    "'torch.bfloat16', 'torch.float4_e2m1fn_x2', 'torch.float4_e2m1fn_x2', 'QuantType.per_1x32', True, False)"
)


def exported(**counts: float) -> bytes:
    names = {"requests": "num_requests_total", "prompt": "prompt_tokens_total", "output": "generation_tokens_total"}
    names |= {"cached": "cached_tokens_total", "verified": "spec_verify_calls_total", "used": "num_used_tokens"}
    names |= {"room": "max_total_num_tokens", "running": "num_running_reqs", "queued": "num_queue_reqs"}
    return "\n".join(f'sglang:{names[name]}{{tp_rank="0"}} {value}' for name, value in counts.items()).encode()


@dataclass
class Scripted:
    """A server whose counters, log, processes and restarts a test sets."""

    run_dir: Path
    counters: bytes | NoResponseError = b""
    log: list[str] = field(default_factory=list)
    processes: tuple[str, ...] = ()
    restarts: int = 0
    at: float = 0.0

    def open(self, name: str) -> Server:
        unit = Unit(
            runtime="docker", name=name, profile="mi355x-tp8", plan_digest="", url="http://x", runtime_id="",
            run_dir=str(self.run_dir),
        )  # fmt: skip
        return Server.of(unit, self)  # type: ignore[arg-type]

    def state(self, _: Unit) -> ServerState:
        return ServerState(status=Status.RUNNING, exit_code=None, restarts=self.restarts, started_at=None, detail="")

    def process_cmdlines(self, _: Unit) -> tuple[str, ...]:
        return self.processes

    def tail(self, _: Unit) -> Callable[[], Iterator[str]]:
        def new() -> Iterator[str]:
            while self.log:
                yield self.log.pop(0)

        return new

    def exported(self) -> bytes:
        if isinstance(self.counters, NoResponseError):
            raise self.counters
        return self.counters


def no_energy(*_: object) -> EnergyReading:
    raise EnergyUnavailableError("no counter")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    scripted = Scripted(tmp_path)
    (tmp_path / "plan.json").write_text(load("mi355x-tp8").plan.to_json())
    monkeypatch.setattr(client, "EngineClient", lambda *_, **__: scripted)
    monkeypatch.setattr(top, "read_gpus", lambda *_: None)
    monkeypatch.setattr(top, "read_energy", no_energy)
    return scripted


def view_of(server: Scripted, home: Path) -> top.TopView:
    server.home = Home(home)  # type: ignore[attr-defined]
    return top.TopView(server, "owl", host=None, clock=lambda: server.at)  # type: ignore[arg-type]


def test_rates_are_computed_between_two_samples(server: Scripted, tmp_path: Path) -> None:
    view = view_of(server, tmp_path)
    server.counters = exported(requests=10, prompt=1000, output=500, cached=0, verified=100, used=0, room=4000)
    first = view.sample()
    server.at = 10.0
    server.counters = exported(
        requests=30, prompt=3000, output=1520, cached=500, verified=350, used=1000, room=4000, running=3, queued=2
    )
    activity = view.sample().activity
    assert first.activity.window_s == 0
    assert (activity.window_s, activity.requests_per_s, activity.input_tokens_per_s) == (10, 2.0, 200.0)
    assert (activity.output_tokens_per_s, activity.running, activity.queued) == (102.0, 3, 2)
    assert (activity.cache_hit_rate, activity.kv_cache_usage, activity.kv_tokens) == (0.25, 0.25, 4000)
    assert activity.accept_length == (1020 - 20) / 250  # the first token of a request comes from its prefill
    assert "102/s" in view.sample().to_text()


def test_rates_cover_the_last_minute(server: Scripted, tmp_path: Path) -> None:
    view = view_of(server, tmp_path)
    for second in range(0, 201, 10):
        server.at, server.counters = float(second), exported(requests=second, output=1)
        activity = view.sample().activity
    assert activity.window_s == 60
    assert activity.requests_per_s == 1.0


def test_missing_triton_configurations_count_on_cuda(server: Scripted, tmp_path: Path) -> None:
    """The log of a real server on an H200: one required and one optional configuration are missing."""
    (tmp_path / "plan.json").write_text(load("h200-glm-mtp").plan.to_json())
    view = view_of(server, tmp_path)
    server.counters = exported(output=1)
    assert view.sample().kernel_misses == 0
    server.log = H200_LOG.read_text().splitlines()
    frame = view.sample()
    assert frame.kernel_misses == 1
    assert [event.message for event in frame.events] == ["1 more MoE keys without a tuned kernel"]


def test_state_changes_are_events(server: Scripted, tmp_path: Path) -> None:
    (tmp_path / "processes.json").write_text(json.dumps({"processes": ["rank TP0", "rank TP1"]}))
    view = view_of(server, tmp_path)
    server.counters = exported(output=1)
    assert view.sample().events == ()
    server.counters = NoResponseError("http://x/metrics: no response within 5 s")
    unhealthy = view.sample()
    assert "UNHEALTHY: http://x/metrics: no response within 5 s" in unhealthy.to_text()
    server.processes = ("sglang::scheduler_TP0",)
    assert view.sample().problem == "rank TP1 has exited while the server runs"
    view.sample()
    server.processes = ("sglang::scheduler_TP0", "sglang::scheduler_TP1")
    server.counters, server.restarts = exported(output=1), 1
    server.log = [MISS.format(tokens=8), MISS.format(tokens=8), MISS.format(tokens=16)]
    frame = view.sample()
    assert frame.kernel_misses == 2
    assert [event.message for event in frame.events] == [
        "http://x/metrics: no response within 5 s",
        "rank TP1 has exited while the server runs",
        "recovered",
        "restarted (1 in all)",
        "2 more MoE keys without a tuned kernel",
    ]


def test_server_without_metrics_is_rejected(server: Scripted, tmp_path: Path) -> None:
    plan = load("mi355x-tp8", overrides=["flags.enable-metrics=false"]).plan
    (tmp_path / "plan.json").write_text(plan.to_json())
    with pytest.raises(UsageError, match="exports no metrics"):
        view_of(server, tmp_path)


@pytest.mark.parametrize(("runtime", "visible"), [("docker", 8), ("slurm", 0), ("kubernetes", 0)])
def test_local_gpus_are_hidden_for_cluster_servers(
    server: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, visible: int
) -> None:
    inventory = GpuInventory(
        vendor="amd", tool="amd-smi", driver=None, toolkit=None, processes=(), errors=(),
        gpus=tuple(gpu(index, 10) for index in range(8)),
    )  # fmt: skip
    monkeypatch.setattr(top, "read_gpus", lambda *_: inventory)
    owl = server.open("owl")
    remote = replace(owl, runtime=runtime)
    monkeypatch.setattr(server, "open", lambda _: remote)
    server.counters = exported(requests=0)
    assert len(view_of(server, tmp_path).sample().gpus) == visible


@pytest.mark.parametrize(("watts", "columns"), [(700.0, ["GPU", "VRAM", "power"]), (None, ["GPU", "VRAM"])])
def test_power_column_appears_only_when_measured(watts: float | None, columns: list[str]) -> None:
    sample = top.GpuSample(index=0, vram_used=10 * GIB, vram_bytes=288 * GIB, watts=watts)
    frame = top.Frame(
        time="", name="owl", url="", age="", problem="", activity=top.Activity(window_s=0), kernel_misses=None,
        gpus=(sample,), events=(),
    )  # fmt: skip
    assert columns in [line.split() for line in frame.to_text().splitlines()]


def gpu(index: int, used: int) -> Gpu:
    return Gpu(index=index, arch=None, name=None, compute_units=None, vram_bytes=288 * GIB, vram_used=used * GIB)


def test_only_gpus_of_server_are_sampled_periodically(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[float] = []

    def read(*_: object) -> GpuInventory:
        reads.append(1)
        gpus = tuple(gpu(index, 10 * len(reads)) for index in range(8))
        return GpuInventory(vendor="amd", tool="amd-smi", driver=None, toolkit=None, gpus=gpus, processes=(), errors=())

    readings = iter([(0.0, (0.0,) * 4), (20.0, (14_000.0, 2_000.0, 0.0, -1.0))])

    def energy() -> EnergyReading:
        at, joules = next(readings, (0.0, ()))
        if not joules:
            raise EnergyUnavailableError("gone")
        return EnergyReading(source="amd-smi", joules=joules, at_s=at)

    monkeypatch.setattr(top, "read_gpus", read)
    plan = load("mi355x-tp4dp2", overrides=["layout.dp=1"]).plan
    reader = top.GpuReader(plan, lambda *_: None, energy)  # type: ignore[arg-type, return-value]
    samples: list[Sequence[top.GpuSample]] = [reader.read(at) for at in (0, 5, 14.9, 20, 40)]
    assert len(reads) == 3
    assert [item.index for item in samples[0]] == [0, 1, 2, 3]  # four of eight GPUs of the node
    assert [item.watts for item in samples[0]] == [None] * 4
    assert samples[2] == samples[0]
    assert [item.watts for item in samples[3]] == [700.0, 100.0, 0.0, None]  # a counter that decreased is ignored
    assert [item.watts for item in samples[4]] == [None] * 4
    assert samples[3][0].vram_used == 20 * GIB
