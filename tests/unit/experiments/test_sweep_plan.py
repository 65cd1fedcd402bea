"""Test the plan, limits and files of a sweep, without starting a server."""

from dataclasses import replace
from pathlib import Path

import pytest
from measured_samples import save, spread, tp4dp2, tp8

from orchestrator.bench.result import BenchResult, ComparabilityIssue, IssueKind, Point
from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import DeployError, HostError, ProfileError, StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.experiments.reproduce import bench_seconds
from orchestrator.experiments.sweep import trial as trial_module
from orchestrator.experiments.sweep.confirm import describe_difference, next_to_confirm, ranked
from orchestrator.experiments.sweep.files import (
    Winner,
    best_trials,
    profile_path,
    sweep_report,
    tune_command,
    write_sweep_report,
    write_winners,
)
from orchestrator.experiments.sweep.objective import Objective
from orchestrator.experiments.sweep.preview import affordable, preview_sweep, preview_text
from orchestrator.experiments.sweep.report import sweep_text
from orchestrator.experiments.sweep.run import (
    JOURNAL,
    Budget,
    Sweep,
    SweepRequest,
    default_output,
    open_search,
    plan_sweep,
)
from orchestrator.experiments.sweep.run import spent as spent_of
from orchestrator.experiments.sweep.search import Search, Suggestion, SweepTrial, TrialOutcome
from orchestrator.experiments.sweep.trial import _EarlyStopping, _evaluate, _try, _up_request
from orchestrator.planner.estimate import STEP_SECONDS, startup_seconds
from orchestrator.planner.planning import load

