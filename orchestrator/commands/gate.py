"""The kernel gate: did the fused MoE find its tuned rows, as the server's own log tells it?"""

from collections.abc import Iterable

from orchestrator.commands.runs import RunDir
from orchestrator.core.console import note, warn
from orchestrator.core.errors import KernelsError
from orchestrator.core.files import write_whole
from orchestrator.kernels.coverage import applies_to
from orchestrator.kernels.gate import GateReport, gate
from orchestrator.plan import Plan


def kernel_gate(log: Iterable[str], *, plan: Plan, run: RunDir, strict: bool) -> GateReport | None:
    """Read the log for hits and misses and say what was missed; None for a plan without such kernels.

    Keeps the report beside the log, and the missed keys as the tuner's input. Raises KernelsError on a miss where
    `strict`. Large prefill buckets are looked up late: `smoke` and `bench` look again.
    """
    if not applies_to(plan):
        return None
    report = gate(log)
    run.save("kernels.json", report.to_dict())
    text = f"kernels: {report.summary}"
    if not report.misses:
        note(text)
        return report
    untuned = write_whole(run.path / "untuned.csv", report.untuned)
    hint = (
        f"`deploy kernels coverage --profile {plan.profile}` shows the gap, `deploy kernels table` fills what is "
        f"known, `deploy kernels tune` measures the rest; the missed keys: {untuned}"
    )
    if strict:
        raise KernelsError(text, hint=hint)
    warn(text, hint=hint)
    return report
