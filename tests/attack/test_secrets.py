"""An API key that a server echoes in any encoding is neither saved nor shown.

Keys that are split by line ends or colors are not redacted, and not tested here.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from deployment import Deployment, Deployments
from engine_process import ENCODINGS
from leftovers import programs_of
from rounds import attack

pytestmark = pytest.mark.attack

ROUNDS = 10  # each channel twice, with half of the encodings each time
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
# By channel of the echo: the engine's settings, and the commands that show it.
CHANNELS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]] = {
    "an answer": ((), (("ask", "target", "Once"),)),
    "an error": (("SCRIPTED_REJECT=1",), (("ask", "target", "Once"), ("smoke", "target"))),
    "a measurement": ((), (BENCH,)),
    "a measurement of errors": (("SCRIPTED_REJECT=1",), (BENCH,)),
    "the log": ((), (("logs", "target"), ("diagnose", "target"), ("status", "target", "--json"))),
}


def test_api_key_echoed_by_server_is_redacted(deployments: Deployments) -> None:
    def repeat(number: int, rng: Random) -> Iterator[str]:
        deployment, channel = deployments(number), [*CHANNELS][number % len(CHANNELS)]
        encodings = ",".join([*ENCODINGS][number // len(CHANNELS) % 2 :: 2])
        key = "".join(rng.choices(LETTERS, k=24))
        for fault in (*leaks(deployment, encodings, channel, key), *deployment.leftovers()):
            yield f"{encodings} in {channel}: {fault}"

    attack("secrets", ROUNDS, repeat)


def leaks(deployment: Deployment, encodings: str, channel: str, key: str) -> Iterator[str]:
    """Let the server echo the key in a channel; yield problems and each location with the key."""
    settings, commands = CHANNELS[channel]
    up = deployment.up(
        f"SCRIPTED_ECHO={encodings}", *settings, "--set", f"server.api_key_env={VARIABLE}", "--keep-failed"
    )
    yield from deployment.run(*up, **{VARIABLE: key}).faults(*((8,) if settings else (0,)))
    for words in commands:
        yield from deployment.run(*words, **{VARIABLE: key}).faults(0, 6, 8, 10)
    for location, text in (*written(deployment), *running(deployment)):
        if leaked := next((form for form in forms(key) if form in text), None):
            yield f"{location} contains it: {line_with(leaked, text)}"
    yield from deployment.run("down", "target").faults(0)


def forms(key: str) -> tuple[str, ...]:
    """Return the key in each encoding, without those that only add words."""
    return (
        key,
        *(ENCODINGS[name](key) for name in ("base64", "urlsafe", "basic", "hex", "percent", "all percent", "json")),
    )


def written(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Yield the path and content of each file, including the output of commands."""
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
