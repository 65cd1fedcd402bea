"""Generate the JSON Schemas beside the profiles whenever the package is built or installed from a clone."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SchemaHook(BuildHookInterface):  # type: ignore[type-arg]  # its configuration is not ours
    """Run before a wheel is built, an editable one too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the interface's
        """Write the schemas to `profiles/`, which travels inside the wheel."""
        sys.path.insert(0, self.root)
        from orchestrator.cli.schema import write_schemas  # noqa: PLC0415 - from the clone, not from elsewhere

        write_schemas(Path(self.root, "profiles"))
