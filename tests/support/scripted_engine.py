#!/usr/bin/env python3
"""A fake Python interpreter for sglang: it starts a fake server within 0.3 s.

`tests/integration/test_scripted_engine.py` compares the server with real sglang over HTTP.

    scripted_engine.py -m sglang.launch_server --port 30010 …    serve, with a scheduler and a detokenizer process
    scripted_engine.py -c …                                      print versions, for any code
    scripted_engine.py tiny_model.py DIRECTORY                   write a complete checkpoint with one tensor

Environment variables that change its behavior:

    SCRIPTED_VERSIONS={…}    print these versions instead of the default ones
    SCRIPTED_PAUSE=0.5       wait these seconds after each startup stage; `0,300`: 0 after the first, 300 after others
    SCRIPTED_BROKEN=1        exit with a traceback while loading
    SCRIPTED_DETACHED=1      the scheduler starts a program in a new session with an empty environment
    SCRIPTED_DEAF=1          ignore SIGTERM
    SCRIPTED_ECHO=base64,hex repeat the API key in these encodings in the log, in errors and in responses
    SCRIPTED_LOG=OOMKilled   write this line to the log
    SCRIPTED_REJECT=1        answer every request for tokens with 400
    SCRIPTED_UNHEALTHY=FILE  answer a health check with 503 while the file contains the port
    SCRIPTED_MUTE=FILE       while the file exists, stay healthy but generate nothing: respond with its text, or never
                             if that is `hangs`; a start removes the file
    SCRIPTED_COMPILE=5       write a kernel to TRITON_CACHE_DIR in these seconds, unless it exists
    SCRIPTED_SAMPLES=FILE    answer a sampled request only when the file exists, as if kernels were compiling
    SCRIPTED_STEP=0.01       seconds for each token of a stream; exit while loading if it is not a number
"""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - also where PYTHONSAFEPATH is set

VERSIONS = {
    "python": "3.11.2",
    "torch": "2.9.1+cpu",
    "cuda": None,
    "hip": None,
    "sglang": "0.5.14",
    "sglang-kernel": None,
    "flashinfer-python": None,
    "triton": None,
    "transformers": "5.3.0",
}


def make_checkpoint(folder: str) -> None:
    """Write the files that `deploy` checks before a start."""
    os.makedirs(folder)  # noqa: PTH103
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    files = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "model.safetensors": len(header).to_bytes(8, "little") + header + bytes(4),
    }
    for name, content in files.items():
        with open(f"{folder}/{name}", "wb") as file:  # noqa: PTH123
            file.write(content)


def main(argv: list[str]) -> None:
    if argv[0] == "-c":
        print(json.dumps(VERSIONS | json.loads(os.environ.get("SCRIPTED_VERSIONS", "{}"))))
        return
    if argv[:2] != ["-m", "sglang.launch_server"]:
        make_checkpoint(argv[1])
        return
    from engine_process import serve

    names = [(word, argv[location + 1 : location + 2]) for location, word in enumerate(argv) if word.startswith("--")]
    serve({name.removeprefix("--"): "".join(value) for name, value in names}, dict(os.environ))


if __name__ == "__main__":
    main(sys.argv[1:])
