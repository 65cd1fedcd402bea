"""`up`, `rollback` and `down`, killed at random moments: what they had begun is taken down, or taken up again."""

import signal
import time
from collections.abc import Iterator
from random import Random

import pytest
from deployment import Deployment, Deployments
from forked import Ended
from rounds import attack

from orchestrator.commands.runs import runs_of
from orchestrator.core.paths import Home

pytestmark = pytest.mark.attack

ROUNDS = 60
KILL, TERM, HUP, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT
SIGNALS = ((KILL,), (KILL,), (TERM,), (HUP,), (INT,), (INT, INT), (INT, INT), (TERM, INT))
APART = 0.6  # seconds at most between two signals
# Seconds a command takes, about: most signals meet it at work.
LONGEST = {"up": 1.6, "replace": 2.0, "rollback": 2.0, "down": 0.8}
VERBS = ("up", "up", "replace", "rollback", "down")
OTHER_PLAN = ("--set", "flags.max-total-tokens=32768")
FRESH = 0.15  # of the commands are started as a user starts them, and hit from their first instruction on


def test_killed_commands_leave_nothing_or_what_the_next_one_takes_over(deployments: Deployments) -> None:
    def kill(number: int, dice: Random) -> Iterator[str]:
        deployment, verb, sent = deployments(number), dice.choice(VERBS), dice.choice(SIGNALS)
        if verb != "up":
            yield from deployment.run(*deployment.up()).faults(0)
        if verb == "rollback":
            yield from deployment.run(*deployment.up("--replace", *OTHER_PLAN)).faults(0)
        ended = interrupted(deployment, verb, sent, dice)
        yield from (
            f"{verb}, {[each.name for each in sent]}: {fault}" for fault in judged(deployment, verb, ended, dice)
        )

    attack("kills of commands", ROUNDS, kill)


def interrupted(deployment: Deployment, verb: str, sent: tuple[signal.Signals, ...], dice: Random) -> Ended:
    named = {verb: (verb, deployment.name) for verb in ("down", "rollback")}
    words = {"up": deployment.up(), "replace": deployment.up("--replace"), **named}[verb]
    command = deployment.start(*words, fresh=dice.random() < FRESH)
    time.sleep(dice.uniform(0.0, LONGEST[verb]))
    for place, each in enumerate(sent):
        time.sleep(dice.uniform(0.0, APART) if place else 0.0)
        command.send(each)
    return command.wait()


def judged(deployment: Deployment, verb: str, ended: Ended, dice: Random) -> Iterator[str]:
    killed = ended.code in {-KILL, -TERM, -HUP, -INT}  # the latter three before it was there to hear them
    if not ended.in_python_itself:
        yield from ended.faults(0, 130, -KILL, -TERM, -HUP, -INT)
    if ended.code == 130 and verb == "up":
        yield from deployment.survivors()
        return
    if verb == "rollback" and ended.code == 0:
        plans = [run.digest for run in runs_of(Home(deployment.home), deployment.name)]
        if len(plans) != 3 or plans[0] != plans[2]:
            yield f"not back where it began: {plans}"
    if killed and dice.random() < 0.5:
        yield from deployment.run(*deployment.up("--replace")).faults(0)
    down = deployment.run("down", deployment.name)
    yield from down.faults(0, *((4, 6) if "no server" in down.stderr else ()))
    yield from deployment.survivors(killed=killed)
