"""`deploy reproduce`: the steps, what remains of them after a failure, and what is taken down."""

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest

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
from orchestrator.servers.group import RunningServer
from orchestrator.servers.servers import Servers

WAFER = load_published("wafer-glm52")
PLANNED = cache(load)  # of each profile once, which takes longer than the rest of these tests


@pytest.fixture(autouse=True)
def _planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in (experiments.reproduce, suites):
        monkeypatch.setattr(user, "load", PLANNED)


def asked(named: str = WAFER.name) -> ReproduceRequest:
    """A plain call."""
    return ReproduceRequest(published_name=named)


def steps(directory: Path) -> tuple[Step, ...]:
    return plan_steps(WAFER, directory, asked()).steps


def runs_of(*runs: tuple[str, str]) -> Published:
    """The published figures with other servers to bring up: profile and workload."""
    other = tuple(ReproduceRun(profile=profile, workloads=(workload,)) for profile, workload in runs)
    return WAFER.model_copy(update={"reproduce": WAFER.reproduce.model_copy(update={"runs": other})})


class Machine:
    """Runs nothing, remembers everything; ends one command otherwise than well. Knows which servers are up."""

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


def go(directory: Path, machine: Machine, *, keep: bool = False) -> None:
    planned = steps(directory)
    runner = StepRunner(run=machine, might_exist=machine.servers.__contains__)
    reproduce(planned, StepLog(directory / STATE_FILE, planned), runner, keep_failed=keep)


def test_preparation_steps_precede_first_server(tmp_path: Path) -> None:
    stages = [step.stage for step in steps(tmp_path)]
    assert stages[:16] == ["preflight"] * 4 + ["kernels"] * 4 + ["build"] * 4 + ["stage"] * 4
    measured = ["up", "smoke", "bench", "report", "down"] * 3
    assert stages[16:] == [*measured, "up", "smoke", "eval", "eval", "report", "down"]


def test_tuning_follows_staging(tmp_path: Path) -> None:
    planned = plan_steps(WAFER, tmp_path, replace(asked(), overrides=("engine=sglang-0.5.14-rocm",), tune=True))
    stages = dict.fromkeys(step.stage for step in planned.steps)
    assert [*stages][:5] == ["preflight", "stage", "tune", "kernels", "build"]


def test_kernel_table_is_built_before_the_image(tmp_path: Path) -> None:
    """The published 2,626 tok/s are those of tuned fp4 MoE kernels."""
    commands = [" ".join(step.argv) for step in steps(tmp_path)]
    table = commands.index("kernels build --profile mi355x-tp4dp2")
    assert commands.index("build --profile mi355x-tp4dp2") > table


def test_skipped_steps_are_listed_with_reasons(tmp_path: Path) -> None:
    published = runs_of(("cpu-tiny", "smoke-tiny"), ("b200-tp8", "wafer-20k-1k"))
    planned = plan_steps(published, tmp_path, asked("mine.yaml"))
    early = [step.id for step in planned.steps if step.stage in {"stage", "kernels", "build"}]
    assert early == ["b200-tp8/build", "b200-tp8/stage"]
    assert planned.skipped == (
        "no step `kernels` for `cpu-tiny`: the server uses no MXFP4 experts of aiter",
        "no step `kernels` for `b200-tp8`: the server uses no MXFP4 experts of aiter",
        "no step `build` for `cpu-tiny`: it does not run in a container",
        "no step `stage` for `cpu-tiny`: `up` generates its checkpoint",
    )
    assert ("report", str(tmp_path), "--published", "mine.yaml") in [step.argv for step in planned.steps]


def test_load_servers_admit_enough_concurrent_requests() -> None:
    """2.4 requests/s that take some 10 s each are 24 at once, more than the 16 of a single stream's server."""
    for server in of().servers:
        admitted = int(server.plan.flag("max-running-requests") or 0) * server.plan.layout.dp
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
    found = {step.stage: step for step in plan_steps(published, tmp_path, asked("x")).steps}
    assert found["up"].argv == ("up", "--profile", str(tmp_path / "mine.yaml"), "--name", "mine")
    assert found["bench"].output == tmp_path / "mine" / "brief"


def test_shared_downloads_are_counted_once(tmp_path: Path) -> None:
    """438 GB at 400 MB/s; the image comes with the first step that reads it."""
    about = {step.id: step.seconds for step in steps(tmp_path)}
    assert about["mi355x-tp8/stage"] - about["mi355x-tp4dp2/stage"] == pytest.approx(438e9 / 400e6, rel=0.001)
    assert about["mi355x-tp8/kernels"] > 10 * about["mi355x-tp4dp2/kernels"]
    assert about["mi355x-tp8/build"] == about["mi355x-tp4dp2/build"] < 60


