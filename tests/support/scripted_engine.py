#!/usr/bin/env python3
"""An interpreter in place of sglang's: what it is told to launch serves within 0.3 s, like the real one as seen from
outside. `tests/integration/test_scripted_engine.py` asks both the same and compares.

    scripted_engine.py -m sglang.launch_server --port 30010 …    serves, with a scheduler and a detokenizer below it
    scripted_engine.py -c …                                      says which versions it has, whatever it is asked
    scripted_engine.py tiny_model.py DIRECTORY                   makes a checkpoint that is as whole as it is empty

Told by variables of its environment:

    SCRIPTED_VERSIONS={…}    of what it says it has, these differ
    SCRIPTED_PAUSE=0.5       seconds after each stage of the start; `0,300`: after the first one, and after the others
    SCRIPTED_BROKEN=1        it ends while it loads, with a traceback
    SCRIPTED_DETACHED=1      the scheduler starts a program that leaves its session, with an empty environment
    SCRIPTED_DEAF=1          SIGTERM does not end it
    SCRIPTED_ECHO=base64,hex it repeats its API key in these encodings: in its log, in errors and in answers
    SCRIPTED_LOG=OOMKilled   a line of its log says this
    SCRIPTED_REFUSE=1        it generates nothing for others, and says so with 400
    SCRIPTED_UNHEALTHY=FILE  while that file names its port, a health check gets 503
    SCRIPTED_MUTE=FILE       while there is such a file, it is healthy and generates nothing: where the file says
                             `hangs` it does not answer, else with what the file says; a start removes the file
    SCRIPTED_COMPILE=5       it writes a kernel to TRITON_CACHE_DIR, which takes these seconds, unless it is there
    SCRIPTED_SAMPLES=FILE    a sampled request is answered once there is such a file, as if its kernels were compiled
    SCRIPTED_STEP=0.01       seconds for each token of a stream; what is no number ends it while it loads
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
    """The files that are looked at before a start."""
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
