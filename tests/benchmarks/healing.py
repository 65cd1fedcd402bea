"""What `deploy watch` adds to a start: the death of a server until it serves again, beside its command by hand.

    python tests/benchmarks/healing.py [ROUNDS]

By hand: as in `up_overhead.py`. Healed: from SIGKILL of the server to the event `serves`, which comes when its smoke
test has passed. With it what the watch takes, what `top` takes while it draws, and `diff` of two runs.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from up_overhead import DEPLOY, SET, by_hand

TICKS = os.sysconf("SC_CLK_TCK")
QUIETLY: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
SECONDS = 30  # that `top` is looked at


def server_pid(run_dir: str) -> int:
    """The server's own pid, as its record has it (`boot/pid/start`)."""
    return int(json.loads(Path(run_dir, "process.json").read_text())["server"].split("/")[1])


def run_dir() -> str:
    told = subprocess.run([*DEPLOY, "status", "cpu-tiny", "--json"], capture_output=True, check=True).stdout
    return str(json.loads(told)[0]["run_dir"])


def processor_seconds(pid: int) -> float:
    """Of a process itself, and of the programs that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def healed(rounds: int) -> Iterator[float]:
    """Seconds from each kill until it serves; and what the watch took is printed."""
    words = [*DEPLOY, "watch", "cpu-tiny", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as watch:
        assert watch.stdout is not None
        watch.stdout.readline()
        for _ in range(rounds):
            began = time.perf_counter()
            os.kill(server_pid(run_dir()), signal.SIGKILL)
            while json.loads(watch.stdout.readline())["event"] != "serves":
                pass
            yield time.perf_counter() - began
        kept = Path(f"/proc/{watch.pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) for line in kept if line.startswith("VmHWM"))
        print(f"watch, most memory     {peak / 1024:6.1f} MiB")
        watch.send_signal(signal.SIGINT)


def share_of_top() -> float:
    """Of one core, while it is drawn anew every two seconds; its start is left out."""
    words = ["script", "-qfc", " ".join([*DEPLOY, "top", "cpu-tiny"]), "/dev/null"]
    with subprocess.Popen(words, **QUIETLY) as terminal:
        time.sleep(5)
        children = Path(f"/proc/{terminal.pid}/task/{terminal.pid}/children").read_text().split()
        top = int(children[0])
        before = processor_seconds(top)
        time.sleep(SECONDS)
        used = processor_seconds(top) - before
        os.kill(top, signal.SIGINT)
    return used / SECONDS


def difference(first: str, last: str) -> tuple[float, float]:
    """Seconds of `diff` by the clock, and of CPU."""
    own = os.times()
    began = time.perf_counter()
    subprocess.run([*DEPLOY, "diff", first, last], check=True, **QUIETLY)
    took = time.perf_counter() - began
    after = os.times()
    return took, after.children_user + after.children_system - own.children_user - own.children_system


def main(rounds: int) -> None:
    print(f"load                   {os.getloadavg()[0]:6.1f}")
    subprocess.run([*DEPLOY, "up", "cpu-tiny", *SET], check=True, **QUIETLY)
    first = run_dir()
    subprocess.run([*DEPLOY, "down", "cpu-tiny"], check=True, **QUIETLY)
    hand = [by_hand(first) for _ in range(rounds)]
    subprocess.run([*DEPLOY, "up", "cpu-tiny", *SET], check=True, **QUIETLY)
    try:
        again = list(healed(rounds))
        share = share_of_top()
        compared = [difference(*(f"cpu-tiny/{Path(run).name}" for run in (first, run_dir()))) for _ in range(9)]
    finally:
        subprocess.run([*DEPLOY, "down", "cpu-tiny"], check=False, **QUIETLY)
    median = statistics.median
    print(f"by hand, polled        {median(hand):6.2f} s   {[round(each, 1) for each in hand]}")
    print(f"killed, serves, proven {median(again):6.2f} s   {[round(each, 1) for each in again]}")
    print(f"top, of a core         {share:6.1%}")
    wall, cpu = (median(each) for each in zip(*compared, strict=True))
    print(f"diff of two runs       {wall:6.2f} s, {cpu:.2f} s of CPU")
    print(f"load                   {os.getloadavg()[0]:6.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