PAGE = Path(__file__).parents[3] / "docs/how-to/sweep.md"
SPACE = """
layouts: [{tp: 8}, {tp: 4, dp: 2}, {tp: 3}]
flags: {max-running-requests: [16, 32]}
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "home").mkdir()
    return Home(tmp_path / "home")


def make_sweep(home: Home, text: str = SPACE, profile: str = "mi355x-tp8", **more: object) -> Sweep:
    folder = home.root.parent
    (folder / "space.yaml").write_text(text)
    plain = SweepRequest(profile=profile, space=folder / "space.yaml", output=folder / "out", budget=Budget())
    return plan_sweep(replace(plain, **{"workload": "wafer-20k-1k", **more}), home)  # type: ignore[arg-type]


def test_preview_lists_points_that_do_not_fit(home: Home) -> None:
    sweep = make_sweep(home, usd_per_gpu_hour=2.0)
    text = preview_text(sweep, preview_sweep(sweep))
    assert "space: 6 points: 4 can be planned, 2 do not fit" in text
    assert "2 do not fit: " in text
    assert "are not divisible by tp 3" in text
    minutes = f"each about {sweep.trial_seconds / 60:.0f} min"
    assert f"up to 4 trials and 2 repeats of the best (more if another is close), {minutes}" in text
    load = bench_seconds(sweep.workload, tok_s=50.0)
    assert (
        sweep.trial_seconds == startup_seconds(sweep.plan) + load + STEP_SECONDS["down"]
    )  # a start includes its smoke test
    assert f"${6 * sweep.trial_seconds / 3600 * 16:.2f}" in text
    data = preview_sweep(sweep)
    assert (data.points, data.fitting, data.trials) == (6, 4, 4)
    assert data.space == {"layout": ["TP8", "TP4×DP2", "TP3"], "flags.max-running-requests": ["16", "32"]}
    assert not (home.root.parent / "out").exists()


def test_preview_reports_profile_outside_the_space(home: Home) -> None:
    sweep = make_sweep(home, "flags: {max-running-requests: [32, 64]}")
    text = preview_text(sweep, preview_sweep(sweep))
    assert "32, 64  16" in text
    assert "`mi355x-tp8` is not in the space; to compare with it, add `16` to `flags.max-running-requests`" in text
    assert "is not a trial" not in preview_text(make_sweep(home), preview_sweep(make_sweep(home)))


def test_documentation_example_space_is_plannable(home: Home) -> None:
    page = PAGE.read_text()
    profile = page.partition("deploy sweep ")[2].partition(" ")[0]
    sweep = make_sweep(home, page.partition("```yaml\n")[2].partition("```")[0], profile=profile)
    assert sweep.baseline_point is not None
    assert sweep.infeasible_reason(sweep.baseline_point) == ""


def test_capacity_warning_rejects_a_point(home: Home) -> None:
    """Warnings of `up` about waiting requests or memory reject a point, except those that the profile itself has."""
    limits = "flags: {max-running-requests: [16, 5000]}"
    sweep = make_sweep(home, limits)
    assert sweep.infeasible_reason({"flags.max-running-requests": 0}) == ""
    assert "5,000 concurrent requests of `single-stream-10k-1.5k` need" in sweep.infeasible_reason(
        {"flags.max-running-requests": 1}
    )
    same = make_sweep(home, limits, overrides=("flags.max-running-requests=5000",))
    assert same.infeasible_reason({"flags.max-running-requests": 1}) == ""
    short = make_sweep(home, "flags: {context-length: [8192, 32768]}")
    assert [short.infeasible_reason({"flags.context-length": index}) for index in (0, 1)] == [
        "a request of the load has 21,000 tokens; the context has 8,192",
        "",
    ]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"objective": Objective.USD}, "needs a price"),
        ({"budget": Budget(usd=5.0)}, "`--max-cost` needs a price per hour"),
        ({"workload": "single-stream-10k-1.5k", "objective": Objective.KNEE}, "is a closed-loop load"),
        ({"workload": "smoke-tinny"}, "no workload `smoke-tinny` found"),
        ({"request_rates": (90.0,)}, "cannot find a knee"),
        ({"request_rates": (90.0,), "objective": Objective.TOK_S}, "; `tok-s` is measured at the knee"),
        ({"name": "No Name"}, "invalid profile name"),
        ({"name": "mi355x-tp8"}, "profile `mi355x-tp8` exists"),
        ({"name": "mi355x-tp4dp2"}, "profile `mi355x-tp4dp2` exists"),
        ({"usd_per_gpu_hour": 0.0}, "`--price 0` is not a price"),
        ({"profile": "cpu-tiny", "objective": Objective.PER_WATT}, "`tok-s-per-watt` needs GPUs"),
    ],
)
def test_unmeasurable_objective_is_rejected_early(home: Home, more: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        profile_path(make_sweep(home, **more))  # type: ignore[arg-type]


def test_unknown_option_in_space_has_line_number(home: Home) -> None:
    text = "flags:\n  max-running-requests: [16]\n  schedule-polcy: [lpm, fcfs]\n  schedule-policy: [lpm, fcsf]\n"
    with pytest.raises(ProfileError) as error:
        make_sweep(home, text)
    option, value = error.value.problems_or_self()
    assert (option.location.rpartition("/")[2], option.hint) == ("space.yaml:3", "did you mean `schedule-policy`?")
    assert "fcsf" in value.message
    assert value.location.endswith("space.yaml:4")


def test_missing_text_file_is_rejected_before_start(home: Home) -> None:
    load = home.root.parent / "load.yaml"
    load.write_text("{input_tokens: 20, output_tokens: 10, prompts: text, text_file: gone.txt, request_rates: [1.0]}\n")
    with pytest.raises(ProfileError, match="cannot read `text_file`"):
        make_sweep(home, workload=str(load))


def test_default_output_is_named_after_profile() -> None:
    assert default_output("mi355x-glm-4.7-flash") == Path("results/sweep-mi355x-glm-4.7-flash")
    assert default_output("./own/house.yaml") == Path("results/sweep-house")


def test_ladder_ends_at_requested_rate(home: Home) -> None:
    sweep = make_sweep(home, f"{SPACE}ttft_p95_s: 2.0\n", at_rps=1.7, objective=Objective.TOK_S)
    assert sweep.workload.request_rates == (0.5, 1.0, 1.5, 1.7)
    assert (sweep.workload.ramp, sweep.workload.slo.ttft_p95_s) == (None, 2.0)
    assert sweep.goal.words == "output tok/s per node at 1.7 requests/s, with a TTFT p95 of at most 2 s"


def test_closed_load_optimizes_throughput(home: Home) -> None:
    sweep = make_sweep(home, workload=None)  # the workload of the profile
    assert sweep.goal.words == "output tok/s per node"


def trial(number: int, outcome: TrialOutcome = TrialOutcome.MEASURED, seconds: float = 3600.0) -> SweepTrial:
    return SweepTrial(number=number, point={}, outcome=outcome, seconds=seconds)


def test_budget_spans_resumed_sweeps(home: Home) -> None:
    two = (trial(1), trial(2, TrialOutcome.FAILED), trial(3, TrialOutcome.INFEASIBLE, 0.0))
    for budget, reason in (
        (Budget(trials=2), "the limit of 2 trials is reached"),
        (Budget(trials=3), ""),
        (Budget(hours=2.9), "one more trial would exceed 2.9 hours: 120 min were used"),
        (Budget(hours=3.0), ""),
        (Budget(usd=40.0), "one more trial would exceed $40: $32.00 were used"),
        (Budget(usd=48.0), ""),
    ):
        assert spent_of(two, make_sweep(home, budget=budget, usd_per_gpu_hour=2.0, repeats=0)) == reason
    for hours, confirmed, continues in ((3.9, 0.0, False), (4.0, 0.0, True), (4.0, 3600.0, False), (20.0, 0.0, True)):
        spent = spent_of(two, make_sweep(home, budget=Budget(hours=hours), repeats=2), confirmed=confirmed)
        assert (spent == "") is continues, "a quarter is reserved for repeating the best trial"
    assert spent_of((), make_sweep(home, budget=Budget(hours=0.01))) == "", "at least one trial runs to its end"
    rejected = tuple(trial(number, TrialOutcome.INFEASIBLE, 60.0) for number in range(70))
    assert spent_of(rejected, make_sweep(home)) == "", "a rejected point does not count as a trial"
    assert spent_of(rejected, make_sweep(home, budget=Budget(hours=1))).endswith("1 hours: 70 min were used")
    assert spent_of(tuple(map(trial, range(20))), make_sweep(home)) == "the limit of 20 trials is reached"
    assert affordable(make_sweep(home, budget=Budget(hours=make_sweep(home).trial_seconds / 3600 * 2.5)), 6) == 2


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ProfileError("sglang 0.5.16 rejects arguments"), TrialOutcome.INFEASIBLE),
        (StartError("the server exited"), TrialOutcome.FAILED),
    ],
)
def test_point_rejected_by_sglang_is_no_trial(
    error: DeployError, outcome: TrialOutcome, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def up(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(trial_module, "up", up)
    monkeypatch.setattr(trial_module, "stop_sweep_server", lambda _: None)
    sweep = make_sweep(home)
    with open_search(sweep) as search:
        suggestion = search.ask(sweep.baseline_point)
        assert suggestion is not None
        _try(sweep, search, suggestion)
        assert [(trial_.outcome, trial_.reason) for trial_ in search.trials] == [(outcome, error.message)]


def test_sweeps_use_distinct_server_names(home: Home) -> None:
    first, second = make_sweep(home), make_sweep(home, output=home.root.parent / "other")
    assert first.server.startswith("mi355x-tp8-sweep-")
    assert first.server != second.server


def record_results(sweep: Sweep, search: Search, results: dict[int, BenchResult]) -> tuple[Winner, ...]:
    """Record the results of trials, the profile's own first, then a failed trial; return the winners."""
    for number, result in results.items():
        suggestion = search.ask(sweep.baseline_point)
        assert suggestion is not None
        save(result, sweep.request.output / f"trials/{number}")
        values = sweep.goal.values(result)
        assert values is not None
        finished = SweepTrial(
            number=number,
            point=suggestion.point,
            outcome=TrialOutcome.MEASURED,
            values=values,
            is_baseline=suggestion.is_baseline,
            directory=f"trials/{number}",
            answers="passed: all 3",
            seconds=600.0,
        )
        search.record_trial(suggestion, finished)
    suggestion = search.ask(None)
    assert suggestion is not None
    reason = {"reason": "the server exited <early>", "diagnosis": "cause: gpu-out-of-memory"}
    search.record_trial(suggestion, SweepTrial(number=3, point=suggestion.point, outcome=TrialOutcome.FAILED, **reason))  # type: ignore[arg-type]
    return write_winners(sweep, search)


