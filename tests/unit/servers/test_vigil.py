"""What `deploy watch` does about what it sees, hours of it on a simulated clock: every wrong restart is a red test."""

from dataclasses import replace

import pytest
from watched_world import BOOT, LOOK, PROVEN, SERVES, TICK, UNHEALTHY, Later, World

from orchestrator.servers.watch.events import EventKind
from orchestrator.servers.watch.snapshot import RestartResult


def test_a_quiet_hour_has_no_event_and_next_to_no_look() -> None:
    world = World()
    world.pass_by(world.vigil(), 3600)
    assert world.kinds == ["watching"]
    assert world.looks <= 13


@pytest.mark.parametrize("after", [4.0, 25.0, 300.0, None])
def test_an_hour_of_full_load_is_no_death(after: float | None) -> None:
    """Behind a long prefill or a long queue a token takes minutes; what the ranks count meanwhile grows."""
    world = World(answers_after=[after, after], gets_on=[True, True])
    world.pass_by(world.vigil(), 3600)
    assert world.kinds == ["watching"]
    assert world.looks <= 130  # a look takes a second of CPU: at most 3 % of a core


def test_an_answer_that_is_slow_is_an_answer_where_nothing_is_counted() -> None:
    world = World(answers_after=[30.0, 100.0], counts_work=False)
    world.pass_by(world.vigil(), 3600)
    assert world.healed_at == []


def test_an_exit_is_noticed_within_seconds_and_told_with_what_it_took() -> None:
    world = World()
    vigil = world.vigil()
    world.pass_by(vigil, 102)  # between two questions to the ranks
    died = world.now
    world.die()
    world.pass_by(vigil, 200)
    assert world.kinds == ["watching", "died", "serves"]
    assert "killed by SIGKILL; restart 1 of 3" in world.told[1][2]
    assert world.healed_at[0] - died <= 1 + LOOK + 3 * TICK


@pytest.mark.parametrize("counts_work", [True, False])
def test_a_hung_rank_is_healed_after_as_long_as_the_profile_says_and_the_other_ranks_work_is_not_its(
    counts_work: bool,
) -> None:
    world = World(gets_on=[True, False], counts_work=counts_work)
    vigil = world.vigil()
    world.pass_by(vigil, 100)
    hung = world.now
    world.answers_after[1] = None
    world.pass_by(vigil, 400)
    assert world.kinds == ["watching", "unwell", "unwell", "died", "serves"]
    assert [kind for _, kind in world.alerted] == ["unwell", "died", "serves"]
    assert "rank 1: no answer" in world.told[3][2]
    assert UNHEALTHY <= world.healed_at[0] - hung <= UNHEALTHY + 10


def test_a_detokenizer_that_hangs_under_traffic_is_healed_though_the_ranks_decode() -> None:
    """They went on decoding for clients that asked anew, and each such token counted as life."""
    world = World(gets_on=[True, True])
    vigil = world.vigil()
    world.pass_by(vigil, 100)
    hung = world.now
    world.answers_after, world.comes_out = [None, None], False
    world.pass_by(vigil, 400)
    assert world.kinds == ["watching", "unwell", "unwell", "died", "serves"]
    assert "what is decoded has not come out for" in world.told[3][2]
    assert UNHEALTHY <= world.healed_at[0] - hung <= UNHEALTHY + 10


def test_a_prefill_of_which_nothing_comes_out_for_minutes_is_no_death() -> None:
    world = World(answers_after=[None, None], gets_on=[True, True], decodes=False, comes_out=False)
    world.pass_by(world.vigil(), 3600)
    assert world.kinds == ["watching"]


@pytest.mark.parametrize("counts_work", [True, False])
def test_a_hang_that_ends_in_time_is_told_and_alerts_nobody_before_it_has_lasted(counts_work: bool) -> None:
    passing, lasting = (World(counts_work=counts_work) for _ in range(2))
    for world, hangs in ((passing, 50.0), (lasting, 90.0)):
        vigil = world.vigil()
        world.answers_after[0] = hangs
        world.pass_by(vigil, 10)
        world.answers_after[0] = 0.1
        world.pass_by(vigil, 400)
    assert (passing.kinds, passing.alerted) == (["watching", "unwell", "well"], [])
    assert lasting.kinds == ["watching", "unwell", "unwell", "well"]
    assert [kind for _, kind in lasting.alerted] == ["unwell", "well"]
    began = 1000.0 + TICK
    assert UNHEALTHY / 2 <= lasting.alerted[0][0] - began <= UNHEALTHY / 2 + 10


def test_ranks_that_get_on_between_long_chunks_are_told_each_time_and_alert_nobody() -> None:
    """As under real full load: a chunk of prefill takes 25 s, its tokens are counted when it is done."""
    world = World(answers_after=[None, None], decodes=False)
    vigil = world.vigil()
    for _ in range(140):
        world.pass_by(vigil, 25.0)
        world.work_done = [done + 2048 for done in world.work_done]
    assert world.healed_at == []
    assert {"unwell", "well"} < set(world.kinds)
    assert world.alerted == []


