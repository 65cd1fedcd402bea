"""How long `deploy --help` and `deploy render` take, beside `python -c pass` and a bare typer + pydantic program.

    python tests/benchmarks/startup.py [ROUNDS]

All alternate in one run; medians of wall-clock seconds, and their ratios.
"""

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
}


def main(rounds: int) -> None:
    taken: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds):
        for name, argv in PROGRAMS.items():
            start = time.perf_counter()
            subprocess.run(argv, check=True, capture_output=True)
            taken[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    python, bare = medians["python -c pass"], medians["bare typer + pydantic, run"]
    for name, seconds in medians.items():
        ratios = f"{seconds / python:5.1f} x python  {seconds / bare:5.2f} x bare program"
        print(f"{name:30} {seconds * 1000:7.0f} ms  {ratios}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
