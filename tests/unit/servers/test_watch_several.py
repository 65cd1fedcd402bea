"""How `deploy watch` asks several servers: each by itself, its ranks counted on."""

from dataclasses import replace

from watched_world import SERVES, UNHEALTHY, World

from orchestrator.engine.liveness import RankProgress
from orchestrator.servers.watch.events import EventKind
from orchestrator.servers.watch.watch import LiveBackend, _together
from orchestrator.servers.watch.watcher import GATEWAY, Watcher

SEVERAL = replace(SERVES, url="http://127.0.0.1:1", behind=("http://127.0.0.1:9", "http://127.0.0.1:17"), ranks=4)


def test_what_listens_is_the_gateway_and_what_is_asked_for_a_token_the_server_itself() -> None:
    means = LiveBackend()
    assert means._pulse(SEVERAL).url == "http://127.0.0.1:1"
    assert [means._pulse(SEVERAL, number).url for number in (0, 1)] == [*SEVERAL.behind]
    assert means._pulse(SERVES, 0).url == SERVES.url, "one server is its own"


def test_the_work_of_several_is_that_of_ranks_counted_on() -> None:
    first = RankProgress(done={0: 10.0, 1: 11.0}, decoded={0: 1.0}, came_out=5.0)
    silent = RankProgress(done={}, decoded={}, came_out=None)
    second = RankProgress(done={0: 20.0, 1: 21.0}, decoded={1: 2.0}, came_out=6.0)
    both = _together([first, second], ranks=4)
    assert (both.done, both.decoded) == ({0: 10.0, 1: 11.0, 2: 20.0, 3: 21.0}, {0: 1.0, 3: 2.0})
    assert both.came_out == 11.0
    assert _together([silent, second], ranks=4).done == {2: 20.0, 3: 21.0}


def test_a_gateway_that_hangs_is_healed_as_a_server_that_hangs_is() -> None:
    world = World(standing=replace(SEVERAL, ranks=2))
    vigil = world.vigil()
    world.pass_by(vigil, 3600)
    assert [kind for _, kind, _ in world.told] == [EventKind.WATCHING]
    hung = world.now
    world.answers_after[GATEWAY] = None
    world.gets_on = [True, True]  # what is left of its requests
    world.pass_by(vigil, UNHEALTHY - 20)
    assert world.healed_at == []
    world.pass_by(vigil, 100)
    [(_, _, detail)] = [told for told in world.told if told[1] is EventKind.DIED]
    assert detail.startswith("its gateway: no answer; it has not got on for 12")
    [healed] = world.healed_at
    assert UNHEALTHY <= healed - hung < UNHEALTHY + 20
    assert [kind for _, kind, _ in world.told][-1] is EventKind.SERVES


def test_replicas_of_two_plans_are_a_persons_business() -> None:
    vigil = Watcher("owl", LiveBackend(), replace(SEVERAL, ready=False))
    [(kind, detail, *_)] = vigil.begin(0.0, 0.0)
    assert (kind, "of two plans" in detail) == (EventKind.WAITING, True)
