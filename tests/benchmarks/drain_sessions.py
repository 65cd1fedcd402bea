"""Run agent sessions while their servers are replaced and stopped, and count aborted requests.

    python tests/benchmarks/drain_sessions.py [--python PYTHON] [--bound 60] [--down 5] [--concurrency 12]

Two replicas behind the real gateway: with a PYTHON that has sglang, the first one is real, on the CPU; otherwise both
are the scripted engine. `deploy bench` plays sessions with think time through the gateway. Meanwhile the replicas are
restarted in a rolling update, replaced with another plan, and finally stopped with a shorter bound.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from command_line import commands_forked  # noqa: E402
from cpu_server import CpuEngine  # noqa: E402
from forked import forking  # noqa: E402
from gateway_pair import NAME, Pair, pair_in  # noqa: E402

from orchestrator.core.paths import Home  # noqa: E402

SESSIONS = {
    "description": "agent sessions of two minutes",
    "sessions": {
        "count": 400,
        "turns": [6, 10],
        "system_prompt_tokens": 64,
        "first_prompt_tokens": 40,
        "turn_tokens": 24,
        "output_tokens": 200,
        "think_time_s": 4.0,
    },
    "load": "closed",
    "token_ids": [10, 500],
    "temperature": 0.0,
    "timeout_s": 600,
}


def change(pair: Pair, *words: str) -> None:
    """Run a command that changes the servers, and print its time and its drains."""
    started = time.monotonic()
    done = pair.deploy.run(*words)
    if done.returncode:
        sys.exit(done.stderr)
    drained = [line for line in done.stderr.splitlines() if line.startswith("drained")]
    print(f"{words[0]}: {time.monotonic() - started:.0f} s; {'; '.join(drained) or 'no request was left'}", flush=True)


def report(folder: Path) -> None:
    """Print the client's results."""
    (point,) = json.loads((folder / "result.json").read_text())["points"]
    (file,) = folder.glob("requests-*.jsonl")
    requests = [json.loads(line) for line in file.read_text().splitlines()]
    ended = sorted(request["ended_s"] - request["scheduled_s"] for request in requests if request["failure"] is None)
    sessions: dict[str, list[float]] = {}
    for request in requests:
        sessions.setdefault(request["session"], []).append(request["ended_s"])
    length = sorted(max(ends) - min(ends) for ends in sessions.values())
    print(f"client: {point['requests']} requests of {len(sessions)} sessions, {point['succeeded']} complete")
    print(
        f"a request took {ended[len(ended) // 2]:.0f} s, at most {ended[-1]:.0f} s; a session up to {length[-1]:.0f} s"
    )
    for failure in point["failures"]:
        print(f"failed: {failure['count']} {failure['kind']}: {failure['example']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path)
    parser.add_argument("--bound", type=int, default=60)
    parser.add_argument("--down", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=12)
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        forking(Path(name)) as forks,
        commands_forked(forks),
        pair_in(Path(name)) as pair,
    ):
        made = pair
        if chosen.python is not None:
            made = pair.with_real(CpuEngine(home=Home.from_environment(), python=chosen.python))
        settings = (
            "timeouts.progress_deadline=600",
            f"timeouts.termination_grace={chosen.bound}",
            "env.SCRIPTED_STEP=0.05",
        )
        made.up(*settings)
        folder = Path(name) / "result"
        workload = Path(name) / "sessions.yaml"
        workload.write_text(json.dumps({**SESSIONS, "concurrency": chosen.concurrency}))
        words = [
            "bench",
            made.url,
            "--api",
            "generate",
            "-w",
            str(workload),
            "--api-key-env",
            "PAIR_KEY",
            "--output",
            str(folder),
        ]
        with made.deploy.running(*words) as bench:
            bench.wait_for("completed")
            time.sleep(30)
            change(made, "restart", NAME)
            time.sleep(10)
            change(made, *made.words(*settings, "env.OTHER=1"), "--replace")
            time.sleep(10)
            change(made, "down", NAME, "--drain", str(chosen.down))
            bench.wait()
        report(folder)


if __name__ == "__main__":
    main()
