"""The `slurm` section of a profile: the server's job."""

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from orchestrator.core.validation import StrictModel, Text, TextOrNumber, Word

_WEEK: Final = 7 * 86_400  # seconds
# The time formats of sbatch(1): minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]].
_JOB_TIME: Final = r"^([0-9]{1,6}(:[0-9]{1,2}){0,2}|[0-9]{1,4}-[0-9]{1,2}(:[0-9]{1,2}){0,2})$"
_JOB_OPTION: Final = r"^--[a-z][a-z-]*(=\S+)?$"


JobTime: TypeAlias = Annotated[TextOrNumber, Field(pattern=_JOB_TIME)]


class SlurmSection(StrictModel):
    """The job that a server runs in, where its runtime is Slurm."""

    partition: Word | None = Field(default=None, description="default: the cluster's")
    gateway_partition: Word | None = Field(default=None, description="for the gateway, if replicas use whole nodes")
    account: Word | None = Field(default=None, description="account to charge")
    qos: Word | None = Field(default=None, description="quality of service")
    time_limit: JobTime | None = Field(
        default=None, description="such as 8:00:00 or 7-00:00:00; default: the partition's"
    )
    gpu_type: Word | None = Field(default=None, description="GPU type in the cluster's gres, such as mi355x")
    exclusive: bool | None = Field(
        default=None, description="take whole nodes; default: if a server uses all GPUs of its node, or CPUs"
    )
    signal_before_end: int = Field(default=120, ge=0, le=65535, description="seconds from SIGTERM to the time limit")
    requeue: bool = Field(default=False, description="requeue if the node fails; secrets stay in a file until `down`")
    queue_timeout: int | None = Field(
        default=None, ge=1, le=_WEEK, description="seconds in the queue; default: no limit"
    )
    sbatch_options: tuple[Annotated[str, Field(pattern=_JOB_OPTION)], ...] = Field(
        default=(), description="more sbatch options, such as --constraint=gfx950"
    )
    container: Literal["none", "pyxis", "apptainer"] = Field(default="none", description="none, pyxis or apptainer")
    image: Text | None = Field(
        default=None, pattern=r"^[^-\s]\S*$", description="patched image, in the container runtime's format"
    )
    python: Text | None = Field(
        default=None, pattern="^/", description="Python with `deploy` on the nodes; default: this one"
    )
