"""The startup probe of a server: it is healthy, and has answered one sampled request.

For the first request that samples, sglang compiles kernels: 96 to 115 s on one H100 or H200 (0.5.16). Until the probe
succeeds, a cluster sends the pod no requests, so no user waits for the compiler.

This file is also a program, in a server's container in a cluster, beside `liveness.py`. It runs with the engine's own
Python (3.10 in AMD's images) and the standard library only.

    python3 -I -S first_sample.py PORT [CONFIG]
"""

import http.client
import json
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

if __package__:
    from orchestrator.engine.liveness import GENERATE, HEALTH, key_in, question, send
else:
    sys.path.append(str(Path(__file__).parent))
    from liveness import GENERATE, HEALTH, key_in, question, send  # type: ignore[import-not-found, no-redef]

HEALTH_LIMIT: Final = 25  # seconds; behind a long prefill it answers after 20 (sglang, SGLANG_HEALTH_CHECK_TIMEOUT)
SAMPLE_LIMIT: Final = 600  # seconds
_SAMPLING: Final = {"temperature": 1.0, "top_p": 0.95, "top_k": 50, "max_new_tokens": 2, "ignore_eos": True}


def main(port: str, *config: str) -> str:
    """Send the request once the server is healthy; return why it is not, or "".

    Whatever the request's answer is: the smoke test and the liveness probe judge the server.
    """
    key = key_in(Path(config[0]).read_text(encoding="utf-8")) if config else ""

    def status(method: str, path: str, content: "bytes | None", seconds: float) -> int:
        with closing(send(("127.0.0.1", int(port)), method, path, content, key=key, seconds=seconds)) as connection:
            return int(connection.getresponse().status)

    try:
        health = status("GET", HEALTH, None, HEALTH_LIMIT)
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {type(error).__name__}"
    if health != http.client.OK:
        return f"{HEALTH} answers {health}"
    with suppress(OSError, http.client.HTTPException):
        status("POST", GENERATE, json.dumps({**question(0), "sampling_params": _SAMPLING}).encode(), SAMPLE_LIMIT)
    return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or 0)
