"""An attack: a group of rounds, each with dice of its own, and the table of how they ended."""

import os
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

TIMES = float(os.environ.get("ATTACK", "1"))  # this many times the rounds that a group names
SEED = int(os.environ["ATTACK_SEED"])  # as tests/conftest.py sets it where nobody has
_AT_ONCE = 4  # rounds: most of the time of one it waits

Round = Callable[[int, Random], Iterable[str]]  # its number and its dice, to everything that was wrong


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the rounds of a group ended; one survives in which nothing was wrong."""

    group: str
    rounds: int
    failed: dict[int, list[str]]
    seconds: float

    @property
    def row(self) -> tuple[str, ...]:
        left = sum(len(faults) for faults in self.failed.values())
        return (self.group, str(self.rounds), str(self.rounds - len(self.failed)), str(left), f"{self.seconds:.0f}")


outcomes: list[Outcome] = []  # of the test that runs


def attack(group: str, rounds: int, one: Round, *, at_once: int = _AT_ONCE) -> None:
    """Carry out `rounds` times `ATTACK` rounds, at least one, and fail with the faults of all of them."""
    count = max(1, round(rounds * TIMES))
    begun = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        faults = dict(enumerate(pool.map(lambda number: _faults(group, number, one), range(count))))
    failed = {number: found for number, found in faults.items() if found}
    outcomes.append(Outcome(group=group, rounds=count, failed=failed, seconds=time.monotonic() - begun))
    assert not failed, "\n".join(
        [f"ATTACK_SEED={SEED}", *(f"round {number}: {fault}" for number, found in failed.items() for fault in found)]
    )


def _faults(group: str, number: int, one: Round) -> list[str]:
    try:
        return list(one(number, Random(f"{SEED} {group} {number}")))
    except Exception:  # noqa: BLE001 - the other rounds go on
        return [traceback.format_exc()]