def text_of(sweep: Sweep, search: Search, winners: tuple[Winner, ...] = (), ended: str = "") -> str:
    return sweep_text(sweep_report(sweep, search, winners, ended))


def test_winner_is_written_as_profile_with_report(home: Home) -> None:
    sweep = make_sweep(home, overrides=("server.port=31000",))
    with open_search(sweep) as search:
        [winner] = record_results(sweep, search, {1: tp8(), 2: tp4dp2()})
        report = write_sweep_report(sweep, search, (winner,), ended="3 trials were run")
        plain_text = text_of(sweep, search, (winner,), "3 trials were run")
    assert winner.profile == home.root / "profiles/mi355x-tp8-swept.yaml"
    loaded = load("mi355x-tp8-swept", catalog=Catalog.of(home))
    assert loaded.plan.server.port == 31000
    [running] = [flag for flag in loaded.plan.flags if flag.name == "max-running-requests"]
    assert running.origin == "measured"
    assert "knee, requests/s 2.4, 1.5 for `mi355x-tp8` itself" in running.source
    text = winner.profile.read_text()
    assert "Answers: passed: all 3." in text
    page = report.read_text()
    for message in ("Objective: knee, requests/s", "Best: layout", "3 trials were run", "the server exited"):
        assert message in page
        assert message in plain_text
    assert "gpu-out-of-memory" in page
    assert "<early>" not in page
    assert "Throughput and interactivity" in page
    assert '<svg class="plot" id="pareto"' in page


