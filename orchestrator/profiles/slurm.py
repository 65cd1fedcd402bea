"""The `slurm` section of a profile: the job of the server."""

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from orchestrator.core.validation import StrictModel, Text, Word

_WEEK: Final = 7 * 86_400  # seconds
# The time formats of sbatch(1): minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]].
_JOB_TIME: Final = r"^([0-9]{1,6}(:[0-9]{1,2}){0,2}|[0-9]{1,4}-[0-9]{1,2}(:[0-9]{1,2}){0,2})$"
_JOB_OPTION: Final = r"^--[a-z][a-z-]*(=\S+)?$"


def _minutes(value: object) -> object:
    return str(value) if type(value) is int else value


JobTime: TypeAlias = Annotated[
    str, BeforeValidator(_minutes, json_schema_input_type=int | str), Field(pattern=_JOB_TIME)
]


class SlurmSection(StrictModel):
    """The job that a server runs in, where its runtime is Slurm."""

    partition: Word | None = Field(default=None, description="partition; default: the cluster's")
    gateway_partition: Word | None = Field(
        default=None, description="partition of the gateway's job, if replicas use whole nodes"
    )
    account: Word | None = Field(default=None, description="account that the job is charged to")
    qos: Word | None = Field(default=None, description="quality of service")
    time_limit: JobTime | None = Field(
        default=None,
        description="time limit of the job, such as 8:00:00 or 7-00:00:00; default: the partition's",
    )
    gpu_type: Word | None = Field(default=None, description="type of the GPUs in the cluster's gres, such as mi355x")
    exclusive: bool | None = Field(
        default=None,
        description="allocate whole nodes; default: only if a server takes all GPUs of its node, or runs on CPUs",
    )
    signal_before_end: int = Field(
        default=120, ge=0, le=65535, description="seconds before the time limit at which the server gets SIGTERM"
    )
    requeue: bool = Field(
        default=False,
        description="requeue the job if its node fails; its secrets then stay in a file until `down`",
    )
    queue_timeout: int | None = Field(
        default=None,
        ge=1,
        le=_WEEK,
        description="seconds that the job may wait in the queue; default: no limit",
    )
    sbatch_options: tuple[Annotated[str, Field(pattern=_JOB_OPTION)], ...] = Field(
        default=(), description="additional sbatch options of the servers, such as --constraint=gfx950"
    )
    container: Literal["none", "pyxis", "apptainer"] = Field(
        default="none", description="container runtime of the cluster: none, pyxis or apptainer"
    )
    image: Text | None = Field(
        default=None,
        pattern=r"^[^-\s]\S*$",
        description="image of the container, in the format of the container runtime; includes the patches",
    )
    python: Text | None = Field(
        default=None,
        pattern="^/",
        description="Python with deploy on the nodes; default: the one that runs the command",
    )
