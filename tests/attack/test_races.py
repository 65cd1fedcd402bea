"""Of concurrent commands on one name or port, one succeeds, the others report why not, and the state is consistent."""

import json
import time
from collections.abc import Callable, Iterator
from random import Random

import pytest
from deployment import Deployment, Deployments
from forked import Ended
from rounds import attack

pytestmark = pytest.mark.attack

ROUNDS = 7  # one for each scene
MAX_DELAY_S = 0.8  # between the first and the last command
REJECTED = (4, 6)  # another command has the lock, the server is running, there is none, or its port is taken

Scene = Callable[[Deployment, Random], Iterator[str]]


def test_races_have_exactly_one_winner(deployments: Deployments) -> None:
    def race(number: int, rng: Random) -> Iterator[str]:
        deployment, scene = deployments(number), SCENES[number % len(SCENES)]
        yield from (f"{scene.__name__}: {fault}" for fault in scene(deployment, rng))
        deployment.run("down", deployment.name)
        yield from (f"{scene.__name__}: {fault}" for fault in deployment.leftovers())

    attack("races", ROUNDS, race)


def run_concurrently(deployment: Deployment, rng: Random, *commands: tuple[str, ...]) -> tuple[Ended, ...]:
    """Start commands and `status` within `MAX_DELAY_S`; return their results."""
    started = []
    for words in commands:
        started.append(deployment.start(*words))
        time.sleep(rng.uniform(0.0, MAX_DELAY_S) / len(commands))
    watching = deployment.start("status", "--json")
    return (*(command.wait() for command in started), watching.wait())


def is_running(deployment: Deployment) -> bool:
    """Return whether `status` lists a running server."""
    servers = json.loads(deployment.run("status", "--json").stdout)
    return any(server["runtime"] == "process" and server["status"] == "running" for server in servers)


def ups(deployment: Deployment, rng: Random, count: int) -> Iterator[str]:
    *ended, watched = run_concurrently(deployment, rng, *[deployment.up()] * count)
    yield from watched.faults(0)
    for one in ended:
        yield from one.faults(0, 6)
    winners = [one for one in ended if "` is up at " in one.stderr]
    if len(winners) != 1 or not is_running(deployment):
        yield f"{len(winners)} winners: {[(one.code, one.stderr[-300:]) for one in ended]}"


def two_ups(deployment: Deployment, rng: Random) -> Iterator[str]:
    yield from ups(deployment, rng, 2)


def three_ups(deployment: Deployment, rng: Random) -> Iterator[str]:
    yield from ups(deployment, rng, 3)


def two_ups_on_one_port(deployment: Deployment, rng: Random) -> Iterator[str]:
    *ended, watched = run_concurrently(deployment, rng, deployment.up(name="one"), deployment.up(name="other"))
    yield from watched.faults(0)
    for one in ended:
        yield from one.faults(0, 4, 7)
    if [one.code for one in ended].count(0) != 1:
        yield f"not one winner: {[(one.code, one.stderr[-300:]) for one in ended]}"
    for name in ("one", "other"):
        deployment.run("down", name)


def up_and_down(deployment: Deployment, rng: Random) -> Iterator[str]:
    up, down, watched = run_concurrently(deployment, rng, deployment.up(), ("down", deployment.name))
    yield from watched.faults(0)
    yield from up.faults(0)
    yield from down.faults(0, *REJECTED)
    if is_running(deployment) == (down.code == 0):
        yield f"up ends with {up.code}, down with {down.code}: {down.stderr}"


def two_downs(deployment: Deployment, rng: Random) -> Iterator[str]:
    yield from deployment.run(*deployment.up()).faults(0)
    *ended, watched = run_concurrently(deployment, rng, *[("down", deployment.name)] * 2)
    yield from watched.faults(0)
    for one in ended:
        yield from one.faults(0, *REJECTED)
    if 0 not in [one.code for one in ended] or is_running(deployment):
        yield f"not down: {[(one.code, one.stderr) for one in ended]}"


def replace_and_down(deployment: Deployment, rng: Random) -> Iterator[str]:
    yield from deployment.run(*deployment.up()).faults(0)
    replaced, down, watched = run_concurrently(deployment, rng, deployment.up("--replace"), ("down", deployment.name))
    yield from watched.faults(0)
    yield from replaced.faults(0, *REJECTED)
    yield from down.faults(0, *REJECTED)
    if is_running(deployment) and replaced.code != 0 and down.code == 0:
        yield f"running after a successful `down`: {replaced.stderr}"


def replace_and_prune(deployment: Deployment, rng: Random) -> Iterator[str]:
    """`prune` removes old runs, but not the running, the replaced or the starting one."""
    for _ in range(2):
        yield from deployment.run(*deployment.up("--replace")).faults(0)
    prune = ("prune", "--keep", "1", "--older-than", "0h")
    replaced, *pruned, watched = run_concurrently(deployment, rng, deployment.up("--replace"), prune, prune)
    for one, codes in ((watched, (0,)), (replaced, (0, 6)), *((run, (0, 4)) for run in pruned)):
        yield from one.faults(*codes)
    if not is_running(deployment):
        yield f"no server is running: {replaced.stderr}"
    for folder in (deployment.home / "runs" / deployment.name).glob("2*"):
        if not {"plan.json", "process.json", "request.json"} <= {path.name for path in folder.iterdir()}:
            yield f"a run is incomplete: {sorted(path.name for path in folder.iterdir())}"


SCENES: tuple[Scene, ...] = (
    two_ups,
    three_ups,
    up_and_down,
    two_downs,
    replace_and_down,
    two_ups_on_one_port,
    replace_and_prune,
)
