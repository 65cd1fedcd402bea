"""`deploy watch` over several hours of a simulated clock: no wrong and no missing restarts."""

from dataclasses import replace

import pytest
from watched_world import BOOT, HEALTHY, SNAPSHOT_SECONDS, TICK, UNHEALTHY, VERIFIED, Later, World

from orchestrator.servers.watch.events import EventKind
from orchestrator.servers.watch.snapshot import RestartOutcome, RestartResult


def test_idle_server_causes_no_events_and_few_snapshots() -> None:
    world = World()
    world.pass_by(world.watcher(), 3600)
    assert world.kinds == ["watching"]
    assert world.snapshots <= 13


@pytest.mark.parametrize("after", [4.0, 25.0, 300.0, None])
def test_server_under_full_load_is_not_restarted(after: float | None) -> None:
    """Behind a long prefill or queue a token takes minutes, but the progress counters of the ranks increase."""
    world = World(answers_after=[after, after], makes_progress=[True, True])
    world.pass_by(world.watcher(), 3600)
    assert world.kinds == ["watching"]
    assert world.snapshots <= 130  # a snapshot takes a second of CPU: at most 3 % of a core


def test_slow_response_without_progress_counters_is_healthy() -> None:
    world = World(answers_after=[30.0, 100.0], counts_work=False)
    world.pass_by(world.watcher(), 3600)
    assert world.restarted_at == []


def test_exited_server_is_restarted_within_seconds() -> None:
    world = World()
    watcher = world.watcher()
    world.pass_by(watcher, 102)  # between two probes of the ranks
    died = world.now
    world.die()
    world.pass_by(watcher, 200)
    assert world.kinds == ["watching", "died", "restarted"]
    assert "killed by SIGKILL; restart 1 of 3" in world.events[1][2]
    assert world.restarted_at[0] - died <= 1 + SNAPSHOT_SECONDS + 3 * TICK


@pytest.mark.parametrize("counts_work", [True, False])
def test_hung_rank_is_restarted_after_unhealthy_timeout(
    counts_work: bool,
) -> None:
    world = World(makes_progress=[True, False], counts_work=counts_work)
    watcher = world.watcher()
    world.pass_by(watcher, 100)
    hung = world.now
    world.answers_after[1] = None
    world.pass_by(watcher, 400)
    assert world.kinds == ["watching", "unhealthy", "unhealthy", "died", "restarted"]
    assert [kind for _, kind in world.alerted] == ["unhealthy", "died", "restarted"]
    assert "rank 1: no answer" in world.events[3][2]
    assert UNHEALTHY <= world.restarted_at[0] - hung <= UNHEALTHY + 10


def test_hung_detokenizer_is_restarted_while_ranks_decode() -> None:
    """Ranks once counted as healthy when they decoded tokens for retrying clients."""
    world = World(makes_progress=[True, True])
    watcher = world.watcher()
    world.pass_by(watcher, 100)
    hung = world.now
    world.answers_after, world.emits = [None, None], False
    world.pass_by(watcher, 400)
    assert world.kinds == ["watching", "unhealthy", "unhealthy", "died", "restarted"]
    assert "no output for" in world.events[3][2]
    assert UNHEALTHY <= world.restarted_at[0] - hung <= UNHEALTHY + 10


def test_long_prefill_without_output_is_not_restarted() -> None:
    world = World(answers_after=[None, None], makes_progress=[True, True], decodes=False, emits=False)
    world.pass_by(world.watcher(), 3600)
    assert world.kinds == ["watching"]


@pytest.mark.parametrize("counts_work", [True, False])
def test_short_hang_is_logged_without_alert(counts_work: bool) -> None:
    passing, lasting = (World(counts_work=counts_work) for _ in range(2))
    for world, hangs in ((passing, 50.0), (lasting, 90.0)):
        watcher = world.watcher()
        world.answers_after[0] = hangs
        world.pass_by(watcher, 10)
        world.answers_after[0] = 0.1
        world.pass_by(watcher, 400)
    assert (passing.kinds, passing.alerted) == (["watching", "unhealthy", "recovered"], [])
    assert lasting.kinds == ["watching", "unhealthy", "unhealthy", "recovered"]
    assert [kind for _, kind in lasting.alerted] == ["unhealthy", "recovered"]
    hang_start = 1000.0 + TICK
    assert UNHEALTHY / 2 <= lasting.alerted[0][0] - hang_start <= UNHEALTHY / 2 + 10


