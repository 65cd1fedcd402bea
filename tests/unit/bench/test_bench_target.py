"""Test how `bench` resolves a server name to a target, and options to a workload."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel_samples import MISS

from orchestrator.bench import run as command
from orchestrator.bench.benchmark import BenchRequest
from orchestrator.bench.published import load_published
from orchestrator.bench.run import (
    BenchOptions,
    ClaimedHardware,
    WorkloadChanges,
    apply_changes,
    bench,
    is_url,
    resume_command,
)
from orchestrator.bench.workload import Workload, load_workload
from orchestrator.core.errors import StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.planner.planning import load
from orchestrator.runtimes.base import ServerState, Status, Unit
from orchestrator.servers.servers import Servers
from orchestrator.servers.targets import server_target, url_target


class SingleServerRuntime:
    def __init__(self, handle: Unit, status: Status) -> None:
        self.handle, self.status = handle, status

    def state(self, _handle: Unit) -> ServerState:
        detail = "killed by SIGKILL" if self.status is Status.EXITED else ""
        return ServerState(status=self.status, exit_code=None, restarts=0, started_at=None, detail=detail)

    def find(self, _name: str | None = None) -> tuple[Unit, ...]:
        return (self.handle,)

    def logs(self, _handle: Unit, *, follow: bool) -> Iterator[str]:
        assert not follow
        yield MISS


def servers_with(profile: str, folder: Path, status: Status = Status.RUNNING) -> Servers:
    plan = load(profile).plan
    (folder / "plan.json").write_text(plan.to_json())
    handle = Unit(
        runtime=plan.runtime,
        name="mine",
        profile=profile,
        plan_digest=plan.digest,
        url="http://127.0.0.1:30000",
        run_dir=str(folder),
        runtime_id="1",
    )
    return Servers(Home(folder), {plan.runtime: SingleServerRuntime(handle, status)})  # type: ignore[dict-item]


def test_server_target_has_plan_and_gpu_count(tmp_path: Path) -> None:
    target = server_target(servers_with("mi355x-tp4dp2", tmp_path), "mine")
    assert target.url == "http://127.0.0.1:30000"
    assert target.provenance.plan_digest == load("mi355x-tp4dp2").plan.digest
    assert (target.provenance.profile, target.provenance.gpus) == ("mi355x-tp4dp2", 8)


def test_kernel_gate_is_evaluated_on_request(tmp_path: Path) -> None:
    gate = server_target(servers_with("mi355x-tp4dp2", tmp_path), "mine").kernel_gate()
    assert gate is not None
    assert len(gate["misses"]) == 1  # type: ignore[arg-type]


def test_cpu_server_has_no_gpus_and_no_kernel_gate(tmp_path: Path) -> None:
    target = server_target(servers_with("cpu-tiny", tmp_path), "mine")
    assert target.provenance.gpus == 0
    assert target.kernel_gate() is None


@pytest.mark.parametrize(("runtime", "read"), [("docker", True), ("kubernetes", False)])
def test_local_gpu_energy_is_not_read_for_pods(tmp_path: Path, runtime: str, read: bool) -> None:
    runtime_impl = next(iter(servers_with("mi355x-tp4dp2", tmp_path).runtimes.values()))
    runtime_impl.handle = dataclasses.replace(runtime_impl.handle, runtime=runtime)  # type: ignore[attr-defined]
    target = server_target(Servers(Home(tmp_path), {runtime: runtime_impl}), "mine")
    assert (command._energy_reader(target) is not None) is read


def test_benchmark_of_exited_server_names_exit_reason(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="`mine` is not running: killed by SIGKILL") as caught:
        server_target(servers_with("cpu-tiny", tmp_path, Status.EXITED), "mine")
    assert "`deploy restart mine` restarts it" in caught.value.hint


def test_any_endpoint_can_be_benchmarked_by_url() -> None:
    assert is_url("http://node:30000")
    assert not is_url("glm52")
    assert url_target("http://node:30000", hardware=ClaimedHardware(gpus=8)).provenance.gpus == 8


@pytest.mark.parametrize(
    ("layout", "normalized", "gpus"),
    [("tp8", "TP8", 8), ("TP4DP2", "TP4×DP2", 8), ("tp4xdp2", "TP4×DP2", 8), ("tp4", "TP4", 4), ("tp8dp1", "TP8", 8)],
)
def test_claimed_hardware_and_layout_are_normalized(layout: str, normalized: str, gpus: int) -> None:
    claimed = ClaimedHardware.parse(gpu="B200", gpus=None, layout=layout)
    provenance = url_target("http://node:30000", hardware=claimed).provenance
    assert (provenance.gpu, provenance.gpus, provenance.layout) == ("b200", gpus, normalized)


@pytest.mark.parametrize(
    ("gpu", "layout", "message"),
    [
        ("b20", "tp8", "no hardware `b20` found"),
        ("b200", "8", "`--layout 8` is not a layout"),
        ("b200", "tp0", "is not a layout"),
        ("b200", "tp8dp2x", "is not a layout"),
    ],
)
def test_unknown_hardware_or_layout_is_rejected(gpu: str, layout: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ClaimedHardware.parse(gpu=gpu, gpus=None, layout=layout)


def test_result_keeps_published_workload_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A published comparison is found by the workload name, which may contain a dot: `single-stream-10k-1.5k`."""
    requests: list[BenchRequest] = []
    monkeypatch.setattr("orchestrator.bench.run.measure", lambda request, _say: requests.append(request))
    published = load_published("wafer-glm52")
    for name in (published.single_stream.workload, published.workload.name):
        options = BenchOptions(
            tokens=(None, None),
            workload=name,
            changes=WorkloadChanges(),
            api="native",
            usd_per_gpu_hour=None,
            label="mine",
            directory=tmp_path,
            resume=False,
            command="deploy bench",
        )
        target = url_target("http://node:30000", hardware=ClaimedHardware(gpus=8))
        bench(target, options, lambda _point, _text: None)
        assert (requests[-1].workload_name, requests[-1].label) == (name, "mine")


