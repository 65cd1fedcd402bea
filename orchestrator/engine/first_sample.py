"""The startup probe of a server: the server is healthy, and each rank has answered a sampled request.

For the first sampled request, sglang compiles kernels: 96 to 115 s on one H100 or H200 (0.5.16). Until the probe
succeeds, a cluster sends the pod no requests, so no user waits for the compiler.

This file is also a program in a server's container in a cluster, next to `liveness.py`. It runs with the engine's own
Python (3.10 in AMD's images) and only the standard library.

    python3 -I -S first_sample.py PORT RANKS [--alone] [CONFIG]
"""

import http.client
import json
import sys
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final

if __package__:
    from orchestrator.engine.liveness import ALONE, GENERATE, HEALTH, key_in, question, send_request
else:
    sys.path.append(str(Path(__file__).parent))
    from liveness import (  # type: ignore[import-not-found, no-redef]
        ALONE,
        GENERATE,
        HEALTH,
        key_in,
        question,
        send_request,
    )

HEALTH_LIMIT: Final = 25  # seconds; during a long prefill it answers after 20 (sglang, SGLANG_HEALTH_CHECK_TIMEOUT)
SAMPLE_LIMIT: Final = 600  # seconds, for all ranks together
_SAMPLING: Final = {"temperature": 1.0, "top_p": 0.95, "top_k": 50, "max_new_tokens": 2, "ignore_eos": True}


def main(port: str, ranks: str, *words: str) -> str:
    """Send a request to each data-parallel rank of a healthy server; return why the server is not healthy, or "".

    The answers do not matter: the smoke test and the liveness probe judge the server.
    """
    config, alone = [word for word in words if word != ALONE], ALONE in words
    key = key_in(Path(config[0]).read_text(encoding="utf-8")) if config else ""

    def sent(method: str, path: str, content: "bytes | None", seconds: float) -> http.client.HTTPConnection:
        return send_request(("127.0.0.1", int(port)), method, path, content, key=key, seconds=seconds)

    try:
        with closing(sent("GET", HEALTH, None, HEALTH_LIMIT)) as connection:
            health = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {type(error).__name__}"
    if health != http.client.OK:
        return f"{HEALTH} returned HTTP {health}"
    end = time.monotonic() + SAMPLE_LIMIT
    with ExitStack() as opened:
        connections = []
        for rank in range(int(ranks)):  # concurrently, so that all ranks compile at the same time
            content = json.dumps({**question(rank, alone=alone), "sampling_params": _SAMPLING}).encode()
            with suppress(OSError):
                connections.append(opened.enter_context(closing(sent("POST", GENERATE, content, SAMPLE_LIMIT))))
        for connection in connections:
            with suppress(OSError, http.client.HTTPException):
                connection.sock.settimeout(max(end - time.monotonic(), 0.1))
                connection.getresponse()
    return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or 0)
