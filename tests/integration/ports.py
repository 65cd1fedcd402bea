"""Ports of this machine for the tests' own servers."""

import random
import socket


def free_port() -> int:
    """A port nobody listens on, below the ephemeral range, where sglang opens many of its own.

    At random, so that two runs of the tests on one machine do not take the same one.
    """
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
