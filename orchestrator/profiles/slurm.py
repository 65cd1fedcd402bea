"""What a profile says of the job that its server runs in."""

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from orchestrator.core.validation import StrictModel, Text, Word

_WEEK: Final = 7 * 86_400  # seconds
# As sbatch(1) writes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]].
_JOB_TIME: Final = r"^([0-9]{1,6}(:[0-9]{1,2}){0,2}|[0-9]{1,4}-[0-9]{1,2}(:[0-9]{1,2}){0,2})$"
_JOB_OPTION: Final = r"^--[a-z][a-z-]*(=\S+)?$"


def _minutes(value: object) -> object:
    return str(value) if type(value) is int else value


JobTime: TypeAlias = Annotated[
    str, BeforeValidator(_minutes, json_schema_input_type=int | str), Field(pattern=_JOB_TIME)
]


class SlurmSection(StrictModel):
    """The job that a server runs in, where its runtime is Slurm."""

    partition: Word | None = Field(default=None, description="partition; the cluster's own default where none is named")
    gateway_partition: Word | None = Field(
        default=None, description="partition of the gateway's job, where several servers take whole nodes of theirs"
    )
    account: Word | None = Field(default=None, description="account that the job is charged to")
    qos: Word | None = Field(default=None, description="quality of service")
    time_limit: JobTime | None = Field(
        default=None,
        description="how long the job may run, such as 8:00:00 or 7-00:00:00; else the partition's default",
    )
    gpu_type: Word | None = Field(default=None, description="type of the GPUs in the cluster's gres, such as mi355x")
    exclusive: bool = Field(default=True, description="take whole nodes, with all of their CPUs and memory")
    signal_before_end: int = Field(
        default=120, ge=0, le=65535, description="seconds before the end of its time at which the server is told to end"
    )
    requeue: bool = Field(
        default=False,
        description="start the job again when its node fails; its secrets then stay in a file until `down`",
    )
    queue_timeout: int | None = Field(
        default=None,
        ge=1,
        le=_WEEK,
        description="seconds that the job may wait for its place; any where it is not said",
    )
    sbatch_options: tuple[Annotated[str, Field(pattern=_JOB_OPTION)], ...] = Field(
        default=(), description="further options of sbatch for the servers, such as --constraint=gfx950"
    )
    container: Literal["none", "pyxis", "apptainer"] = Field(
        default="none", description="none, or what the cluster starts containers with: pyxis or apptainer"
    )
    image: Text | None = Field(
        default=None,
        pattern=r"^[^-\s]\S*$",
        description="the image of the container, as that takes it; it holds the patches",
    )
    python: Text | None = Field(
        default=None,
        pattern="^/",
        description="a Python that has this tool, on the nodes; the one that runs the command",
    )