def test_long_prefill_chunks_cause_no_alert() -> None:
    """Under full load a prefill chunk takes 25 s, and its tokens are counted only at its end."""
    world = World(answers_after=[None, None], decodes=False)
    watcher = world.watcher()
    for _ in range(140):
        world.pass_by(watcher, 25.0)
        world.work_done = [done + 2048 for done in world.work_done]
    assert world.restarted_at == []
    assert {"unhealthy", "recovered"} < set(world.kinds)
    assert world.alerted == []


def test_dead_process_is_confirmed_before_restart() -> None:
    world = World()
    watcher = world.watcher()
    world.pass_by(watcher, 5)
    died = world.now
    world.snapshot, world.answers_after = replace(HEALTHY, dead="rank DP1 has exited"), [0.1, None]
    world.pass_by(watcher, 100)
    assert world.kinds == ["watching", "unhealthy", "died", "restarted"]
    assert [kind for _, kind in world.alerted] == ["died", "restarted"]
    assert world.restarted_at[0] - died <= 5 + 3 + 3 * SNAPSHOT_SECONDS + 1 + 2


def test_watch_gives_up_after_max_attempts() -> None:
    world = World(dies_again=5.0)
    watcher = world.watcher()
    world.die()
    world.pass_by(watcher, 3600)
    assert world.kinds == ["watching", *(["died", "restarted"] * 3), "gave-up"]
    assert "3 restarts within 3600 s did not help, and `restart_policy.max_attempts` is 3" in watcher.ended
    world.pass_by(watcher, 3600)
    assert len(world.restarted_at) == 3


def test_user_restart_resumes_watch_after_giving_up() -> None:
    """`deploy watch a b` continues with `b`, so `a` must not seem to be watched."""
    world = World(snapshot=replace(HEALTHY, max_attempts=0))
    watcher = world.watcher()
    world.die()
    world.pass_by(watcher, 900)
    assert (world.kinds, bool(watcher.ended)) == (["watching", "gave-up"], True)
    assert world.snapshots <= 5
    world.snapshot = replace(HEALTHY, run="run-2")
    world.pass_by(watcher, 310)
    assert (world.kinds[2:], watcher.ended) == (["watching"], "")
    world.die()
    world.pass_by(watcher, 10)
    assert world.kinds[3:] == ["died"]


def test_deaths_outside_window_are_all_restarted() -> None:
    world = World(dies_again=2000.0)
    watcher = world.watcher()
    world.die()
    world.pass_by(watcher, 20_000)
    assert len(world.restarted_at) > 8
    assert watcher.ended == ""


def test_zero_max_attempts_disables_restarts() -> None:
    world = World(snapshot=replace(HEALTHY, max_attempts=0))
    watcher = world.watcher()
    world.die()
    world.pass_by(watcher, 10)
    assert (world.kinds, world.restarted_at) == (["watching", "gave-up"], [])


def test_failed_restarts_count_toward_max_attempts() -> None:
    failing = World(outcome=RestartResult(outcome=RestartOutcome.FAILED, message="not ready"))
    watcher = failing.watcher()
    failing.die()
    failing.pass_by(watcher, 3600)
    assert failing.kinds == ["watching", *(["died", "restart-failed"] * 3), "gave-up"]

    slow = World(outcome=failing.outcome, snapshot=replace(HEALTHY, window=60))  # each start takes 40 s
    watcher = slow.watcher()
    slow.die()
    slow.pass_by(watcher, 3600)
    assert slow.kinds == ["watching", *(["died", "restart-failed"] * 3), "gave-up"]
    assert "3 restarts in a row failed, and `restart_policy.max_attempts` is 3" in watcher.ended

    world = World(outcome=RestartResult(outcome=RestartOutcome.REJECTED, message="`KEY` is not set"))
    watcher = world.watcher()
    world.die()
    world.pass_by(watcher, 3600)
    assert world.kinds == ["watching", "died", "gave-up"]
    assert "`KEY` is not set" in watcher.ended

    lost = World(outcome=replace(failing.outcome, message="the worker exited with -9"), records=False)
    watcher = lost.watcher()
    lost.die()
    lost.pass_by(watcher, 3600)
    assert lost.kinds == ["watching", "died", "restart-failed", "gave-up"]


