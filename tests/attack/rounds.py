"""Run groups of attack rounds, each with its own random generator, and record the outcomes for a table."""

import os
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

FACTOR = float(os.environ.get("ATTACK", "1"))  # multiplies the number of rounds
SEED = int(os.environ["ATTACK_SEED"])  # tests/conftest.py sets the default
_AT_ONCE = 4  # concurrent rounds, which mostly wait

Round = Callable[[int, Random], Iterable[str]]  # yields problems


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a group of rounds; a round without problems survives."""

    group: str
    rounds: int
    failed: dict[int, list[str]]
    seconds: float

    @property
    def row(self) -> tuple[str, ...]:
        problems = sum(len(faults) for faults in self.failed.values())
        survived = self.rounds - len(self.failed)
        return (self.group, str(self.rounds), str(survived), str(problems), f"{self.seconds:.0f}")


outcomes: list[Outcome] = []  # of the current test


def attack(group: str, rounds: int, one: Round, *, at_once: int = _AT_ONCE) -> None:
    """Run `rounds` times `ATTACK` rounds, at least one; fail with the problems of all rounds."""
    count = max(1, round(rounds * FACTOR))
    started = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        faults = dict(enumerate(pool.map(lambda number: _faults(group, number, one), range(count))))
    failed = {number: problems for number, problems in faults.items() if problems}
    outcomes.append(Outcome(group=group, rounds=count, failed=failed, seconds=time.monotonic() - started))
    assert not failed, "\n".join(
        [
            f"ATTACK_SEED={SEED}",
            *(f"round {number}: {problem}" for number, problems in failed.items() for problem in problems),
        ]
    )


def _faults(group: str, number: int, one: Round) -> list[str]:
    try:
        return list(one(number, Random(f"{SEED} {group} {number}")))
    except Exception:  # noqa: BLE001 - the other rounds continue
        return [traceback.format_exc()]
