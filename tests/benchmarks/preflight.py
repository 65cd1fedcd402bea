"""How long `deploy preflight` takes here, beside its two parts: starting the tool, and the look at the machine.

    python tests/benchmarks/preflight.py [rounds]

Then a checkpoint of 10,000 shards: verified, and verified again behind its receipt. Medians.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "samples"))

from checkpoint_samples import write_checkpoint
from plan_samples import model

from orchestrator.host import local, survey
from orchestrator.host.gpus import ALL_SECTIONS
from orchestrator.host.survey import MACHINE_SECTIONS
from orchestrator.weights import verify_checkpoint
from orchestrator.weights.receipt import receipt_path


def deploy(*words: str) -> None:
    argv = [sys.executable, "-m", "orchestrator", *words]
    subprocess.run(argv, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def seconds(measured: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        measured()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def main(rounds: int) -> None:
    start = seconds(lambda: deploy("--help"), rounds)
    look = seconds(lambda: survey(local, {**ALL_SECTIONS, **MACHINE_SECTIONS}), rounds)
    for profile in ("cpu-tiny", "mi355x-tp8"):
        whole = seconds(lambda name=profile: deploy("preflight", "--profile", name), rounds)
        print(
            f"deploy preflight --profile {profile}: {whole:.2f} s "
            f"({whole / start:.1f} x `deploy --help` {start:.2f} s; the look at the machine alone {look:.2f} s)"
        )
    with tempfile.TemporaryDirectory() as folder:
        directory = write_checkpoint(Path(folder) / "many", shards=10_000, size=100)

        def fresh() -> None:
            receipt_path(directory).unlink(missing_ok=True)
            verify_checkpoint(directory, model(str(directory)), speculative=True)

        first = seconds(fresh, 3)
        again = seconds(lambda: verify_checkpoint(directory, model(str(directory)), speculative=True), 3)
        print(
            f"10,000 shards: verified in {first:.2f} s, behind the receipt {again:.2f} s ({first / again:.0f} x faster)"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
