"""Ports of this machine for the tests' own servers."""

import random
import socket


def free_port() -> int:
    """A port nobody listens on, below the ephemeral range, where sglang opens many of its own.

    By the system's dice: two runs of the tests on one machine do not take the same one, nor two forks of one process.
    """
    dice = random.SystemRandom()
    while True:
        port = dice.randrange(20000, 32000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
