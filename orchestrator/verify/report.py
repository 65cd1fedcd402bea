"""What the checks found, for people and for programs."""

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

from pydantic import computed_field

from orchestrator.core.console import table
from orchestrator.core.errors import Problem, SmokeError
from orchestrator.plan.plan import PlanWarning


class Verdict(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    WARNING = "warning"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class CheckOutcome:
    """A verdict and what stands behind it: the figures that were seen, or the reason why there are none."""

    verdict: Verdict
    evidence: str
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check as it was carried out; `seconds` is its duration, `causes` what is known to make it end so."""

    name: str
    verdict: Verdict
    evidence: str
    seconds: float
    causes: tuple[str, ...] = ()

    @property
    def format_causes(self) -> str:
        """The causes as a list for people."""
        return "\n".join([f"known causes for `{self.name}`:", *(f"  - {cause}" for cause in self.causes)])


@dataclass(frozen=True, kw_only=True)
class SmokeReport:
    """All checks of one server, in the order they ran."""

    url: str
    served_name: str
    checks: tuple[CheckResult, ...]
    first_sample_seconds: float = 0.0  # of the first sampled request, which is sent before the checks

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorator of a property
    @property
    def ok(self) -> bool:
        """Whether no check failed. A warning does not fail; what is not applicable has not passed either."""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.verdict is Verdict.FAILED)

    def to_dict(self) -> dict[str, object]:
        """The report as plain JSON-able data."""
        return {"ok": self.ok, **dataclasses.asdict(self)}

    def to_table(self, *, width: int | None = None) -> str:
        """The report as a table, folded to `width`, with a line of totals below, and what may be behind a warning."""
        rows = [(check.name, check.verdict, f"{check.seconds:.1f} s", check.evidence) for check in self.checks]
        counts = {verdict: sum(check.verdict is verdict for check in self.checks) for verdict in Verdict}
        totals = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
        whole = f"{table(('check', 'verdict', 'took', 'evidence'), rows, width=width)}\n\n{totals}"
        warned = (check for check in self.checks if check.verdict is Verdict.WARNING and check.causes)
        return "\n\n".join([whole, *(check.format_causes for check in warned)])

    def require(self) -> None:
        """Raise SmokeError with every failed check, where there is one."""
        if not self.ok:
            problems = [Problem(f"{check.name}: {check.evidence}") for check in self.failures]
            raise SmokeError(
                f"`{self.served_name}` failed its smoke test",
                problems=problems,
                details="\n\n".join(check.format_causes for check in self.failures if check.causes),
            )


def cause_of(issue: PlanWarning) -> str:
    """Return a known issue as a cause, with what it rests on."""
    return f"{issue.summary} ({'; '.join(filter(None, [issue.source, issue.basis]))})"


def passed(evidence: str) -> CheckOutcome:
    """The feature is there."""
    return CheckOutcome(verdict=Verdict.PASSED, evidence=evidence)


def failed(evidence: str, *, causes: tuple[str, ...] = ()) -> CheckOutcome:
    """The feature is absent or broken."""
    return CheckOutcome(verdict=Verdict.FAILED, evidence=evidence, causes=causes)


def warning(evidence: str, *, causes: tuple[str, ...] = ()) -> CheckOutcome:
    """Something that could not be decided."""
    return CheckOutcome(verdict=Verdict.WARNING, evidence=evidence, causes=causes)


def skipped(evidence: str) -> CheckOutcome:
    """The profile does not have the feature."""
    return CheckOutcome(verdict=Verdict.SKIPPED, evidence=evidence)


@dataclass(frozen=True)
class Skip:
    """A check that a target does not have, with the reason. It needs no server."""

    reason: str

    def __call__(self, _client: object) -> CheckOutcome:
        """Return the outcome."""
        return skipped(self.reason)
