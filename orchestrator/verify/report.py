"""The smoke test report."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Final

from pydantic import computed_field

from orchestrator.core.console import table
from orchestrator.core.errors import Problem, SmokeError
from orchestrator.core.secrets import excerpt
from orchestrator.plan.plan import PlanWarning

_MAX_EVIDENCE: Final = 500  # characters; a server's response can be very long


class Verdict(StrEnum):
    """The verdict of a check."""

    PASSED = "passed"
    FAILED = "failed"
    WARNING = "warning"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class CheckOutcome:
    """A verdict with its evidence; `causes` are the known issues that explain it."""

    verdict: Verdict
    evidence: str  # the observed values, or the reason why there are none
    causes: tuple[str, ...] = ()

    def result(self, name: str, seconds: float) -> "CheckResult":
        """Return the result of the check `name` that took `seconds`; its evidence is short and printable."""
        evidence = excerpt(" ".join(self.evidence.split()), _MAX_EVIDENCE)
        text = "".join(item if item.isprintable() else ascii(item)[1:-1] for item in evidence)
        return CheckResult(
            name=name, verdict=self.verdict, evidence=text, seconds=round(seconds, 3), causes=self.causes
        )


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of one check; `seconds` is its duration, `causes` are the known issues that explain it."""

    name: str
    verdict: Verdict
    evidence: str
    seconds: float
    causes: tuple[str, ...] = ()

    @property
    def format_causes(self) -> str:
        """The causes as a list in plain text."""
        return "\n".join([f"known causes for `{self.name}`:", *(f"  - {cause}" for cause in self.causes)])


@dataclass(frozen=True, kw_only=True)
class SmokeReport:
    """All checks of one server, in the order they ran."""

    url: str
    served_name: str
    checks: tuple[CheckResult, ...]
    first_sample_seconds: float = 0.0  # of the first sampled request, which is sent before the checks

    @computed_field  # type: ignore[prop-decorator]  # mypy does not support a decorated property
    @property
    def ok(self) -> bool:
        """Return whether no check failed. Warnings and skipped checks are not failures."""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.verdict is Verdict.FAILED)

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain data for JSON."""
        return {"ok": self.ok, **dataclasses.asdict(self)}

    def to_table(self, *, width: int | None = None) -> str:
        """Return the report as a table, folded to `width`, with a line of totals and the causes of warnings."""
        rows = [(check.name, check.verdict, f"{check.seconds:.1f} s", check.evidence) for check in self.checks]
        counts = {verdict: sum(check.verdict is verdict for check in self.checks) for verdict in Verdict}
        totals = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
        check_table = f"{table(('check', 'verdict', 'took', 'evidence'), rows, width=width)}\n\n{totals}"
        warned = (check for check in self.checks if check.verdict is Verdict.WARNING and check.causes)
        return "\n\n".join([check_table, *(check.format_causes for check in warned)])

    def require(self) -> None:
        """Raise SmokeError with all failed checks, if there are any."""
        if not self.ok:
            problems = [Problem(f"{check.name}: {check.evidence}") for check in self.failures]
            raise SmokeError(
                f"`{self.served_name}` failed its smoke test",
                problems=problems,
                details="\n\n".join(check.format_causes for check in self.failures if check.causes),
            )


def causes_of(issues: Iterable[PlanWarning], *, hints: bool = False) -> tuple[str, ...]:
    """Return known issues as causes, with their source and basis, and with `hints` also their hints."""
    return tuple(
        f"{issue.summary} ({'; '.join(filter(None, [issue.source, issue.basis]))})" + f"; {issue.hint}" * hints
        for issue in issues
    )


def passed(evidence: str) -> CheckOutcome:
    """Return the outcome for a feature that works."""
    return CheckOutcome(verdict=Verdict.PASSED, evidence=evidence)


def failed(evidence: str, *, causes: tuple[str, ...] = ()) -> CheckOutcome:
    """Return the outcome for a feature that is absent or broken."""
    return CheckOutcome(verdict=Verdict.FAILED, evidence=evidence, causes=causes)


def warning(evidence: str, *, causes: tuple[str, ...] = ()) -> CheckOutcome:
    """Return the outcome for a check that could not decide."""
    return CheckOutcome(verdict=Verdict.WARNING, evidence=evidence, causes=causes)


def skipped(evidence: str) -> CheckOutcome:
    """Return the outcome for a check that does not apply."""
    return CheckOutcome(verdict=Verdict.SKIPPED, evidence=evidence)


def compare_ids(
    first: Sequence[int], second: Sequence[int], subject: str, nondeterministic: Sequence[PlanWarning]
) -> CheckOutcome | None:
    """Return the difference between the token ids of two greedy answers, or None; different lengths always fail.

    `subject` begins the evidence: "two greedy answers differ".
    """
    pairs = zip_longest(first, second)  # a shorter answer differs where it ends
    index = next((location for location, (a, b) in enumerate(pairs) if a != b), None)
    if index is None:
        return None
    return differs(f"{subject} at token {index}", nondeterministic if len(first) == len(second) else ())


def differs(evidence: str, nondeterministic: Sequence[PlanWarning]) -> CheckOutcome:
    """Return a failure for different greedy answers, or a warning if a kernel of the plan adds in no fixed order."""
    if not nondeterministic:
        return failed(evidence)
    return warning(f"{evidence}, as expected for this plan", causes=causes_of(nondeterministic))