def record_repeat(search: Search, number: int, value: float, seconds: float = 600.0) -> None:
    search.confirm(replace(trial(number, seconds=seconds), values=(value,)))


def test_best_trials_are_repeated_before_naming_winner(home: Home) -> None:
    sweep = make_sweep(home)
    with open_search(sweep) as search:
        record_results(sweep, search, {1: tp8(), 2: tp4dp2()})  # 1.5 and 2.4 requests/s
        repeated = []
        for value in (1.4, 1.6, 1.7, 1.8):
            trial = next_to_confirm(sweep, search)
            assert trial is not None
            repeated.append(trial.number)
            record_repeat(search, trial.number, value)
        assert repeated == [2, 2, 1, 1], "after 1.4, the profile's 1.5 may be as good"
        assert next_to_confirm(sweep, search) is None
        assert [best.number for best in best_trials(sweep, search)] == [1], "1.5, 1.7 and 1.8 against 2.4, 1.4 and 1.6"
        [winner] = write_winners(sweep, search)
        report = text_of(sweep, search, (winner,))
    assert "1.7 (median of 3 runs, 1.5 to 1.8)" in report
    assert "Trial 2: 3 runs: 2.4, 1.4, 1.6." in report


def test_only_close_contenders_are_repeated(home: Home) -> None:
    sweep = make_sweep(home)
    with open_search(sweep) as search:
        record_results(sweep, search, {1: tp8(), 2: tp4dp2()})
        for _ in range(2):
            trial = next_to_confirm(sweep, search)
            assert trial is not None
            record_repeat(search, trial.number, 2.3)
        assert next_to_confirm(sweep, search) is None
        assert next_to_confirm(replace(sweep, repeats=0), search) is None
        [winner] = write_winners(sweep, search)
    assert winner.profile is not None
    text = winner.profile.read_text()
    assert "deploy sweep, 2026-11-20, trial 2: knee, requests/s 2.3 (median of 3 runs, 2.3 to 2.4), 1.5 for" in text
    assert "3 runs: 2.4, 2.3, 2.3." in text
    front = make_sweep(home, objective=Objective.PARETO, output=home.root.parent / "front")
    with open_search(front) as search:
        record_results(front, search, {1: tp8(), 2: tp4dp2()})
        assert next_to_confirm(front, search) is None


def test_description_is_shown_in_preview_and_report(home: Home) -> None:
    sweep = make_sweep(home, f"description: how many at once\n{SPACE}", repeats=4)
    text = preview_text(sweep, preview_sweep(sweep))
    assert text.startswith("how many at once\n")
    assert "and 4 repeats of the best" in text
    assert preview_sweep(sweep).confirm == 4
    with open_search(sweep) as search:
        report = write_sweep_report(sweep, search)
    assert "How many at once." in report.read_text()


def test_original_profile_may_win(home: Home) -> None:
    sweep = make_sweep(home)
    with open_search(sweep) as search:
        [winner] = record_results(sweep, search, {1: tp4dp2(), 2: tp8()})
    assert (winner.trial.is_baseline, winner.profile) == (True, None)
    assert not (home.root / "profiles").exists()