def test_startup_estimate_scales_with_weights_size(tmp_path: Path) -> None:
    planned = plan_steps(runs_of(("cpu-tiny", "smoke-tiny")), tmp_path, asked("x"))
    tiny = next(step.seconds for step in planned.steps if step.stage == "up")
    large = next(step.seconds for step in steps(tmp_path) if step.stage == "up")
    assert large - tiny == pytest.approx(13 * 60 + 400, rel=0.01)  # and kernels are compiled, graphs captured


def test_each_server_stops_before_the_next_starts(tmp_path: Path) -> None:
    machine = Machine()
    go(tmp_path, machine)
    order = [line for line in machine.ran if line.startswith(("up", "down"))]
    assert [line.split()[0] for line in order] == ["up", "down"] * 4


def test_completed_steps_are_not_repeated(tmp_path: Path) -> None:
    go(tmp_path, Machine())
    again = Machine()
    go(tmp_path, again)
    assert again.ran == []


def test_server_stops_after_failure_and_restarts_on_resume(tmp_path: Path) -> None:
    machine = Machine(failing="bench mi355x-tp8-throughput --workload wafer")
    with pytest.raises(DeployError) as caught:
        go(tmp_path, machine)
    assert caught.value.exit_code == 8
    assert machine.ran[-1] == "down mi355x-tp8-throughput"
    again = Machine()
    go(tmp_path, again)
    assert again.ran[0] == "up --profile mi355x-tp8-throughput --name mi355x-tp8-throughput"
    assert again.ran[1].startswith("bench mi355x-tp8-throughput --workload wafer-20k-1k")


def test_keep_option_leaves_server_running(tmp_path: Path) -> None:
    machine = Machine(failing="smoke")
    with pytest.raises(DeployError):
        go(tmp_path, machine, keep=True)
    assert not any(line.startswith("down") for line in machine.ran)


def test_interrupt_stops_the_server(tmp_path: Path) -> None:
    machine = Machine("smoke", interrupted=True)
    with pytest.raises(Interrupted, match="interrupted") as caught:
        go(tmp_path, machine)
    assert caught.value.hint == "`mi355x-tp8` is stopped; repeat the command to continue"
    assert machine.ran[-1] == "down mi355x-tp8"


def test_stopped_server_is_not_stopped_again(tmp_path: Path) -> None:
    """The failed report took it down; what remains after the mended report is nothing."""
    with pytest.raises(DeployError):
        go(tmp_path, Machine("report"))
    again = Machine()
    go(tmp_path, again)
    assert again.ran[0].startswith("report")
    assert again.ran[1] == "up --profile mi355x-tp8-throughput --name mi355x-tp8-throughput"


