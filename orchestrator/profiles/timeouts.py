"""What a profile says of waiting: when a start has failed, and when `deploy watch` restarts a server."""

from typing import Final

from pydantic import Field

from orchestrator.core.validation import StrictModel

_WEEK: Final = 7 * 86_400  # seconds


class TimeoutsSection(StrictModel):
    """When to give up."""

    progress_deadline: int = Field(
        default=900, ge=1, le=_WEEK, description="seconds without any progress after which a start has failed"
    )
    termination_grace: int = Field(default=120, ge=0, le=_WEEK, description="seconds a stop waits for running requests")
    health_deadline: int = Field(
        default=120, ge=0, le=_WEEK, description="seconds `up` waits for a server that already runs to become healthy"
    )


class RestartPolicySection(StrictModel):
    """What `deploy watch` does for a server that no longer serves."""

    unhealthy_after: int = (
        Field(  # as long as sglang's own watchdog waits (0.5.14, `watchdog_timeout`): kernels compile
            default=300,
            ge=1,
            le=_WEEK,
            description="seconds a rank may neither answer nor get on, and is taken for hung",
        )
    )
    max_attempts: int = Field(default=3, ge=0, le=1000, description="restarts within the window, before it gives up")
    window: int = Field(default=3600, ge=1, le=_WEEK, description="seconds in which they are counted")