@pytest.mark.parametrize("hangs", [False, True])
def test_postponed_restart_is_retried_with_backoff(hangs: bool) -> None:
    postponed = RestartResult(outcome=RestartOutcome.POSTPONED, message="No space left on device")
    world = World(outcome=postponed)
    watcher = world.watcher()
    if hangs:
        world.answers_after = [None, None]
        world.pass_by(watcher, UNHEALTHY + 20)
    else:
        world.die()
    world.pass_by(watcher, 36_000)
    assert (world.kinds[-2:], world.kinds.count("died"), watcher.ended) == (["died", "waiting"], 1, "")
    assert "No space left on device" in world.events[-1][2]
    intervals = [
        after - before - BOOT for before, after in zip(world.restarted_at, world.restarted_at[1:], strict=False)
    ]
    assert 5 <= intervals[0] < 10
    assert intervals[-1] >= 60
    assert max(intervals) < 70
    world.outcome = VERIFIED
    world.pass_by(watcher, 200)
    assert world.kinds[-2:] == ["waiting", "restarted"]


def test_watch_respects_user_stop_and_start() -> None:
    world = World()
    watcher = world.watcher()
    world.pass_by(watcher, 50)
    world.snapshot = replace(HEALTHY, wanted=False, status="not found")
    world.pass_by(watcher, 3600)
    assert (world.kinds, world.restarted_at) == (["watching", "stopped"], [])
    world.snapshot = replace(HEALTHY, busy=True, ready=False, run="run-2")
    world.pass_by(watcher, 600)
    assert world.kinds[2:] == ["waiting"]
    world.snapshot = replace(HEALTHY, run="run-2")
    world.pass_by(watcher, 100)
    assert world.kinds[3:] == ["watching"]
    world.die()
    world.pass_by(watcher, 100)
    assert world.kinds[4:] == ["died", "restarted"]


def test_pending_slurm_job_is_not_restarted() -> None:
    """Slurm restarts the job itself; another start would wait at the end of the queue."""
    world = World(snapshot=replace(HEALTHY, status="pending", exit_reason="job 5 waits, requeued: (BeginTime)"))
    world.pass_by(world.watcher(), 1200)
    assert world.restarted_at == []
    assert [event[1:] for event in world.events] == [(EventKind.WAITING, "job 5 waits, requeued: (BeginTime)")]


def test_busy_or_superseded_server_is_not_restarted() -> None:
    world = World(outcome=RestartResult(outcome=RestartOutcome.SUPERSEDED, message="somebody else"))
    watcher = world.watcher()
    world.snapshot = replace(HEALTHY, busy=True, status="exited")
    world.pass_by(watcher, 1200)
    assert world.restarted_at == []
    world.snapshot = replace(HEALTHY, status="exited", exit_reason="killed")
    world.plans.append((world.now + 30, lambda: setattr(world, "snapshot", replace(HEALTHY, wanted=False))))
    world.pass_by(watcher, 1200)
    assert world.kinds[-1] == "stopped"
    assert len(world.restarted_at) <= 1


def test_only_interrupted_watch_restart_is_repeated() -> None:
    unfinished = World(snapshot=replace(HEALTHY, ready=False))
    unfinished.pass_by(unfinished.watcher(), 1200)
    assert (unfinished.kinds, unfinished.restarted_at) == (["waiting"], [])

    interrupted = World(snapshot=replace(HEALTHY, ready=False, by_watch=True, restarted_at=(990.0,)))
    interrupted.snapshot = replace(interrupted.snapshot, status="not found")
    interrupted.pass_by(interrupted.watcher(), 5)
    assert interrupted.events[0][1:] == (EventKind.DIED, "its start was interrupted; restart 2 of 3")


