"""How long `deploy status` takes with many containers, beside `docker ps` of the same.

    python tests/benchmarks/status_many.py [CONTAINERS] [ROUNDS]

The containers sleep, in the stand-in image that the integration tests build, and carry the labels of servers. Needs a
Docker engine; everything is removed at the end.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from standin import base_image
from wheels import wheel

PREFIX = "deploy-bench-status"


def labels(number: int) -> list[str]:
    values = {
        "deploy.name": f"{PREFIX}-{number}",
        "deploy.plan": "0" * 64,
        "deploy.profile": "cpu-tiny",
        "deploy.run-dir": "/nonexistent",
        "deploy.starter": "none",
        "deploy.url": f"http://127.0.0.1:{1000 + number}",
        "deploy.version": "0",
    }
    return [word for name, value in values.items() for word in ("--label", f"{name}={value}")]


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout


def seconds(argv: list[str], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run(argv, check=True, capture_output=True)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main(containers: int, rounds: int) -> None:
    image = base_image(wheel("0.5.14"))
    names = [f"{PREFIX}-{number}" for number in range(containers)]
    try:
        for number, name in enumerate(names):
            docker("run", "--detach", "--init", "--name", name, *labels(number), image, "sleep", "600")
        ours = seconds([sys.executable, "-m", "orchestrator", "status"], rounds)
        found = subprocess.run(
            [sys.executable, "-m", "orchestrator", "status"], capture_output=True, text=True, check=True
        )
        assert found.stdout.count(PREFIX) == containers
        print(f"docker ps of {containers:3} containers      {seconds(['docker', 'ps'], rounds):6.2f} s")
        print(f"deploy status of {containers:3} containers  {ours:6.2f} s")
    finally:
        subprocess.run(["docker", "rm", "--force", *names], capture_output=True, check=False)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    main(*(numbers + [50, 5][len(numbers) :]))