def test_a_part_is_lost_when_two_looks_say_so() -> None:
    world = World()
    vigil = world.vigil()
    world.pass_by(vigil, 5)
    died = world.now
    world.standing, world.answers_after = replace(SERVES, lost="rank DP1 has ended"), [0.1, None]
    world.pass_by(vigil, 100)
    assert world.kinds == ["watching", "unwell", "died", "serves"]
    assert [kind for _, kind in world.alerted] == ["died", "serves"]
    assert world.healed_at[0] - died <= 5 + 3 + 3 * LOOK + 1 + 2


def test_a_storm_is_given_up_aloud_and_the_server_is_left_as_it_is() -> None:
    world = World(dies_again=5.0)
    vigil = world.vigil()
    world.die()
    world.pass_by(vigil, 3600)
    assert world.kinds == ["watching", *(["died", "serves"] * 3), "gave up"]
    assert "3 restarts within 3600 s were of no use, and `healing.restarts` is 3" in vigil.ended
    world.pass_by(vigil, 3600)
    assert len(world.healed_at) == 3


def test_one_that_was_given_up_is_watched_again_once_a_person_has_started_it_anew() -> None:
    """`deploy watch a b`: `b` keeps the watch going, and nobody may think that `a` is watched when it is not."""
    world = World(standing=replace(SERVES, limit=0))
    vigil = world.vigil()
    world.die()
    world.pass_by(vigil, 900)
    assert (world.kinds, bool(vigil.ended)) == (["watching", "gave up"], True)
    assert world.looks <= 5
    world.standing = replace(SERVES, run="run-2")
    world.pass_by(vigil, 310)
    assert (world.kinds[2:], vigil.ended) == (["watching"], "")
    world.die()
    world.pass_by(vigil, 10)
    assert world.kinds[3:] == ["died"]


def test_deaths_far_from_each_other_are_all_healed() -> None:
    world = World(dies_again=2000.0)
    vigil = world.vigil()
    world.die()
    world.pass_by(vigil, 20_000)
    assert len(world.healed_at) > 8
    assert vigil.ended == ""


def test_none_may_be_restarted_where_the_profile_says_so() -> None:
    world = World(standing=replace(SERVES, limit=0))
    vigil = world.vigil()
    world.die()
    world.pass_by(vigil, 10)
    assert (world.kinds, world.healed_at) == (["watching", "gave up"], [])


def test_starts_that_fail_count_and_one_that_leaves_no_record_is_not_repeated() -> None:
    failing = World(outcome=RestartResult(code=7, message="not ready", attempted=True, others=False))
    vigil = failing.vigil()
    failing.die()
    failing.pass_by(vigil, 3600)
    assert failing.kinds == ["watching", *(["died", "failed"] * 3), "gave up"]

    slow = World(outcome=failing.outcome, standing=replace(SERVES, window=60))  # each start takes 40 s
    vigil = slow.vigil()
    slow.die()
    slow.pass_by(vigil, 3600)
    assert slow.kinds == ["watching", *(["died", "failed"] * 3), "gave up"]
    assert "3 restarts in a row have failed, and `healing.restarts` is 3" in vigil.ended

    refused = World(outcome=RestartResult(code=2, message="`KEY` is not set", attempted=False, others=False))
    vigil = refused.vigil()
    refused.die()
    refused.pass_by(vigil, 3600)
    assert refused.kinds == ["watching", "died", "gave up"]
    assert "`KEY` is not set" in vigil.ended

    lost = World(outcome=replace(failing.outcome, message="its program ended with -9"), records=False)
    vigil = lost.vigil()
    lost.die()
    lost.pass_by(vigil, 3600)
    assert lost.kinds == ["watching", "died", "failed", "gave up"]


@pytest.mark.parametrize("hangs", [False, True])
def test_a_restart_that_a_full_disk_prevents_is_tried_again_ever_more_rarely_and_never_given_up(hangs: bool) -> None:
    full = RestartResult(code=4, message="No space left on device", attempted=False, others=False, postponed=True)
    world = World(outcome=full)
    vigil = world.vigil()
    if hangs:
        world.answers_after = [None, None]
        world.pass_by(vigil, UNHEALTHY + 20)
    else:
        world.die()
    world.pass_by(vigil, 36_000)
    assert (world.kinds[-2:], world.kinds.count("died"), vigil.ended) == (["died", "waiting"], 1, "")
    assert "No space left on device" in world.told[-1][2]
    pauses = [after - before - BOOT for before, after in zip(world.healed_at, world.healed_at[1:], strict=False)]
    assert 5 <= pauses[0] < 10
    assert pauses[-1] >= 60
    assert max(pauses) < 70
    world.outcome = PROVEN
    world.pass_by(vigil, 200)
    assert world.kinds[-2:] == ["waiting", "serves"]


