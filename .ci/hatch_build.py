"""Generate the JSON Schemas of profiles when the package is built, or installed from a clone."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SchemaHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs before a wheel is built, including an editable one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - part of the interface
        """Write the schemas to `profiles/`, which is part of the wheel."""
        sys.path.insert(0, self.root)
        from orchestrator.cli.schema import write_schemas  # noqa: PLC0415 - imported from the clone

        write_schemas(Path(self.root, "profiles"))