def test_runtime_restart_is_accepted_only_if_healthy() -> None:
    loading = World()
    watcher = loading.watcher()
    loading.pass_by(watcher, 20)
    loading.snapshot, loading.answers_after = replace(HEALTHY, restarts=1), [None, None]
    loading.pass_by(watcher, 60)
    assert loading.kinds == ["watching", "died", "restarted"]

    restarted = World()
    watcher = restarted.watcher()
    restarted.snapshot = replace(HEALTHY, restarts=1)
    restarted.pass_by(watcher, 600)
    assert restarted.kinds == ["watching", "runtime-restarted"]


def test_suspended_host_causes_no_restart() -> None:
    world = World(answers_after=[0.1, None])
    watcher = world.watcher()
    world.pass_by(watcher, 30)
    world.now += 36_000
    world.answers_after[1] = 0.1
    world.pass_by(watcher, 60)
    assert world.restarted_at == []


def test_unreachable_daemon_causes_alert_but_no_restart() -> None:
    world = World()
    watcher = world.watcher()
    world.snapshot_error = "cannot query docker"
    world.answers_after = [None, None]
    world.pass_by(watcher, 3600)
    assert world.restarted_at == []
    assert [kind for _, kind in world.alerted] == ["unhealthy"]


def test_failed_snapshots_do_not_delay_restart_of_hung_local_server() -> None:
    world = World()
    watcher = world.watcher()
    world.answers_after[0] = None
    world.snapshot_error = "cannot query docker"
    world.pass_by(watcher, 2 * UNHEALTHY)
    world.snapshot_error = ""
    world.pass_by(watcher, UNHEALTHY / 2)
    assert len(world.restarted_at) == 1


def test_reconnected_host_causes_no_restart() -> None:
    """Its ranks are probed after the first snapshot and count as hung only if they do not respond then."""
    world = World(snapshot=replace(HEALTHY, is_remote=True))
    watcher = world.watcher()
    probe_rank = world.probe_rank
    world.snapshot_error = "cannot connect to `n1` with ssh"
    world.probe_rank = lambda *_: Later(world, world.now, lambda: "Connection refused")  # type: ignore[method-assign, assignment]
    world.pass_by(watcher, 3600)
    world.snapshot_error = ""
    world.pass_by(watcher, UNHEALTHY / 2)
    world.probe_rank = probe_rank  # type: ignore[method-assign]
    world.pass_by(watcher, 3600)
    assert world.restarted_at == []


@pytest.mark.parametrize(("old", "new"), [("", "ssh://n2"), ("ssh://n1", "ssh://n2"), ("ssh://n1", "")])
def test_newer_run_on_another_host_is_reported(old: str, new: str) -> None:
    world = World(snapshot=replace(HEALTHY, host=old))
    watcher = world.watcher()
    world.snapshot = replace(HEALTHY, host=new, run="run-2")
    world.pass_by(watcher, 600)
    details = [detail for _, _, detail in world.events]
    before, after = (f"{HEALTHY.url} on {host}" if host else HEALTHY.url for host in (old, new))
    assert world.kinds == ["watching", "moved", "watching"]
    assert details == [before, f"its newest run is on {new or 'this host'}", after]


def test_briefly_unreachable_daemon_causes_no_alert() -> None:
    world = World()
    watcher = world.watcher()
    world.snapshot_error = "cannot query docker"
    world.pass_by(watcher, 320)
    assert world.kinds == ["watching", "unhealthy"]
    world.snapshot_error = ""
    world.pass_by(watcher, 300)
    assert (world.kinds, world.alerted) == (["watching", "unhealthy", "recovered"], [])


def test_rejected_api_key_causes_alert_but_no_restart() -> None:
    world = World()
    watcher = world.watcher()
    world.probe_rank = lambda *_: Later(world, world.now, lambda: 401)  # type: ignore[method-assign, assignment]
    world.pass_by(watcher, 600)
    assert world.events[1][1:] == (EventKind.UNHEALTHY, "rejects a request for a token: 401")
    assert (world.kinds, world.restarted_at) == (["watching", "unhealthy", "unhealthy"], [])
    assert [kind for _, kind in world.alerted] == ["unhealthy"]
