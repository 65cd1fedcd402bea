"""Timeouts and restart policy of a profile: when a start fails, and when `deploy watch` restarts a server."""

from typing import Final

from pydantic import Field

from orchestrator.core.validation import StrictModel

_WEEK: Final = 7 * 86_400  # seconds


class TimeoutsSection(StrictModel):
    """When to give up."""

    progress_deadline: int = Field(
        default=900, ge=1, le=_WEEK, description="seconds without progress until a start fails"
    )
    termination_grace: int = Field(default=120, ge=0, le=_WEEK, description="seconds until a stop aborts requests")
    health_deadline: int = Field(
        default=120, ge=0, le=_WEEK, description="seconds that `up` waits for a running server's health"
    )


class RestartPolicySection(StrictModel):
    """The restarts by `deploy watch` of a server that is unhealthy or has ended."""

    unhealthy_after: int = Field(  # the timeout of sglang's own watchdog (0.5.14, `watchdog_timeout`): kernels compile
        default=300, ge=1, le=_WEEK, description="seconds without answer or progress until a rank counts as hung"
    )
    max_attempts: int = Field(default=3, ge=0, le=1000, description="restarts within the window")
    window: int = Field(default=3600, ge=1, le=_WEEK, description="seconds that a restart counts")