def test_saturated_trial_is_reported_but_cannot_win(home: Home) -> None:
    """Such a result once ended the whole sweep; the report now has a reason for each trial without a value."""
    sweep = make_sweep(home, "flags: {max-running-requests: [32, 64, 128]}")
    lag = ComparabilityIssue(kind=IssueKind.CLIENT_LAGGED, detail="the load client was late: p99 70 ms")
    outcomes = []
    with open_search(sweep) as search:
        for result in (
            replace(tp8(), knee_rps=None),
            replace(tp8(), knee_rps=None, points=(replace(tp8().points[0], sustained=None),)),
            replace(tp8(), comparability_issues=(lag,)),
        ):
            suggestion = search.ask(None)
            assert suggestion is not None
            pending = replace(trial(len(outcomes) + 1, TrialOutcome.INTERRUPTED), point=suggestion.point)
            finished = _evaluate(sweep, result, _EarlyStopping(sweep, suggestion), pending)
            search.record_trial(suggestion, finished)
            outcomes.append(finished.outcome)
        assert write_winners(sweep, search) == ()
        text = text_of(sweep, search)
    assert outcomes == [TrialOutcome.SATURATED, TrialOutcome.UNSTEADY, TrialOutcome.LAGGED]
    assert "trial 1 saturated: at 2 requests/s: TTFT grew by 0.21 s a second" in text
    assert "trial 3 client-lagged: 1.5, but the load client was late: p99 70 ms" in text
    assert not (home.root / "profiles").exists()


def test_saturated_repeat_ranks_below_any_value(home: Home) -> None:
    sweep = make_sweep(home)
    with open_search(sweep) as search:
        record_results(sweep, search, {1: tp8(), 2: tp4dp2()})  # 1.5 and 2.4 requests/s
        search.confirm(replace(trial(2, TrialOutcome.LAGGED), reason="2.4, but late"))
        assert [trial_.number for trial_ in ranked(sweep, search)] == [2, 1], (
            "a late client does not measure the server"
        )
        search.confirm(replace(trial(2, TrialOutcome.SATURATED), reason="TTFT p95 17.20 s exceeds 5 s"))
        assert [trial_.number for trial_ in ranked(sweep, search)] == [1]
        following = next_to_confirm(sweep, search)
        assert following is not None
        record_repeat(search, following.number, 1.6)
        text = text_of(sweep, search)
    assert following.number == 1
    assert "3 runs: 2.4, client-lagged (2.4, but late), saturated (TTFT p95 17.20 s exceeds 5 s)" in text


def test_interrupted_trial_is_not_counted(home: Home) -> None:
    sweep = make_sweep(home)
    with open_search(sweep) as search:
        suggestion = search.ask(sweep.baseline_point)
        assert suggestion is not None
        search.record_trial(suggestion, replace(trial(1, TrialOutcome.INTERRUPTED), point=suggestion.point))
        report = sweep_report(sweep, search, (), "ended early: port 31000 is taken")
    assert (report.rows, report.headline[-1]) == (
        (),
        "0 trials of 6 points: none; 60 min. Ended early: port 31000 is taken.",
    )


def faster(point: Point) -> Point:
    assert point.latency is not None
    return replace(point, latency=replace(point.latency, tpot_s=spread(0.001, 0.002)))


def test_tie_is_won_by_profile_or_lowest_latency(home: Home) -> None:
    same = replace(tp8(), points=tuple(map(faster, tp8().points)))
    sweep = make_sweep(home)
    with open_search(sweep) as search:
        record_results(sweep, search, {1: tp8(), 2: same})
        assert [best.number for best in best_trials(sweep, search)] == [1]
    other = make_sweep(home, "flags: {max-running-requests: [32, 64, 128]}", output=home.root.parent / "other")
    with open_search(other) as search:
        record_results(other, search, {1: tp8(), 2: same})
        assert [best.number for best in best_trials(other, search)] == [2]


def test_winner_extends_profile_file_by_path(home: Home) -> None:
    profile = home.root.parent / "house.yaml"
    profile.write_text("extends: mi355x-tp8\nflags: {max-running-requests: 16}\n")
    sweep = make_sweep(home, profile=str(profile))
    with open_search(sweep) as search:
        [winner] = record_results(sweep, search, {1: tp8(), 2: tp4dp2()})
    assert winner.profile is not None
    assert f"extends: {profile}" in winner.profile.read_text()
    assert load(str(winner.profile), catalog=Catalog.of(home)).plan.profile == "house-swept"


def test_existing_user_profile_is_not_overwritten(home: Home) -> None:
    (home.root / "profiles").mkdir()
    (home.root / "profiles/mine.yaml").write_text("extends: mi355x-tp8\n")
    with pytest.raises(UsageError, match="profile `mine` exists"):
        profile_path(make_sweep(home, name="mine"))


