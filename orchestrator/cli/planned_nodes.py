"""The number of nodes of the plan that `deploy up` starts, from its options."""

from collections.abc import Mapping
from typing import Any

from orchestrator.cli.overrides import overridden
from orchestrator.core.catalog import Catalog
from orchestrator.core.paths import Home
from orchestrator.planner.lock import lock_path, read_lock
from orchestrator.planner.planning import read_profile
from orchestrator.runs.run_dir import require_plan
from orchestrator.servers.rollback import require_run


def planned_nodes(params: Mapping[str, Any]) -> int:
    """Return the number of nodes of the plan that `up` with these parameters starts. Raises DeployError."""
    home, profile = Home.from_environment(), params["profile"]
    if params["from_"]:
        return require_plan(require_run(home, params["from_"]), profile).layout.nodes
    overrides = overridden(params["set_"], revision=params["revision"], runtime=params["runtime"])
    if params["locked"]:
        lock, _ = read_lock(lock_path(profile))
        profile, overrides = lock.profile, lock.overrides
    return read_profile(profile or "", overrides=overrides, catalog=Catalog.of(home)).profile.layout.nodes.value