def test_changed_rates_keep_workload_comparable_without_ramp() -> None:
    workload, overridden = apply_changes(load_workload("wafer-20k-1k"), WorkloadChanges(request_rates=(2.4, 2.0)))
    assert (workload.request_rates, workload.ramp, overridden) == ((2.0, 2.4), None, ())


def test_explicit_default_request_count_limits_trace() -> None:
    workload, overridden = apply_changes(Workload(trace="a.jsonl"), WorkloadChanges(requests=100))
    assert "requests" in workload.model_fields_set
    assert overridden == ("requests",)


def test_reduced_request_count_is_recorded_as_override() -> None:
    workload, overridden = apply_changes(load_workload("wafer-20k-1k"), WorkloadChanges(requests=20))
    assert (workload.requests, overridden) == (20, ("requests",))
    workload, overridden = apply_changes(load_workload("wafer-20k-1k"), WorkloadChanges(duration_s=60.0))
    assert (workload.requests_at(0.5), workload.requests_at(2.25), overridden) == (30, 135, ("duration_s",))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("wafer-20k-1k", {"requests": 10, "duration_s": 10.0}),
        ("wafer-20k-1k", {"requests": 1}),
        ("wafer-20k-1k", {"request_rates": (0.0, 1.0)}),
        ("single-stream-10k-1.5k", {"request_rates": (1.0,)}),
    ],
)
def test_change_incompatible_with_workload_is_rejected(name: str, changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        apply_changes(load_workload(name), WorkloadChanges(**changes))


@pytest.mark.parametrize(
    "url", ["http://me:pass@node:30000", "http://token@node", "ftp://node", "http://[", "http://:1"]
)
def test_rejected_url_does_not_leak_its_password(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        url_target(url)
    assert "pass@" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "deploy bench glm --workload wafer-20k-1k --requests 20 --host ssh://node",
            "deploy bench glm --workload wafer-20k-1k --requests 20 --host ssh://node --output 'my results' --resume",
        ),
        (
            "deploy bench glm -w w --output 'my results' --resume",
            "deploy bench glm -w w --output 'my results' --resume",
        ),
        ("deploy bench glm -w w '--output=my results'", "deploy bench glm -w w '--output=my results' --resume"),
    ],
)
def test_resume_command_repeats_all_options(command: str, expected: str) -> None:
    """Without its options, the command would measure another workload or another server and would resume nothing."""
    assert resume_command(command, Path("my results")) == expected


