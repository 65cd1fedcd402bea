"""The preflight report, as a table or as JSON."""

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from enum import StrEnum

from pydantic import computed_field

from orchestrator.core.command_hints import expand_commands
from orchestrator.core.console import table
from orchestrator.core.errors import HostError, Problem
from orchestrator.core.secrets import redact


class Level(StrEnum):
    """The severity of a finding: `fail` prevents the server from working, `warn` costs speed or stability."""

    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row of the report; `hint` is a command or an instruction that fixes the problem."""

    check: str
    level: Level
    value: str
    needed: str
    hint: str


def info(check: str, value: str, needed: str = "") -> Finding:
    """Return a finding that needs no action."""
    return Finding(check=check, level=Level.INFO, value=value, needed=needed, hint="")


def not_checked(check: str, reason: str, needed: str, hint: str) -> Finding:
    """Return a finding for a check that could not run; `hint` tells how to enable it."""
    return Finding(
        check=check, level=Level.INFO, value=f"not checked: {reason}", needed=needed, hint=expand_commands(hint)
    )


def warn(check: str, value: str, needed: str, hint: str) -> Finding:
    """Return a finding that costs speed or stability."""
    return Finding(check=check, level=Level.WARN, value=value, needed=needed, hint=expand_commands(hint))


def fail(check: str, value: str, needed: str, hint: str) -> Finding:
    """Return a finding that prevents the server from working."""
    return Finding(check=check, level=Level.FAIL, value=value, needed=needed, hint=expand_commands(hint))


def info_if(
    ok: bool,  # noqa: FBT001 - a condition, not a flag
    otherwise: Callable[[str, str, str, str], Finding],
    check: str,
    value: str,
    needed: str,
    hint: str,
) -> Finding:
    """Return an `info` finding if `ok`, else the finding of `otherwise` (`warn` or `fail`) with the hint."""
    return info(check, value, needed) if ok else otherwise(check, value, needed, hint)


@dataclass(frozen=True, kw_only=True)
class PreflightReport:
    """The findings of all checks for one profile, in the order of the checks."""

    profile: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings of level `fail`."""
        return tuple(finding for finding in self.findings if finding.level is Level.FAIL)

    @computed_field  # type: ignore[prop-decorator]  # mypy does not support decorated properties
    @property
    def ready(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON data."""
        # The command line of a port's holder may contain a secret.
        findings = [{**asdict(item), "value": redact(item.value)} for item in self.findings]
        return {"profile": self.profile, "ready": self.ready, "findings": findings}

    def to_text(self, *, width: int | None = None) -> str:
        """Format the report as a table wrapped at `width` columns, followed by the hints."""
        rows = [(item.level, item.check, item.value, item.needed) for item in self.findings]
        hints = [f"{item.check}: {item.hint}" for item in self.findings if item.hint]
        return "\n".join([table(("", "check", "found", "needed"), rows, width=width), *hints])

    def require(self, *, ignore: Collection[str] = ()) -> None:
        """Raise HostError with one problem per failed check, unless all failed checks are in `ignore`."""
        failed = [finding for finding in self.failed if finding.check not in ignore]
        problems = [Problem(f"{item.check}: {item.value} (needed: {item.needed})", hint=item.hint) for item in failed]
        if problems:
            raise HostError(f"the host is not ready for `{self.profile}`", problems=problems)