def test_unresponsive_runtime_means_server_might_exist(tmp_path: Path) -> None:
    """While the Docker daemon restarts, a container is still to be taken down."""

    class Silent:
        def find(self, _name: str | None = None) -> tuple[RunningServer, ...]:
            raise HostError("the Docker daemon does not answer")

    servers = Servers(Home(tmp_path), {"docker": Silent()})  # type: ignore[dict-item]
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
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory whose first server is measured, and its state."""
    directory = tmp_path_factory.mktemp("begun")
    with pytest.raises(DeployError):
        go(directory, Machine(failing="bench mi355x-tp4dp2"))
    return directory, (directory / STATE_FILE).read_text()


def damaged(text: str, dice: Random) -> str:
    """Cut, overwritten, or with another value in one of its places."""
    at, kind = dice.randrange(len(text)), dice.randrange(5)
    if kind == 0:
        return text[:at]
    if kind == 1:
        return text[:at] + dice.choice('{}[]",:0\x00x') + text[at + dice.randrange(2) :]
    data, malformed = json.loads(text), dice.choice([None, [], {}, -1, True, "1", "", [["a", "b"]], ["ab"], {"a": 1}])
    if kind == 2:
        data[dice.choice(["steps", "done"])] = malformed
    elif kind == 3:
        data["done"][dice.choice([*data["done"]])] = malformed
    else:
        del data["done"][dice.choice([*data["done"]])]
    return json.dumps(data)


def test_corrupt_state_file_never_loses_completed_steps(
    begun: tuple[Path, str],
) -> None:
    """A list of steps in place of the table was taken for an empty one, and all of it was done again."""
    (directory, text), planned = begun, steps(begun[0])
    file, whole, dice, refused = directory / STATE_FILE, set(json.loads(text)["done"]), Random(20261122), 0
    for _ in range(100):
        changed = damaged(text, dice)
        file.write_text(changed)
        try:
            state = StepLog(file, planned)
        except UsageError as error:
            refused += 1
            assert (file.read_text(), error.location, bool(error.hint)) == (changed, str(file), True)  # noqa: PT017
            continue
        done = {key for key in json.loads(changed)["done"] if key in whole}
        assert {key for key in state.done if key in whole} == done
        machine = Machine()
        runner = StepRunner(run=machine, might_exist=machine.servers.__contains__)
        reproduce(planned, state, runner, keep_failed=False)
        assert not [
            step for step in planned if step.id in done and step.stage == "bench" and step.argv in machine.argvs
        ]
        assert done <= set(json.loads(file.read_text())["done"])
    assert 20 < refused < 80


def test_fifo_as_state_file_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / STATE_FILE)
    with pytest.raises(UsageError):
        StepLog(tmp_path / STATE_FILE, steps(tmp_path))


def test_measurement_duration_is_estimated() -> None:
    """200 requests a rate: 400 s at 0.5 rps down to 83 s at 2.4 rps are about 17 min, before climbing and drains."""
    published = bench_seconds(load_workload("wafer-20k-1k").model_copy(update={"ramp": None}), tok_s=213)
    assert published == pytest.approx(1005 + 6 * 30, abs=1)
    assert bench_seconds(load_workload("single-stream-10k-1.5k"), tok_s=213) == pytest.approx(20 * 1500 / 213)


def of(**options: object) -> ReproducePlan:
    request = replace(asked(), **options)  # type: ignore[arg-type]
    return plan_steps(WAFER, Path("results"), request)


def lines(planned: ReproducePlan, run: str = "") -> list[str]:
    return [" ".join(step.argv) for step in planned.steps if step.server == run or not run]


def test_overrides_are_passed_to_every_planning_command() -> None:
    planned = of(overrides=("engine=sglang-0.5.14-rocm", "flags.max-running-requests=64"))
    settings = "--set engine=sglang-0.5.14-rocm --set flags.max-running-requests=64"
    planning = [line for line in lines(planned) if "--profile" in line]
    assert len(planning) == 20
    assert all(settings in line for line in planning)
    assert {server.plan.engine.version for server in planned.servers} == {"0.5.14"}


def test_remote_host_builds_table_and_image_during_up() -> None:
    planned = of(host="ssh://node")
    assert {step.stage for step in planned.steps if "--host" not in step.argv} == {"report"}
    assert {step.stage for step in planned.steps} == {
        "preflight", "stage", "up", "smoke", "bench", "eval", "report", "down"
    }  # fmt: skip
    assert "no step `build` for `mi355x-tp8`: `up` builds it on ssh://node" in planned.skipped


def test_remote_server_is_stopped_on_its_host() -> None:
    asked_for: list[tuple[str, ...]] = []
    runner = StepRunner(run=lambda argv: asked_for.append(argv) or 0, might_exist=lambda _: True, host="ssh://node")
    assert runner.stop("tiny") == 0
    assert asked_for == [("down", "tiny", "--host", "ssh://node")]


def test_local_weights_are_verified_without_download(tmp_path: Path) -> None:
    planned = of(checkpoint=tmp_path, ablations=("baseline-checkpoint",))
    about = {step.id: step.seconds for step in planned.steps if step.stage == "stage"}
    assert about["mi355x-tp8/stage"] == about["mi355x-tp4dp2/stage"] < 60
    assert f"--set model.checkpoint.path={tmp_path}" in lines(planned, "mi355x-tp8")[0]
    other = next(server for server in planned.servers if server.is_baseline)
    assert other.plan.model.checkpoint.path == "zai-org/GLM-5.2-FP8", "another checkpoint does not lie there"
    assert about["mi355x-tp4dp2-evals-baseline-checkpoint/stage"] == pytest.approx(756e9 / 400e6, rel=0.01)


def test_each_ablation_is_a_separate_server() -> None:
    planned = of(ablations=("mtp-off", "table-off"))
    servers = {server.name: server for server in planned.servers}
    published = ["mi355x-tp8", "mi355x-tp8-throughput", "mi355x-tp4dp2", "mi355x-tp4dp2-evals"]
    assert list(servers) == [*published, "mi355x-tp8-mtp-off", "mi355x-tp4dp2-table-off"]
    assert servers["mi355x-tp8"].plan.flag("speculative-algorithm") == "EAGLE"
    assert servers["mi355x-tp8-mtp-off"].plan.flag("speculative-algorithm") is None
    table = {patch.id for patch in servers["mi355x-tp4dp2-table-off"].plan.patches}
    assert "aiter-fp4-moe-table" not in table
    assert "no step `kernels` for `mi355x-tp4dp2-table-off`: its server reads the tables of aiter" in planned.skipped
    assert [step.stage for step in planned.steps if step.server == "mi355x-tp8-mtp-off"][-5:] == [
        "up", "smoke", "bench", "report", "down"
    ]  # fmt: skip


def test_baseline_is_evaluated_like_the_full_server() -> None:
    planned = of(ablations=("baseline-checkpoint",), prices=("MI355X=2",), evals=False)
    asked_eval = [line for line in lines(planned) if line.startswith("eval ")]
    whole, baseline = "mi355x-tp4dp2-evals", "mi355x-tp4dp2-evals-baseline-checkpoint"
    assert asked_eval == [
        f"eval {server} --suite {suite} --output results/{server}"
        for server in (whole, baseline)
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
    planned = of()
    server = next(server for server in planned.servers if server.suites)
    assert [warning.id for warning in server.plan.warnings if warning.id == "speculation-is-greedy"] == []
    assert [" ".join(step.argv) for step in evals_of(planned)] == [
        "eval mi355x-tp4dp2-evals --suite gsm8k --limit 200 --output results/mi355x-tp4dp2-evals",
        "eval mi355x-tp4dp2-evals --suite gpqa-diamond --seeds 2 --output results/mi355x-tp4dp2-evals",
    ]
    assert planned.skipped[-1].startswith("no step `eval` for `tau2`: ")
    assert "`deploy eval mi355x-tp4dp2-evals --suite tau2` prints its commands" in planned.skipped[-1]


def test_suite_duration_is_estimated_from_longest_answers() -> None:
    """200 x 512 / 1944 tok/s = 52.7 s and 60 s before them; 396 x 32768 / 1944 = 6674.9 s and twice 60 s."""
    gsm8k, gpqa = evals_of(of())
    assert gsm8k.seconds == pytest.approx(112.7, abs=0.1)
    assert gpqa.seconds == pytest.approx(6794.9, abs=0.1)


def test_started_evaluation_is_resumed(tmp_path: Path) -> None:
    gsm8k, gpqa = evals_of(plan_steps(WAFER, tmp_path, asked()))
    assert gpqa.output is not None
    gpqa.output.mkdir(parents=True)
    (gpqa.output / "eval-gpqa-diamond.json").touch()
    assert (command(gsm8k)[-1], command(gpqa)[-1]) == (str(gsm8k.output), "--resume")


def test_failed_evaluation_stops_server_and_is_repeated(tmp_path: Path) -> None:
    machine = Machine(failing="eval mi355x-tp4dp2-evals --suite gpqa", interrupted=True)
    with pytest.raises(Interrupted):
        go(tmp_path, machine)
    assert machine.ran[-1] == "down mi355x-tp4dp2-evals"
    again = Machine()
    go(tmp_path, again)
    assert [line.split()[0] for line in again.ran] == ["up", "eval", "report", "down"]
    assert "gpqa-diamond" in again.ran[1]


def test_evaluations_can_be_skipped_or_use_local_dataset(tmp_path: Path) -> None:
    assert evals_of(of(evals=False)) == []
    assert {server.name for server in of(evals=False).servers} == {
        "mi355x-tp8",
        "mi355x-tp8-throughput",
        "mi355x-tp4dp2",
    }
    assert all(f"--dataset {tmp_path}" in " ".join(step.argv) for step in evals_of(of(dataset=tmp_path)))


def test_inaccessible_gated_dataset_is_rejected_before_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    planned = of()
    with pytest.raises(UsageError, match="the questions of `gpqa-diamond` are gated") as caught:
        require_all_questions(planned, planned.steps, None)
    assert "set HF_TOKEN" in caught.value.hint
    assert caught.value.hint.endswith("`--no-evals` skips the suites")
    require_all_questions(planned, [step for step in planned.steps if "gpqa" not in step.id], None)
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    require_all_questions(planned, planned.steps, None)


def test_unknown_ablation_is_rejected() -> None:
    with pytest.raises(UsageError, match="`wafer-glm52` has no ablation `mtp-of`") as caught:
        of(ablations=("mtp-of",))
    assert "mtp-off" in caught.value.hint


@pytest.mark.parametrize(("prices", "hourly"), [((), 1.48 * 8), (("2.10",), 2.10 * 8), (("B200=2.10",), 1.48 * 8)])
def test_cost_estimate_prefers_the_given_price(prices: tuple[str, ...], hourly: float) -> None:
    bill = CostEstimate.for_node(WAFER, prices)
    assert bill.hourly == pytest.approx(hourly)
    planned = [StepOutput(id=step.id, argv=step.argv, about_s=round(step.seconds)) for step in steps(Path("results"))]
    total = bill.to_table(planned).splitlines()[-1]
    assert total.split()[-1] == f"{bill.cost_of(sum(step.about_s for step in planned)):.2f}"