def test_requests_option_overrides_duration_in_workload_file() -> None:
    """The duration in the workload file once took precedence, although the result was marked as changed."""
    timed = load_workload("wafer-20k-1k").model_copy(update={"duration_s": 8.0})
    workload, overridden = apply_changes(timed, WorkloadChanges(requests=6))
    assert workload.requests_at(2.0) == 6
    assert "requests" in overridden


def options(
    *,
    workload: str | None = None,
    tokens: tuple[int | None, int | None] = (None, None),
    rates: tuple[float, ...] | None = None,
) -> BenchOptions:
    changes = WorkloadChanges(request_rates=rates, requests=None, duration_s=None)
    return BenchOptions(
        workload=workload,
        tokens=tokens,
        changes=changes,
        api="completions",
        usd_per_gpu_hour=None,
        directory=None,
        resume=False,
        command="deploy bench",
    )


def test_workload_is_built_from_token_counts() -> None:
    name, workload = command._workload(options(tokens=(800, 64), rates=(1.0, 2.0)), "short")

    assert name == "800-in-64-out"
    assert (workload.input_tokens, workload.output_tokens, workload.request_rates) == (800, 64, (1.0, 2.0))


@pytest.mark.parametrize("default", ["short", "smoke-tiny"])
def test_default_workload_is_named_and_used(default: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, workload = command._workload(options(), default)
    assert (name, workload) == (default, load_workload(default))
    assert f"note: workload `{default}`: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("requested", "hint"),
    [
        (options(workload="smoke-tiny", tokens=(800, 64), rates=(1.0,)), "omit them, or omit `-w`"),
        (options(workload="smoke-tiny", tokens=(None, 64)), "omit them, or omit `-w`"),
        (options(tokens=(800, 64)), "add `--request-rate 1,2,4`"),
        (options(tokens=(800, None)), "add `--output-tokens 64` and `--request-rate 1,2,4`"),
        (options(workload="smoke-tinny"), "did you mean `smoke-tiny`?"),
    ],
)
def test_incomplete_workload_options_get_a_hint(requested: BenchOptions, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        command._workload(requested, "short")

    assert hint in error.value.hint


@pytest.mark.parametrize(("workload", "marked"), [("wafer-20k-1k", ("requests",)), ("smoke-tiny", ())])
def test_only_published_workloads_are_marked_as_changed(
    workload: str, marked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requests: list[BenchRequest] = []
    monkeypatch.setattr(command, "measure", lambda request, _say: requests.append(request))
    requested = dataclasses.replace(
        options(workload=workload), changes=WorkloadChanges(requests=50), directory=tmp_path
    )
    command.bench(url_target("http://127.0.0.1:9"), requested, lambda *_: None)

    assert requests[0].overridden == marked


def test_warning_names_unjudgeable_rates_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "measure", lambda _request, _say: None)
    requested = dataclasses.replace(
        options(workload="smoke-tiny"), changes=WorkloadChanges(requests=24), directory=tmp_path
    )
    command.bench(url_target("http://127.0.0.1:9"), requested, lambda *_: None)

    stderr = capsys.readouterr().err
    assert "cannot judge 1, 2, 4 rps: 12 of 24 requests counted, 20 needed: send at least 40" in stderr


def test_workload_from_options_has_no_overrides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command line defines the whole workload; marked as changed, it would be comparable with nothing."""
    requests: list[BenchRequest] = []
    monkeypatch.setattr(command, "measure", lambda request, _say: requests.append(request))
    requested = options(tokens=(64, 8), rates=(4.0,))
    changes = dataclasses.replace(requested.changes, requests=40)
    target = url_target("http://127.0.0.1:9", hardware=ClaimedHardware(gpu=None, layout=None))

    command.bench(target, dataclasses.replace(requested, changes=changes, directory=tmp_path), lambda *_: None)

    assert (requests[0].workload.requests, requests[0].overridden) == (40, ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"session_header": "x-key: 1"}, "is not the name of a header"),
        (
            {"tool": "aiperf", "changes": WorkloadChanges(warmup_requests=2)},
            "it measures all requests of a session",
        ),
        ({"tool": "aiperf", "session_header": "x-key"}, "aiperf sends each recorded arrival as a session of its own"),
    ],
)
def test_unsupported_session_options_are_rejected(changes: dict[str, object], message: str) -> None:
    target = url_target("http://node:30000", hardware=ClaimedHardware(gpus=8))
    requested = dataclasses.replace(options(workload="trace.jsonl"), **changes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        bench(target, requested, lambda _point, _text: None)
