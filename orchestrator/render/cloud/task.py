"""The task on a rented host, independent of the broker: resources, files to upload, and commands."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.yaml_document import dump_yaml
from orchestrator.plan.plan import Plan
from orchestrator.render.artifacts import RenderedFile

_UV: Final = "curl -LsSf https://astral.sh/uv/install.sh | sh"  # docs.astral.sh/uv, "Installation"
PATH_THERE: Final = 'export PATH="$HOME/.local/bin:$PATH"'  # uv installs itself and its tools there
_GIB: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class CloudTask:
    """A server on a rented host, in the container of the broker; `plan` has to use the process runtime.

    `tool` is the package that `uv tool install` installs there. `brought` maps paths on the rented host to the local
    files that are uploaded.
    """

    plan: Plan
    up: Sequence[str]  # argv of `deploy up`
    tool: str
    brought: Mapping[str, str]
    image: str | None  # of the container; None: the broker's own
    secrets: Sequence[str]  # names of environment variables
    disk_bytes: int
    offers: Mapping[str, Sequence[str]]  # instance types by dstack backend; empty: any with the GPUs
    ready_seconds: float  # estimated seconds from start to ready

    @property
    def name(self) -> str:
        """Profile name as brokers accept it: a letter, then letters, digits and dashes, at most 40 characters."""
        name = re.sub(r"[^a-z0-9]+", "-", self.plan.profile)
        return (name if name[0].isalpha() else f"p-{name}")[:40].rstrip("-")

    @property
    def gpus(self) -> int:
        """Number of GPUs that the host needs."""
        return 1 + max(self.plan.gpus, default=-1)

    @property
    def disk_gib(self) -> int:
        """Size of the disk in GiB, rounded up."""
        return -(-self.disk_bytes // _GIB)

    @property
    def set_up(self) -> tuple[str, ...]:
        """Shell lines that install `deploy`."""
        return (f"command -v uv || {_UV}", PATH_THERE, shlex.join(["uv", "tool", "install", self.tool]))

    @property
    def run(self) -> tuple[str, ...]:
        """Shell lines that start the server and then watch it, until it stops."""
        return (shlex.join(self.up), shlex.join(["exec", "deploy", "watch", self.plan.profile]))


def broker_file(path: str, data: Mapping[str, object], *comments: str) -> RenderedFile:
    """Return a file for a broker: comments, then `data` as YAML in the order of its keys, scripts as blocks."""
    return RenderedFile(path=path, content=dump_yaml(data, *comments).encode(), executable=False)