def test_sweep_directory_allows_one_command_at_a_time(home: Home) -> None:
    sweep = make_sweep(home)
    with pytest.raises(UsageError, match="no sweep to resume found"), open_search(make_sweep(home, resume=True)):
        pass
    with open_search(sweep):
        pass
    with pytest.raises(UsageError, match="already has a sweep"), open_search(sweep):
        pass
    resumed = make_sweep(home, resume=True)
    with open_search(resumed), pytest.raises(HostError, match="another `deploy sweep`"), open_search(resumed):
        pass
    with open_search(make_sweep(home, resume=True, overrides=("server.port=31000",))):
        pass
    with pytest.raises(UsageError, match="another host"), open_search(make_sweep(home, resume=True, host="ssh://node")):
        pass
    with (
        pytest.raises(UsageError, match="another objective"),
        open_search(make_sweep(home, resume=True, objective=Objective.TOK_S)),
    ):
        pass


def test_truncated_journal_is_readable(home: Home) -> None:
    sweep = make_sweep(home)
    with open_search(sweep) as search:
        record_results(sweep, search, {1: tp8()})
    journal = sweep.request.output / JOURNAL
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 5, "wor')
    with open_search(make_sweep(home, resume=True)) as search:
        assert len(search.trials) == 2
    with open_search(make_sweep(home, resume=True)) as search:
        assert len(search.trials) == 2


@pytest.mark.parametrize(
    ("misses", "message"),
    [
        ([{"token": "64"}, {"token": "8"}], "deploy kernels tune mi355x-tp8 --tokens 8,64` tunes them"),
        (["E=33,N=1024.json"], "1 MoE shape has no tuned kernel under this load: `deploy kernels tune mi355x-tp8`"),
        ([], None),
    ],
)
def test_missed_kernels_hint_at_tuning(home: Home, misses: list[object], message: str | None) -> None:
    result = tp8()
    gate: dict[str, object] = {"misses": misses}
    run = replace(result.run, provenance=replace(result.run.provenance, kernel_gate=gate))
    command = tune_command(make_sweep(home), Winner(trial=trial(1), profile=None), replace(result, run=run))
    assert (message in command) if message and command else command is message


def test_client_lag_takes_precedence_over_saturation(home: Home) -> None:
    """The trial was once called saturated, while `compare` and `history` called the same result client-lagged."""
    sweep = make_sweep(home, f"{SPACE}ttft_p95_s: 0.1\n", objective=Objective.TOK_S, at_rps=2.0)
    lag = ComparabilityIssue(kind=IssueKind.CLIENT_LAGGED, detail="the load client was late", point="2")
    late = replace(tp8(), comparability_issues=(lag,))
    with open_search(sweep) as search:
        suggestion = search.ask(None)
        assert suggestion is not None
        finished = [
            _evaluate(sweep, measured, _EarlyStopping(sweep, suggestion), trial(1)) for measured in (tp8(), late)
        ]
    assert [trial_.outcome for trial_ in finished] == [TrialOutcome.SATURATED, TrialOutcome.LAGGED]
    assert finished[1].reason.endswith(", but the load client was late")


def test_best_is_compared_with_runner_up_like_compare(home: Home) -> None:
    sweep = make_sweep(home)
    with open_search(sweep) as search:
        record_results(sweep, search, {1: tp4dp2(), 2: tp8()})  # 2.4 and 1.5 requests/s
        [best] = best_trials(sweep, search)
        assert describe_difference(sweep, search, best) == (
            "The noise is not known: `mi355x-tp8` and trial 2 have one value each"
        )
        for number, value in ((1, 2.3), (1, 2.5), (2, 1.4), (2, 1.6)):
            record_repeat(search, number, value)
        assert describe_difference(sweep, search, best) == (
            "`mi355x-tp8` is better than trial 2 by more than the noise: knee, requests/s +60 % (+45 to +75 %)"
        )
        for number, value in ((1, 1.2), (2, 2.6)):
            record_repeat(search, number, value)
        text = text_of(sweep, search, (Winner(trial=best, profile=None),))
    assert "`mi355x-tp8` and trial 2 differ by no more than the noise: knee, requests/s +18 % (" in text
    assert "measured once" not in text, "each trial was measured several times"


def test_trial_server_joins_no_gateway(home: Home) -> None:
    """A gateway would mix its users' requests with those of the measurement."""
    sweep = make_sweep(home, overrides=("server.gateway=pair",))
    request = _up_request(sweep, Suggestion(point=next(sweep.space.points()), is_baseline=True, trial=None))
    assert load(request.profile, overrides=request.overrides).plan.server.gateway is None