def test_what_a_person_ends_stays_down_and_what_a_person_starts_is_watched() -> None:
    world = World()
    vigil = world.vigil()
    world.pass_by(vigil, 50)
    world.standing = replace(SERVES, wanted=False, status="absent")
    world.pass_by(vigil, 3600)
    assert (world.kinds, world.healed_at) == (["watching", "stopped"], [])
    world.standing = replace(SERVES, busy=True, ready=False, run="run-2")
    world.pass_by(vigil, 600)
    assert world.kinds[2:] == ["waiting"]
    world.standing = replace(SERVES, run="run-2")
    world.pass_by(vigil, 100)
    assert world.kinds[3:] == ["watching"]
    world.die()
    world.pass_by(vigil, 100)
    assert world.kinds[4:] == ["died", "serves"]


def test_a_job_that_waits_for_its_place_is_waited_for() -> None:
    """Slurm starts it again by itself: another start would have it wait at the end of the queue."""
    world = World(standing=replace(SERVES, status="pending", ending="job 5 waits, requeued: (BeginTime)"))
    world.pass_by(world.vigil(), 1200)
    assert world.healed_at == []
    assert [each[1:] for each in world.told] == [(EventKind.WAITING, "job 5 waits, requeued: (BeginTime)")]


def test_nothing_is_done_while_another_command_works_or_had_done_so_first() -> None:
    world = World(outcome=RestartResult(code=6, message="somebody else", attempted=False, others=True))
    vigil = world.vigil()
    world.standing = replace(SERVES, busy=True, status="exited")
    world.pass_by(vigil, 1200)
    assert world.healed_at == []
    world.standing = replace(SERVES, status="exited", ending="killed")
    world.plans.append((world.now + 30, lambda: setattr(world, "standing", replace(SERVES, wanted=False))))
    world.pass_by(vigil, 1200)
    assert world.kinds[-1] == "stopped"
    assert len(world.healed_at) <= 1


def test_one_that_was_never_ready_is_left_to_who_started_it_but_a_healing_that_was_cut_off_is_not() -> None:
    left = World(standing=replace(SERVES, ready=False))
    left.pass_by(left.vigil(), 1200)
    assert (left.kinds, left.healed_at) == (["waiting"], [])

    cut_off = World(standing=replace(SERVES, ready=False, by_watch=True, healed=(990.0,)))
    cut_off.standing = replace(cut_off.standing, status="absent")
    cut_off.pass_by(cut_off.vigil(), 5)
    assert cut_off.told[0][1:] == (EventKind.DIED, "its start was cut off; restart 2 of 3")


def test_a_restart_by_the_runtime_is_proven_by_a_start_of_ours_unless_it_serves() -> None:
    loading = World()
    vigil = loading.vigil()
    loading.pass_by(vigil, 20)
    loading.standing, loading.answers_after = replace(SERVES, restarts=1), [None, None]
    loading.pass_by(vigil, 60)
    assert loading.kinds == ["watching", "died", "serves"]

    back = World()
    vigil = back.vigil()
    back.standing = replace(SERVES, restarts=1)
    back.pass_by(vigil, 600)
    assert back.kinds == ["watching", "restarted"]


def test_a_machine_that_slept_has_not_been_silent() -> None:
    world = World(answers_after=[0.1, None])
    vigil = world.vigil()
    world.pass_by(vigil, 30)
    world.now += 36_000
    world.answers_after[1] = 0.1
    world.pass_by(vigil, 60)
    assert world.healed_at == []


def test_a_daemon_that_does_not_answer_is_no_death() -> None:
    world = World()
    vigil = world.vigil()
    world.silent = "docker could not be asked"
    world.answers_after = [None, None]
    world.pass_by(vigil, 3600)
    assert world.healed_at == []
    assert [kind for _, kind in world.alerted] == ["unwell"]


def test_a_daemon_that_is_slow_once_alerts_nobody() -> None:
    world = World()
    vigil = world.vigil()
    world.silent = "docker could not be asked"
    world.pass_by(vigil, 320)
    assert world.kinds == ["watching", "unwell"]
    world.silent = ""
    world.pass_by(vigil, 300)
    assert (world.kinds, world.alerted) == (["watching", "unwell", "well"], [])


def test_a_key_that_is_refused_is_told_and_no_death() -> None:
    world = World()
    vigil = world.vigil()
    world.token_of = lambda *_: Later(world, world.now, lambda: 401)  # type: ignore[method-assign, assignment]
    world.pass_by(vigil, 600)
    assert world.told[1][1:] == (EventKind.UNWELL, "it refuses to be asked for a token: 401")
    assert (world.kinds, world.healed_at) == (["watching", "unwell", "unwell"], [])
    assert [kind for _, kind in world.alerted] == ["unwell"]
