"""What an image build costs, beside plain `docker build` of the same context on the same machine, in one run.

    python -m tests.benchmarks.images [BASE]     default: a stand-in for the ROCm image

Prints seconds (median of five) and bytes. `--no-cache` on both sides where something is built.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.commands.planning import load, render_artifacts
from orchestrator.commands.prepare import base_overrides
from orchestrator.images import build_image, find_docker, image_sources
from orchestrator.images.build import archive
from orchestrator.render import build_context
from tests.integration.standin import base_image
from tests.integration.wheels import wheel

RUNS = 5


def seconds(act: Callable[[], object]) -> float:
    """The median of five runs."""
    taken = []
    for _ in range(RUNS):
        started = time.perf_counter()
        act()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> None:
    """Measure both sides and print them with their ratio."""
    docker = find_docker()
    base = sys.argv[1] if len(sys.argv) > 1 else base_image(wheel("0.5.14"), docker=docker.program)
    plan = load("mi355x-tp8-july", overrides=base_overrides(base)).plan
    context = archive(build_context(plan, image_sources(plan)))

    def plain(*options: str) -> None:
        with tempfile.TemporaryFile() as given:
            given.write(context)
            given.seek(0)
            argv = [docker.program, "build", "--tag", "deploy-benchmark/plain", *options, "-"]
            environment = {**docker.env, "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
            subprocess.run(argv, stdin=given, env=environment, check=True, capture_output=True)

    artifacts = render_artifacts(plan)
    rows = {
        "rebuild": (
            seconds(lambda: build_image(docker, artifacts, no_cache=True)),
            seconds(lambda: plain("--no-cache")),
        ),
        "no-op": (seconds(lambda: build_image(docker, artifacts)), seconds(plain)),
    }
    built = build_image(docker, artifacts)
    print(f"builder: {docker.builder}, client {docker.version}")
    for name, (ours, theirs) in rows.items():
        print(f"{name:8} deploy build {ours:.2f} s   docker build {theirs:.2f} s   ratio {ours / theirs:.2f}")
    sizes = docker.run("image", "inspect", "--format", "{{.Size}}", base, built.tag).stdout.split()
    print(f"layers add {int(sizes[1]) - int(sizes[0])} bytes to {int(sizes[0])}")
    docker.run("image", "rm", "deploy-benchmark/plain")


if __name__ == "__main__":
    main()
