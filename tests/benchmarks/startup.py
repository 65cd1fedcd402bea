"""Measure the time of `deploy --help`, `render` and `status`, `python -c pass`, and a bare typer + pydantic program.

    python tests/benchmarks/startup.py [ROUNDS]

The programs alternate. The output has medians of CPU and wall-clock time, and ratios of CPU time.
"""

import resource
import statistics
import subprocess
import sys
import time

BARE = """
import typer, pydantic
class Options(pydantic.BaseModel):
    name: str
app = typer.Typer(rich_markup_mode=None, add_completion=False)
@app.command()
def main(name: str = "x") -> None:
    Options(name=name)
app()
"""
RENDER = [sys.executable, "-m", "orchestrator", "render", "--profile", "mi355x-tp4dp2"]
TO_PODS = ["--runtime", "kubernetes", "--set", "kubernetes.weights.pvc=weights"]
TO_PODS += ["--image", f"registry.example/served@sha256:{'0' * 64}"]
PROGRAMS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "bare typer + pydantic --help": [sys.executable, "-c", BARE, "--help"],
    "bare typer + pydantic, run": [sys.executable, "-c", BARE],
    "deploy --help": [sys.executable, "-m", "orchestrator", "--help"],
    "deploy render": RENDER,
    "deploy render --runtime kubernetes": [*RENDER, *TO_PODS],
    "deploy status": [sys.executable, "-m", "orchestrator", "status"],
}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(rounds: int) -> None:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds):
        for name, argv in PROGRAMS.items():
            cpu, start = cpu_seconds(), time.perf_counter()
            subprocess.run(argv, check=True, capture_output=True)
            taken[name].append((cpu_seconds() - cpu, time.perf_counter() - start))
    medians = {
        name: [statistics.median(seconds) for seconds in zip(*pairs, strict=True)] for name, pairs in taken.items()
    }
    python, bare = medians["python -c pass"][0], medians["bare typer + pydantic, run"][0]
    for name, (cpu, wall) in medians.items():
        ratios = f"{cpu / python:5.1f} x python  {cpu / bare:5.2f} x bare program"
        print(f"{name:34} CPU {cpu * 1000:5.0f} ms  wall {wall * 1000:5.0f} ms  {ratios}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
