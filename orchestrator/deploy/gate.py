"""The kernel gate: did the fused MoE find its tuned rows, as the server's own log tells it?"""

from collections.abc import Iterable
from pathlib import Path

from orchestrator.console import note, warn
from orchestrator.errors import KernelsError
from orchestrator.kernels.coverage import applies_to
from orchestrator.kernels.gate import GateReport, gate
from orchestrator.plan import Plan
from orchestrator.state import RunDir


def kernel_gate(log: Iterable[str], *, plan: Plan, run: RunDir | None, strict: bool) -> GateReport | None:
    """Read the log for hits and misses and say what was missed; None for a plan without such kernels.

    Keeps the report beside the log, and the missed keys as the tuner's input. Raises KernelsError on a miss where
    `strict`. Large prefill buckets are looked up late: `smoke` and `bench` look again.
    """
    if not applies_to(plan):
        return None
    report = gate(log)
    mend = f"`deploy kernels coverage --profile {plan.profile}` shows the gap, `deploy kernels table` fills it"
    if run is not None:
        run.save("kernels.json", report.to_dict())
    if not report.untuned:
        note(f"kernels: {report.summary}")
    elif strict:
        raise KernelsError(f"kernels: {report.summary}", hint=mend)
    else:
        if run is not None:
            _keep(run.path / "untuned.csv", report.untuned)
        warn(f"kernels: {report.summary}", hint=mend)
    return report


def _keep(path: Path, text: str) -> None:
    path.write_text(text)
