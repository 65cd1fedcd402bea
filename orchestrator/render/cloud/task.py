"""What every broker is told: the machine, what is brought to it, and what runs there."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.yaml_document import dump_yaml
from orchestrator.plan.plan import Plan
from orchestrator.render.artifacts import RenderedFile

_UV: Final = "curl -LsSf https://astral.sh/uv/install.sh | sh"  # docs.astral.sh/uv, "Installation"
PATH_THERE: Final = 'export PATH="$HOME/.local/bin:$PATH"'  # where it puts itself and what it installs
_GIB: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class CloudTask:
    """A server on a rented machine, in the broker's container, by the process runtime: so `plan` has decided it.

    `tool` is what `uv tool install` takes there; `brought` are files of this machine, by their path over there.
    """

    plan: Plan
    up: Sequence[str]  # `deploy up` with its options
    tool: str
    brought: Mapping[str, str]
    image: str | None  # that the machine's container is made of; None: the broker's own
    secrets: Sequence[str]  # names of variables
    disk_bytes: int
    ready_seconds: float  # until it serves: an estimate

    @property
    def name(self) -> str:
        """The profile's name as brokers take one: a letter, then letters, digits and dashes, 40 at most."""
        name = re.sub(r"[^a-z0-9]+", "-", self.plan.profile)
        return (name if name[0].isalpha() else f"p-{name}")[:40].rstrip("-")

    @property
    def gpus(self) -> int:
        """How many GPUs the machine has to have."""
        return 1 + max(self.plan.gpus, default=-1)

    @property
    def disk_gib(self) -> int:
        """The disk in whole GiB."""
        return -(-self.disk_bytes // _GIB)

    @property
    def set_up(self) -> tuple[str, ...]:
        """Lines of a shell script that install this tool."""
        return (f"command -v uv || {_UV}", PATH_THERE, shlex.join(["uv", "tool", "install", self.tool]))

    @property
    def run(self) -> tuple[str, ...]:
        """Lines of a shell script that bring the server up, and stay as long as it is up."""
        return (shlex.join(self.up), shlex.join(["exec", "deploy", "watch", self.plan.profile]))


def broker_file(path: str, data: Mapping[str, object], *comments: str) -> RenderedFile:
    """A file of a broker's: comments, then YAML in the order of its keys, scripts as blocks."""
    return RenderedFile(path=path, content=dump_yaml(data, *comments).encode(), executable=False)
