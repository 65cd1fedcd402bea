"""A server that repeats its API key, in each encoding and place: none of it is kept or shown.

A key that a server breaks by line ends or colors is not redacted, and no round of this group.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from deployment import Deployment, Deployments
from engine_process import ENCODINGS
from rounds import attack
from survivors import programs_of

pytestmark = pytest.mark.attack

ROUNDS = 10  # each place twice, with half of the encodings
VARIABLE = "ATTACKED_KEY"
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789_+/"
BENCH = (
    "bench",
    "target",
    "--workload",
    "smoke-tiny",
    "--request-rate",
    "20",
    "--requests",
    "4",
    "--output",
    "measured",
)
# Where it comes back, to the engine's setting and the commands that look there.
LOCATIONS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]] = {
    "an answer": ((), (("ask", "target", "Once"),)),
    "an error": (("SCRIPTED_REFUSE=1",), (("ask", "target", "Once"), ("smoke", "target"))),
    "a measurement": ((), (BENCH,)),
    "a measurement of errors": (("SCRIPTED_REFUSE=1",), (BENCH,)),
    "the log": ((), (("logs", "target"), ("diagnose", "target"), ("status", "target", "--json"))),
}


def test_api_key_echoed_by_server_is_redacted(deployments: Deployments) -> None:
    def repeat(number: int, dice: Random) -> Iterator[str]:
        deployment, channel = deployments(number), [*LOCATIONS][number % len(LOCATIONS)]
        encodings = ",".join([*ENCODINGS][number // len(LOCATIONS) % 2 :: 2])
        key = "".join(dice.choices(LETTERS, k=24))
        for fault in (*leaks(deployment, encodings, channel, key), *deployment.survivors()):
            yield f"{encodings} in {channel}: {fault}"

    attack("secrets", ROUNDS, repeat)


def leaks(deployment: Deployment, encodings: str, channel: str, key: str) -> Iterator[str]:
    """Let the key come back there, and look for it everywhere."""
    settings, commands = LOCATIONS[channel]
    up = deployment.up(
        f"SCRIPTED_ECHO={encodings}", *settings, "--set", f"server.api_key_env={VARIABLE}", "--keep-failed"
    )
    yield from deployment.run(*up, **{VARIABLE: key}).faults(*((8,) if settings else (0,)))
    for words in commands:
        yield from deployment.run(*words, **{VARIABLE: key}).faults(0, 6, 8, 10)
    for location, text in (*written(deployment), *running(deployment)):
        if leaked := next((form for form in forms(key) if form in text), None):
            yield f"{location} tells it: {line_with(leaked, text)}"
    yield from deployment.run("down", "target").faults(0)


def forms(key: str) -> tuple[str, ...]:
    """The key in every encoding but those that only put words around it."""
    return (
        key,
        *(ENCODINGS[name](key) for name in ("base64", "urlsafe", "basic", "hex", "percent", "all percent", "json")),
    )


def written(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """What the commands printed, and every file they left."""
    for path in deployment.folder.rglob("*"):
        if path.is_file():
            yield str(path.relative_to(deployment.folder)), path.read_text(errors="replace")


def running(deployment: Deployment) -> Iterator[tuple[str, str]]:
    for pid, line in programs_of(deployment.home):
        with suppress(OSError):
            yield f"command line of {pid}", line
            yield f"environment of {pid}", Path(f"/proc/{pid}/environ").read_text(errors="replace")


def line_with(form: str, text: str) -> str:
    at = text.index(form)
    return text[max(at - 100, 0) : at + len(form) + 40].replace("\n", "⏎")
