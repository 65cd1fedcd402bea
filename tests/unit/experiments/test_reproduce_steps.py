"""Test the steps of `deploy reproduce`, resumption after a failure, and which servers are stopped."""

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
from plan_flags import flag_of

from orchestrator import experiments
from orchestrator.bench.cost import CostEstimate, StepOutput
from orchestrator.bench.published import Published, ReproduceRun, load_published
from orchestrator.bench.workload import load_workload
from orchestrator.core.errors import DeployError, HostError, Interrupted, UsageError
from orchestrator.core.paths import Home, data_root
from orchestrator.evals import suites
from orchestrator.experiments.reproduce import (
    ReproducePlan,
    ReproduceRequest,
    bench_seconds,
    plan_steps,
    require_all_questions,
)
from orchestrator.experiments.reproduce_steps import (
    STATE_FILE,
    Step,
    StepLog,
    StepRunner,
    command,
    might_exist,
    remaining_steps,
    reproduce,
)
from orchestrator.planner.planning import load
from orchestrator.runs.run_dir import open_run
from orchestrator.runtimes.base import Unit
from orchestrator.servers.servers import Servers

WAFER = load_published("wafer-glm52")
cached_load = cache(load)  # load each profile once: loading takes longer than the rest of these tests


@pytest.fixture(autouse=True)
def _cache_load(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (experiments.reproduce, suites):
        monkeypatch.setattr(module, "load", cached_load)


def request_for(name: str = WAFER.name) -> ReproduceRequest:
    return ReproduceRequest(published_name=name)


def steps(directory: Path) -> tuple[Step, ...]:
    return plan_steps(WAFER, directory, request_for()).steps


def runs_of(*runs: tuple[str, str]) -> Published:
    new_runs = tuple(ReproduceRun(profile=profile, workloads=(workload,)) for profile, workload in runs)
    return WAFER.model_copy(update={"reproduce": WAFER.reproduce.model_copy(update={"runs": new_runs})})


class FakeRunner:
    """A runner that only records the commands; one of them may fail. It tracks which servers are up."""

    def __init__(self, failing: str = "", *, interrupted: bool = False) -> None:
        self.failing = failing
        self.interrupted = interrupted
        self.ran: list[str] = []
        self.argvs: list[tuple[str, ...]] = []
        self.servers: set[str] = set()

    def __call__(self, argv: tuple[str, ...]) -> int:
        self.ran.append(" ".join(argv))
        self.argvs.append(argv)
        if self.failing and self.ran[-1].startswith(self.failing):
            if self.interrupted:
                raise KeyboardInterrupt
            return 8
        if argv[0] == "up":
            self.servers.add(argv[argv.index("--name") + 1])
        if argv[0] == "down":
            self.servers.remove(argv[1])
        return 0


def run_steps(directory: Path, fake: FakeRunner, *, keep: bool = False) -> None:
    planned = steps(directory)
    runner = StepRunner(run=fake, might_exist=fake.servers.__contains__)
    reproduce(planned, StepLog(directory / STATE_FILE, planned), runner, keep_failed=keep)


def test_preparation_steps_precede_first_server(tmp_path: Path) -> None:
    stages = [step.stage for step in steps(tmp_path)]
    assert stages[:16] == ["preflight"] * 4 + ["kernels"] * 4 + ["build"] * 4 + ["stage"] * 4
    measured = ["up", "smoke", "bench", "report", "down"] * 3
    assert stages[16:] == [*measured, "up", "smoke", "eval", "eval", "report", "down"]


def test_tuning_follows_staging(tmp_path: Path) -> None:
    planned = plan_steps(WAFER, tmp_path, replace(request_for(), overrides=("engine=sglang-0.5.14-rocm",), tune=True))
    stages = dict.fromkeys(step.stage for step in planned.steps)
    assert [*stages][:5] == ["preflight", "stage", "tune", "kernels", "build"]


def test_kernel_table_is_built_before_the_image(tmp_path: Path) -> None:
    """The published 2,626 tok/s need tuned FP4 MoE kernels."""
    commands = [" ".join(step.argv) for step in steps(tmp_path)]
    table = commands.index("kernels build --profile mi355x-tp4dp2")
    assert commands.index("build --profile mi355x-tp4dp2") > table


def test_skipped_steps_are_listed_with_reasons(tmp_path: Path) -> None:
    published = runs_of(("cpu-tiny", "smoke-tiny"), ("b200-tp8", "wafer-20k-1k"))
    planned = plan_steps(published, tmp_path, request_for("mine.yaml"))
    early = [step.id for step in planned.steps if step.stage in {"stage", "kernels", "build"}]
    assert early == ["b200-tp8/build", "b200-tp8/stage"]
    assert planned.skipped[:4] == (
        "no step `kernels` for `cpu-tiny`: the server uses no MXFP4 experts of aiter",
        "no step `kernels` for `b200-tp8`: the server uses no MXFP4 experts of aiter",
        "no step `build` for `cpu-tiny`: it does not run in a container",
        "no step `stage` for `cpu-tiny`: `up` generates its checkpoint",
    )
    assert ("report", str(tmp_path), "--published", "mine.yaml") in [step.argv for step in planned.steps]


def test_load_servers_admit_enough_concurrent_requests() -> None:
    """At 2.4 requests/s of some 10 s each, 24 run at once, more than the 16 of the single-stream server."""
    for server in plan_with().servers:
        admitted = int(flag_of(server.plan, "max-running-requests") or 0) * server.plan.layout.dp
        assert admitted >= (80 if "wafer-20k-1k" in server.workloads else 1), server.name


def test_each_measurement_has_a_separate_output_directory(tmp_path: Path) -> None:
    outputs = [step.output.relative_to(tmp_path) for step in steps(tmp_path) if step.output and step.stage == "bench"]
    assert [str(path) for path in outputs] == [
        "mi355x-tp8/single-stream-10k-1.5k",
        "mi355x-tp8-throughput/wafer-20k-1k",
        "mi355x-tp4dp2/wafer-20k-1k",
    ]


def test_profile_file_gives_server_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text((data_root() / "profiles" / "cpu-tiny.yaml").read_text())
    (tmp_path / "brief.yaml").write_text((data_root() / "profiles" / "workloads" / "smoke-tiny.yaml").read_text())
    published = runs_of((str(tmp_path / "mine.yaml"), str(tmp_path / "brief.yaml")))
    steps_by_stage = {step.stage: step for step in plan_steps(published, tmp_path, request_for("x")).steps}
    assert steps_by_stage["up"].argv == ("up", "--profile", str(tmp_path / "mine.yaml"), "--name", "mine")
    assert steps_by_stage["bench"].output == tmp_path / "mine" / "brief"


def test_shared_downloads_are_counted_once(tmp_path: Path) -> None:
    """The download is 438 GB at 400 MB/s; the image counts at the first step that reads it."""
    seconds = {step.id: step.seconds for step in steps(tmp_path)}
    assert seconds["mi355x-tp8/stage"] - seconds["mi355x-tp4dp2/stage"] == pytest.approx(438e9 / 400e6, rel=0.001)
    assert seconds["mi355x-tp8/kernels"] > 10 * seconds["mi355x-tp4dp2/kernels"]
    assert seconds["mi355x-tp8/build"] == seconds["mi355x-tp4dp2/build"] < 60


def test_startup_estimate_scales_with_weights_size(tmp_path: Path) -> None:
    planned = plan_steps(runs_of(("cpu-tiny", "smoke-tiny")), tmp_path, request_for("x"))
    tiny = next(step.seconds for step in planned.steps if step.stage == "up")
    large = next(step.seconds for step in steps(tmp_path) if step.stage == "up")
    assert large - tiny == pytest.approx(13 * 60 + 400, rel=0.01)  # plus compiling kernels and capturing graphs


def test_each_server_stops_before_the_next_starts(tmp_path: Path) -> None:
    fake = FakeRunner()
    run_steps(tmp_path, fake)
    order = [line for line in fake.ran if line.startswith(("up", "down"))]
    assert [line.split()[0] for line in order] == ["up", "down"] * 4


def test_completed_steps_are_not_repeated(tmp_path: Path) -> None:
    run_steps(tmp_path, FakeRunner())
    resumed = FakeRunner()
    run_steps(tmp_path, resumed)
    assert resumed.ran == []


def test_server_stops_after_failure_and_restarts_on_resume(tmp_path: Path) -> None:
    fake = FakeRunner(failing="bench mi355x-tp8-throughput --workload wafer")
    with pytest.raises(DeployError) as caught:
        run_steps(tmp_path, fake)
    assert caught.value.exit_code == 8
    assert fake.ran[-1] == "down mi355x-tp8-throughput"
    resumed = FakeRunner()
    run_steps(tmp_path, resumed)
    assert resumed.ran[0] == "up --profile mi355x-tp8-throughput --name mi355x-tp8-throughput"
    assert resumed.ran[1].startswith("bench mi355x-tp8-throughput --workload wafer-20k-1k")


def test_keep_option_leaves_server_running(tmp_path: Path) -> None:
    fake = FakeRunner(failing="smoke")
    with pytest.raises(DeployError):
        run_steps(tmp_path, fake, keep=True)
    assert not any(line.startswith("down") for line in fake.ran)


def test_interrupt_stops_the_server(tmp_path: Path) -> None:
    fake = FakeRunner("smoke", interrupted=True)
    with pytest.raises(Interrupted, match="interrupted") as caught:
        run_steps(tmp_path, fake)
    assert caught.value.hint == "`mi355x-tp8` is stopped; repeat the command to continue"
    assert fake.ran[-1] == "down mi355x-tp8"


def test_stopped_server_is_not_stopped_again(tmp_path: Path) -> None:
    """The run with the failed report has already stopped the server."""
    with pytest.raises(DeployError):
        run_steps(tmp_path, FakeRunner("report"))
    resumed = FakeRunner()
    run_steps(tmp_path, resumed)
    assert resumed.ran[0].startswith("report")
    assert resumed.ran[1] == "up --profile mi355x-tp8-throughput --name mi355x-tp8-throughput"


def test_unresponsive_runtime_means_server_might_exist(tmp_path: Path) -> None:
    """While the Docker daemon restarts, a container may still have to be stopped."""

    class UnresponsiveRuntime:
        def find(self, _name: str | None = None) -> tuple[Unit, ...]:
            raise HostError("the Docker daemon does not answer")

    servers = Servers(Home(tmp_path), {"docker": UnresponsiveRuntime()})  # type: ignore[dict-item]
    for profile in ("mi355x-tp8", "cpu-tiny"):
        plan = load(profile).plan
        open_run(servers.home, profile, plan).save("plan.json", plan.to_dict())
    assert might_exist(servers, "mi355x-tp8")
    assert not might_exist(servers, "cpu-tiny")
    assert not might_exist(servers, "never-started")


def test_started_measurement_is_resumed(tmp_path: Path) -> None:
    step = next(step for step in steps(tmp_path) if step.stage == "bench")
    assert command(step)[-1] != "--resume"
    assert step.output is not None
    step.output.mkdir(parents=True)
    (step.output / "result.json").touch()
    assert command(step)[-1] == "--resume"


def test_server_without_remaining_measurements_is_not_started(tmp_path: Path) -> None:
    planned = steps(tmp_path)
    done = {step.id: "" for step in planned if step.server == "mi355x-tp8" and step.stage not in {"report", "down"}}
    assert "up" not in {step.stage for step in remaining_steps(planned, done) if step.server == "mi355x-tp8"}


@pytest.mark.parametrize("text", ["", "[]", "[" * 10_000, '{"steps": "other", "done": {}}'])
def test_invalid_state_file_is_rejected(text: str, tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text(text)
    with pytest.raises(UsageError):
        StepLog(tmp_path / STATE_FILE, steps(tmp_path))


@pytest.fixture(scope="module")
def failed_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a directory in which the first servers are measured, and its state file."""
    directory = tmp_path_factory.mktemp("failed_run")
    with pytest.raises(DeployError):
        run_steps(directory, FakeRunner(failing="bench mi355x-tp4dp2"))
    return directory, (directory / STATE_FILE).read_text()


def corrupt(text: str, rng: Random) -> str:
    """Return the text truncated, overwritten, or with one value replaced or removed."""
    position, kind = rng.randrange(len(text)), rng.randrange(5)
    if kind == 0:
        return text[:position]
    if kind == 1:
        return text[:position] + rng.choice('{}[]",:0\x00x') + text[position + rng.randrange(2) :]
    data, malformed = json.loads(text), rng.choice([None, [], {}, -1, True, "1", "", [["a", "b"]], ["ab"], {"a": 1}])
    if kind == 2:
        data[rng.choice(["steps", "done"])] = malformed
    elif kind == 3:
        data["done"][rng.choice([*data["done"]])] = malformed
    else:
        del data["done"][rng.choice([*data["done"]])]
    return json.dumps(data)


def test_corrupt_state_file_never_loses_completed_steps(
    failed_run: tuple[Path, str],
) -> None:
    """A list of steps in place of the table once counted as empty, so all steps were repeated."""
    (directory, text), planned = failed_run, steps(failed_run[0])
    file, completed, rng, rejected = directory / STATE_FILE, set(json.loads(text)["done"]), Random(20261122), 0
    for _ in range(100):
        changed = corrupt(text, rng)
        file.write_text(changed)
        try:
            state = StepLog(file, planned)
        except UsageError as error:
            rejected += 1
            assert (file.read_text(), error.location, bool(error.hint)) == (changed, str(file), True)  # noqa: PT017
            continue
        done = {key for key in json.loads(changed)["done"] if key in completed}
        assert {key for key in state.done if key in completed} == done
        fake = FakeRunner()
        runner = StepRunner(run=fake, might_exist=fake.servers.__contains__)
        reproduce(planned, state, runner, keep_failed=False)
        assert not [step for step in planned if step.id in done and step.stage == "bench" and step.argv in fake.argvs]
        assert done <= set(json.loads(file.read_text())["done"])
    assert 20 < rejected < 80


def test_fifo_as_state_file_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / STATE_FILE)
    with pytest.raises(UsageError):
        StepLog(tmp_path / STATE_FILE, steps(tmp_path))


def test_measurement_duration_is_estimated() -> None:
    """200 requests per rate take 400 s at 0.5 rps down to 83 s at 2.4 rps: about 17 min without ramp and drains."""
    published = bench_seconds(load_workload("wafer-20k-1k").model_copy(update={"ramp": None}), tok_s=213)
    assert published == pytest.approx(1005 + 6 * 30, abs=1)
    assert bench_seconds(load_workload("single-stream-10k-1.5k"), tok_s=213) == pytest.approx(20 * 1500 / 213)


def plan_with(**options: object) -> ReproducePlan:
    request = replace(request_for(), **options)  # type: ignore[arg-type]
    return plan_steps(WAFER, Path("results"), request)


def lines(planned: ReproducePlan, run: str = "") -> list[str]:
    return [" ".join(step.argv) for step in planned.steps if step.server == run or not run]


def test_overrides_are_passed_to_every_planning_command() -> None:
    planned = plan_with(overrides=("engine=sglang-0.5.14-rocm", "flags.max-running-requests=64"))
    settings = "--set engine=sglang-0.5.14-rocm --set flags.max-running-requests=64"
    planning = [line for line in lines(planned) if "--profile" in line]
    assert len(planning) == 20
    assert all(settings in line for line in planning)
    assert {server.plan.engine.version for server in planned.servers} == {"0.5.14"}


def test_remote_host_builds_table_and_image_during_up() -> None:
    planned = plan_with(host="ssh://node")
    assert {step.stage for step in planned.steps if "--host" not in step.argv} == {"report"}
    assert {step.stage for step in planned.steps} == {
        "preflight", "stage", "up", "smoke", "bench", "eval", "report", "down"
    }  # fmt: skip
    assert "no step `build` for `mi355x-tp8`: `up` builds it on ssh://node" in planned.skipped


def test_remote_server_is_stopped_on_its_host() -> None:
    calls: list[tuple[str, ...]] = []
    runner = StepRunner(run=lambda argv: calls.append(argv) or 0, might_exist=lambda _: True, host="ssh://node")
    assert runner.stop("tiny") == 0
    assert calls == [("down", "tiny", "--host", "ssh://node")]


def test_local_weights_are_verified_without_download(tmp_path: Path) -> None:
    planned = plan_with(checkpoint=tmp_path, ablations=("baseline-checkpoint",))
    seconds = {step.id: step.seconds for step in planned.steps if step.stage == "stage"}
    assert seconds["mi355x-tp8/stage"] == seconds["mi355x-tp4dp2/stage"] < 60
    assert f"--set model.checkpoint.path={tmp_path}" in lines(planned, "mi355x-tp8")[0]
    baseline = next(server for server in planned.servers if server.is_baseline)
    assert baseline.plan.model.checkpoint.path == "zai-org/GLM-5.2-FP8", "the directory has only the other checkpoint"
    assert seconds["mi355x-tp4dp2-evals-baseline-checkpoint/stage"] == pytest.approx(756e9 / 400e6, rel=0.01)


def test_each_ablation_is_a_separate_server() -> None:
    planned = plan_with(ablations=("mtp-off", "table-off"))
    servers = {server.name: server for server in planned.servers}
    published = ["mi355x-tp8", "mi355x-tp8-throughput", "mi355x-tp4dp2", "mi355x-tp4dp2-evals"]
    assert list(servers) == [*published, "mi355x-tp8-mtp-off", "mi355x-tp4dp2-table-off"]
    assert flag_of(servers["mi355x-tp8"].plan, "speculative-algorithm") == "EAGLE"
    assert flag_of(servers["mi355x-tp8-mtp-off"].plan, "speculative-algorithm") is None
    table = {patch.id for patch in servers["mi355x-tp4dp2-table-off"].plan.patches}
    assert "aiter-fp4-moe-table" not in table
    assert "no step `kernels` for `mi355x-tp4dp2-table-off`: its server reads the tables of aiter" in planned.skipped
    assert [step.stage for step in planned.steps if step.server == "mi355x-tp8-mtp-off"][-5:] == [
        "up", "smoke", "bench", "report", "down"
    ]  # fmt: skip


def test_baseline_is_evaluated_like_the_full_server() -> None:
    planned = plan_with(ablations=("baseline-checkpoint",), prices=("MI355X=2",), evals=False)
    evals = [line for line in lines(planned) if line.startswith("eval ")]
    full, baseline = "mi355x-tp4dp2-evals", "mi355x-tp4dp2-evals-baseline-checkpoint"
    assert evals == [
        f"eval {server} --suite {suite} --output results/{server}"
        for server in (full, baseline)
        for suite in ("gsm8k --limit 200", "gpqa-diamond --seeds 2")
    ]
    reports = [line for line in lines(planned) if line.startswith("report ")]
    assert all("--price MI355X=2" in line for line in reports)
    assert ["--baseline" in line for line in reports] == [False, False, False, False, True]
    assert f"--baseline results/{baseline}/eval-gsm8k.json" in reports[-1]
    assert f"--baseline results/{baseline}/eval-gpqa-diamond.json" in reports[-1]


def evals_of(planned: ReproducePlan) -> list[Step]:
    return [step for step in planned.steps if step.stage == "eval"]


def test_published_suites_run_on_a_sampling_server() -> None:
    planned = plan_with()
    server = next(server for server in planned.servers if server.suites)
    assert [warning.id for warning in server.plan.warnings if warning.id == "speculation-is-greedy"] == []
    assert [" ".join(step.argv) for step in evals_of(planned)] == [
        "eval mi355x-tp4dp2-evals --suite gsm8k --limit 200 --output results/mi355x-tp4dp2-evals",
        "eval mi355x-tp4dp2-evals --suite gpqa-diamond --seeds 2 --output results/mi355x-tp4dp2-evals",
    ]
    assert planned.skipped[-1].startswith("no step `eval` for `tau2`: ")
    assert "`deploy eval mi355x-tp4dp2-evals --suite tau2` prints its commands" in planned.skipped[-1]


def test_suite_duration_is_estimated_from_longest_answers() -> None:
    """200 × 512 / 1944 tok/s + 60 s = 112.7 s; 396 × 32768 / 1944 tok/s + 2 × 60 s = 6794.9 s."""
    gsm8k, gpqa = evals_of(plan_with())
    assert gsm8k.seconds == pytest.approx(112.7, abs=0.1)
    assert gpqa.seconds == pytest.approx(6794.9, abs=0.1)


def test_started_evaluation_is_resumed(tmp_path: Path) -> None:
    gsm8k, gpqa = evals_of(plan_steps(WAFER, tmp_path, request_for()))
    assert gpqa.output is not None
    gpqa.output.mkdir(parents=True)
    (gpqa.output / "eval-gpqa-diamond.json").touch()
    assert (command(gsm8k)[-1], command(gpqa)[-1]) == (str(gsm8k.output), "--resume")


def test_failed_evaluation_stops_server_and_is_repeated(tmp_path: Path) -> None:
    fake = FakeRunner(failing="eval mi355x-tp4dp2-evals --suite gpqa", interrupted=True)
    with pytest.raises(Interrupted):
        run_steps(tmp_path, fake)
    assert fake.ran[-1] == "down mi355x-tp4dp2-evals"
    resumed = FakeRunner()
    run_steps(tmp_path, resumed)
    assert [line.split()[0] for line in resumed.ran] == ["up", "eval", "report", "down"]
    assert "gpqa-diamond" in resumed.ran[1]


def test_evaluations_can_be_skipped_or_use_local_dataset(tmp_path: Path) -> None:
    assert evals_of(plan_with(evals=False)) == []
    assert {server.name for server in plan_with(evals=False).servers} == {
        "mi355x-tp8",
        "mi355x-tp8-throughput",
        "mi355x-tp4dp2",
    }
    assert all(f"--dataset {tmp_path}" in " ".join(step.argv) for step in evals_of(plan_with(dataset=tmp_path)))


def test_inaccessible_gated_dataset_is_rejected_before_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    planned = plan_with()
    with pytest.raises(UsageError, match="the questions of `gpqa-diamond` are gated") as caught:
        require_all_questions(planned, planned.steps, None)
    assert "set HF_TOKEN" in caught.value.hint
    assert caught.value.hint.endswith("`--no-evals` skips the suites")
    require_all_questions(planned, [step for step in planned.steps if "gpqa" not in step.id], None)
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    require_all_questions(planned, planned.steps, None)


def test_unknown_ablation_is_rejected() -> None:
    with pytest.raises(UsageError, match="`wafer-glm52` has no ablation `mtp-of`") as caught:
        plan_with(ablations=("mtp-of",))
    assert "mtp-off" in caught.value.hint


@pytest.mark.parametrize(("prices", "hourly"), [((), 1.48 * 8), (("2.10",), 2.10 * 8), (("B200=2.10",), 1.48 * 8)])
def test_cost_estimate_prefers_the_given_price(prices: tuple[str, ...], hourly: float) -> None:
    estimate = CostEstimate.for_gpus(WAFER.rates_system.partition("×")[2], WAFER.gpus, prices)
    assert estimate.hourly == pytest.approx(hourly)
    planned = [
        StepOutput(id=step.id, argv=step.argv, estimated_s=round(step.seconds)) for step in steps(Path("results"))
    ]
    total = estimate.to_table(planned).splitlines()[-1]
    assert total.split()[-1] == f"{estimate.cost_of(sum(step.estimated_s for step in planned)):.2f}"
