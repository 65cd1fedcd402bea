"""What the docker runtime costs over plain `docker run` and polling, from the command to the first answer.

    python tests/benchmarks/docker_overhead.py IMAGE [REPEATS]

IMAGE is any image with python3; both sides start the same HTTP server in it, in turns, and poll it every 20 ms.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx

from orchestrator.commands.planning import load
from orchestrator.core.paths import Home
from orchestrator.render import Artifacts, Command
from orchestrator.runtimes.docker.container import container_spec, docker_run_line
from orchestrator.runtimes.docker.runtime import DockerRuntime

NAME = "overhead"


def artifacts(image: str) -> Artifacts:
    """`cpu-tiny` for docker, with Python's own HTTP server in place of sglang."""
    plan = replace(load("cpu-tiny").plan, runtime="docker")
    argv = ("python3", "-m", "http.server", "--bind", "0.0.0.0", str(plan.server.port))
    spec = replace(container_spec(plan, image), mounts=())
    return Artifacts(plan=plan, command=Command(argv=argv, env=(), in_home=False), build=None, spec=spec)


def seconds_to_answer(start: Callable[[], object], url: str) -> float:
    began = time.perf_counter()
    start()
    while True:
        try:
            httpx.get(url, trust_env=False)
            return time.perf_counter() - began
        except httpx.TransportError:
            time.sleep(0.02)


def main(image: str, repeats: int) -> None:
    what, run_dir = artifacts(image), Path(tempfile.mkdtemp())
    line, url = docker_run_line(what, NAME), f"http://127.0.0.1:{what.plan.server.port}"
    plain, ours = list[float](), list[float]()
    with closing(DockerRuntime(Home(run_dir))) as runtime:

        def by_hand() -> None:
            subprocess.run(["sh", "-c", line], stdout=subprocess.DEVNULL, check=True)

        def by_runtime() -> None:
            runtime.start(what, name=NAME, run_dir=run_dir, secrets={})

        for _ in range(repeats):
            plain.append(seconds_to_answer(by_hand, url))
            subprocess.run(["docker", "rm", "--force", f"deploy-{NAME}"], stdout=subprocess.DEVNULL, check=True)
            ours.append(seconds_to_answer(by_runtime, url))
            for handle in runtime.find(NAME):
                runtime.stop(handle, grace=0)
    for side, figures in (("docker run + polling", plain), ("docker runtime", ours)):
        print(f"{side:<22} median {statistics.median(figures):.3f} s  ({min(figures):.3f} to {max(figures):.3f})")
    print(f"ratio {statistics.median(ours) / statistics.median(plain):.3f}, {repeats} starts each, in turns")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10)
