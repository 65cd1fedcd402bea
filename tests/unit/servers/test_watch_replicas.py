"""`deploy watch` of replicas: each is probed directly, and their ranks are numbered consecutively."""

from dataclasses import replace

from watched_world import HEALTHY, UNHEALTHY, World

from orchestrator.engine.liveness import RankProgress
from orchestrator.servers.watch.events import EventKind
from orchestrator.servers.watch.snapshot import RestartOutcome, RestartResult
from orchestrator.servers.watch.watch import LiveBackend, _combine, _parse_restart
from orchestrator.servers.watch.watcher import GATEWAY, Watcher

REPLICATED = replace(
    HEALTHY, url="http://127.0.0.1:1", replica_urls=("http://127.0.0.1:9", "http://127.0.0.1:17"), ranks=4
)


def test_watch_probes_replicas_directly() -> None:
    backend = LiveBackend()
    assert backend._client(REPLICATED).url == "http://127.0.0.1:1"
    assert [backend._client(REPLICATED, number).url for number in (0, 1)] == [*REPLICATED.replica_urls]
    assert backend._client(HEALTHY, 0).url == HEALTHY.url, "a single server is its own replica"


def test_rank_progress_of_replicas_is_combined() -> None:
    first = RankProgress(done={0: 10.0, 1: 11.0}, decoded={0: 1.0}, emitted=5.0)
    no_response = RankProgress(done={}, decoded={}, emitted=None)
    second = RankProgress(done={0: 20.0, 1: 21.0}, decoded={1: 2.0}, emitted=6.0)
    combined = _combine([first, second], ranks=4)
    assert (combined.done, combined.decoded) == ({0: 10.0, 1: 11.0, 2: 20.0, 3: 21.0}, {0: 1.0, 3: 2.0})
    assert combined.emitted == 11.0
    assert _combine([no_response, second], ranks=4).done == {2: 20.0, 3: 21.0}


def test_hung_gateway_is_restarted() -> None:
    world = World(snapshot=replace(REPLICATED, ranks=2))
    watcher = world.watcher()
    world.pass_by(watcher, 3600)
    assert [kind for _, kind, _ in world.events] == [EventKind.WATCHING]
    hung = world.now
    world.answers_after[GATEWAY] = None
    world.makes_progress = [True, True]  # its remaining requests
    world.pass_by(watcher, UNHEALTHY - 20)
    assert world.restarted_at == []
    world.pass_by(watcher, 100)
    [(_, _, detail)] = [events for events in world.events if events[1] is EventKind.DIED]
    assert detail.startswith("gateway: no answer; no progress for 12")
    [restarted_at] = world.restarted_at
    assert UNHEALTHY <= restarted_at - hung < UNHEALTHY + 20
    assert [kind for _, kind, _ in world.events][-1] is EventKind.RESTARTED


def test_replicas_with_two_plans_are_waiting() -> None:
    watcher = Watcher("owl", LiveBackend(), replace(REPLICATED, ready=False))
    [(kind, detail, *_)] = watcher.begin(0.0, 0.0)
    assert (kind, "two plans" in detail) == (EventKind.WAITING, True)


def test_role_counts_as_one_rank() -> None:
    prefill, decode = ({0: number, 1: number + 1} for number in (10.0, 20.0))
    works = [RankProgress(done=done, decoded={}, emitted=None) for done in (prefill, decode)]
    assert _combine(works, ranks=2).done == {0: 10.0, 1: 20.0}


def test_roles_are_probed_alone() -> None:
    backend = LiveBackend()
    assert backend._client(replace(REPLICATED, has_roles=True), 0).alone
    assert not backend._client(REPLICATED, 0).alone


def test_unknown_restart_outcome_counts_as_failed() -> None:
    """After an upgrade, a running watch starts workers of the new version."""
    result = _parse_restart({"outcome": "half-verified", "message": "one of two", "run": "", "ranks": 2})
    assert result == RestartResult(outcome=RestartOutcome.FAILED, message="one of two")
    assert _parse_restart({"outcome": "postponed", "message": ""}).outcome is RestartOutcome.POSTPONED
