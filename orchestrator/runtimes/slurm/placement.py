"""Waiting for the node of a submitted job."""

import time
from collections.abc import Callable
from math import inf
from typing import Final

from orchestrator.core.console import Progress, note
from orchestrator.core.errors import StartError
from orchestrator.core.polling import poll_until
from orchestrator.runtimes.slurm import jobs
from orchestrator.runtimes.slurm.jobs import Job, exit_reason, pending_reason, unschedulable_hint

_POLL: Final = 0.5  # seconds between two polls of a job
_ON_WAIT_INTERVAL: Final = 5.0  # seconds between two calls of `on_wait`
_RELIABLE_AFTER: Final = 5.0  # seconds after which a reason is reliable: the first one is often not the scheduler's


def wait_for_node(number: str, *, limit: float | None, hint: str, on_wait: Callable[[], object]) -> Job:
    """Wait, reporting the reason, until a job is running or has run.

    `hint` is another way to get a node; `on_wait` is called every few seconds. Raises StartError if the job can never
    run, was cancelled meanwhile, or has waited for `limit` seconds.
    """
    progress, began = Progress(), time.monotonic()
    seen_to = began
    reasons: dict[str, float] = {}  # the current reason, and since when it holds

    def on_tick(job: Job) -> None:
        nonlocal seen_to
        now, word = time.monotonic(), job.reason.partition(",")[0]
        if now - seen_to >= _ON_WAIT_INTERVAL:
            on_wait()
            seen_to = now
        since = reasons.get(word, now)
        reasons.clear()
        reasons[word] = since
        if now - since >= _RELIABLE_AFTER and (never := unschedulable_hint(job)):
            raise StartError(pending_reason(job), hint=never)
        room = f"; {hint}" if hint and now - since >= _RELIABLE_AFTER else ""
        progress.update(f"{pending_reason(job)}{room}", transient=f"{now - began:.0f} s")

    try:
        job = poll_until(
            lambda job: not job.waits,
            lambda: _known(number),
            timeout=inf if limit is None else limit,
            interval=_POLL,
            on_tick=on_tick,
        )
    finally:
        progress.done()
    if job.waits:
        longer = "raise `slurm.queue_timeout` in the profile"
        raise StartError(
            f"{pending_reason(job)}; gave up after {limit:g} s", hint="; ".join(filter(None, [longer, hint]))
        )
    if not job.node:
        hint = f"`scontrol show job {number}` shows details"
        raise StartError(f"job {number} ended before it started: {exit_reason(job) or job.state}", hint=hint)
    note(f"job {number} is running on {job.node}")
    return job


def _known(number: str) -> Job:
    job = jobs.find_job(number)
    if job is None:
        raise StartError(
            f"job {number} disappeared from Slurm before it started", hint="`sacct` may have a record of the job"
        )
    return job
