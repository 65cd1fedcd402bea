"""Commands killed at random times leave a state that the next command can clean up or resume."""

import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from deployment import Deployment, Deployments
from forked import Command, Ended
from quark_source import REAL_FILES, fake_quark_home, fake_quark_path, files_digest, write_source
from rounds import attack

from orchestrator.checkpoints.quantize.work_dir import WorkDir
from orchestrator.checkpoints.receipt import read_receipt
from orchestrator.core.console import Progress
from orchestrator.core.paths import Home
from orchestrator.core.polling import poll_until
from orchestrator.hosts.venvs.venv import ensure_venv
from orchestrator.runs.run_dir import runs_of

pytestmark = pytest.mark.attack

ROUNDS = 11  # all of VERBS and SIGNALS
KILL, TERM, HUP, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT
SIGNALS = ((KILL,), (KILL,), (TERM,), (HUP,), (INT,), (INT, INT), (INT, INT), (TERM, INT))
MAX_DELAY_S = 0.6  # between two signals
# Approximate seconds of a command, so that most signals arrive while it runs.
DURATIONS = {"up": 1.2, "replace": 1.6, "rollback": 1.6, "down": 0.4, "quantize": 4.0}
VERBS = (*("up", "up", "replace", "rollback", "down") * 2, "quantize")
OTHER_PLAN = ("--set", "flags.max-total-tokens=32768")
FRESH = 0.15  # share of the commands with a new interpreter, which may be killed during its startup


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a checkpoint to quantize, and a home with an environment for the fake Quark."""
    directory = tmp_path_factory.mktemp("quantize")
    write_source(directory / "tiny")
    fake_quark_home(directory / "home")
    ensure_venv(directory / "home/images/quark-0.13.txt", home=Home(directory / "home"), progress=Progress())
    return directory


def test_killed_commands_leave_only_recoverable_state(deployments: Deployments, directory: Path) -> None:
    def kill(number: int, rng: Random) -> Iterator[str]:
        deployment, verb, sent = deployments(number), VERBS[number % len(VERBS)], SIGNALS[number % len(SIGNALS)]
        if verb == "quantize":
            yield from quantized(deployment, directory, sent, rng)
            return
        if verb != "up":
            yield from deployment.run(*deployment.up()).faults(0)
        if verb == "rollback":
            yield from deployment.run(*deployment.up("--replace", *OTHER_PLAN)).faults(0)
        ended = interrupted(deployment, verb, sent, rng)
        yield from (
            f"{verb}, {[item.name for item in sent]}: {fault}" for fault in problems(deployment, verb, ended, rng)
        )

    attack("kills of commands", ROUNDS, kill)


def interrupted(deployment: Deployment, verb: str, sent: tuple[signal.Signals, ...], rng: Random) -> Ended:
    named = {verb: (verb, deployment.name) for verb in ("down", "rollback")}
    words = {"up": deployment.up(), "replace": deployment.up("--replace"), **named}[verb]
    return kill_at_random(deployment.start(*words, fresh=rng.random() < FRESH), sent, rng, within=DURATIONS[verb])


def kill_at_random(command: Command, sent: tuple[signal.Signals, ...], rng: Random, *, within: float) -> Ended:
    time.sleep(rng.uniform(0.0, within))
    for index, number in enumerate(sent):
        time.sleep(rng.uniform(0.0, MAX_DELAY_S) if index else 0.0)
        command.send(number)
    return command.wait()


def quantized(deployment: Deployment, directory: Path, sent: tuple[signal.Signals, ...], rng: Random) -> Iterator[str]:
    """Kill `quantize` and run it again; yield problems unless there is a complete checkpoint with receipt."""
    target = deployment.folder / f"made-{deployment.folder.name}"
    words = ("quantize", str(directory / "tiny"), str(target), "--recipe", "glm-5.2-amd", "--workers", "1")
    environ = {"DEPLOY_HOME": str(directory / "home"), "PYTHONPATH": fake_quark_path(), "FAKE_QUARK": "sleep 0.1"}
    ended = kill_at_random(deployment.start(*words, **environ), sent, rng, within=DURATIONS["quantize"])
    yield from ended.faults(0, 130, -KILL, -TERM, -HUP, -INT)
    if not target.exists():
        yield from deployment.run(*words, **environ).faults(0)
    if files_digest(target) != REAL_FILES["glm-5.2-amd"] or read_receipt(target) is None:
        yield f"{[number.name for number in sent]}: the target is incomplete"
    work_dir = WorkDir(target)
    if work_dir.root.exists() and ended.code != -KILL:
        yield f"left over: {work_dir.root}"
    if alive := poll_until(lambda lines: not lines, lambda: working_in(work_dir.root), timeout=10, interval=0.05):
        yield f"still running: {alive}"


def working_in(folder: Path) -> list[str]:
    """Return the command lines that contain the path."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in lines if str(folder) in line]


def problems(deployment: Deployment, verb: str, ended: Ended, rng: Random) -> Iterator[str]:
    killed = ended.code in {-KILL, -TERM, -HUP, -INT}  # the other signals: before it had a handler
    if not ended.in_python_itself:
        yield from ended.faults(0, 130, -KILL, -TERM, -HUP, -INT)
    if ended.code == 130 and verb == "up":
        yield from deployment.leftovers()
        return
    if verb == "rollback" and ended.code == 0:
        plans = [run.digest for run in runs_of(Home(deployment.home), deployment.name)]
        if len(plans) != 3 or plans[0] != plans[2]:
            yield f"not the original plan: {plans}"
    if killed and rng.random() < 0.5:
        yield from deployment.run(*deployment.up("--replace")).faults(0)
    down = deployment.run("down", deployment.name)
    yield from down.faults(0, *((4, 6) if "no server" in down.stderr else ()))
    yield from deployment.leftovers(killed=killed)
