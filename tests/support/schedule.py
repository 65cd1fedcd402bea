"""Distribute tests to workers by file, or by group of files that share a server; the slowest files first."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# The files of a group share a session fixture, the real server or the Kubernetes node, so that one worker starts it.
GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "real server": (
        "test_real_smoke.py",
        "test_replicas.py",
        "test_eval_harness.py",
        "test_expected_answers.py",
        "test_bench_server.py",
        "test_bench_sessions.py",
        "test_bench_aiperf.py",
        "test_drain_streams.py",
    ),
    "Kubernetes": ("test_kubernetes.py", "test_gateway_node.py", "test_kubernetes_node.py", "test_runtime_contract.py"),
}
ARCHITECTURE: Final = "tests/unit/architecture"  # one group, because its tests share the parsed modules
# By measured time. A slow file that starts last would delay the end of the run.
SLOWEST_FILES: Final = (
    *GROUPS["Kubernetes"],
    *GROUPS["real server"],
    "test_disaggregation.py",
    "test_slurm_roles.py",
    "test_slurm.py",
    "test_slurm_nodes.py",
    "test_docker_ranks.py",
    "test_lost_output.py",
    "test_cache_tiers.py",
    "test_joined_paths.py",  # and the other tests in ARCHITECTURE
    "test_planted_faults.py",
    "test_real_vllm.py",
    "test_argument_check.py",
    "test_gateway.py",
    "test_up_docker.py",
    "test_process_patched_server.py",
    "test_full_disks.py",
    "test_scripted_engine.py",
    "test_watched_impostors.py",
    "test_slurm_replicas.py",
    "test_up.py",
    "test_watched_deaths.py",
    "test_kills.py",
    "test_process_kills.py",
    "test_races.py",
    "test_up_prerequisites.py",
    "test_images_docker.py",
    "test_bench_instrument.py",
    "test_gateway_docker.py",
    "test_hostile_hub.py",
    "test_hostile_endpoint.py",
    "test_quark_recipes.py",
    "test_stage_over_ssh.py",
    "test_achievable_hits.py",
)


def group_of(nodeid: str) -> str:
    """Return the group of a test, which one worker runs: its file, or one of `GROUPS`."""
    path = nodeid.split("::", 1)[0]
    if path.startswith(f"{ARCHITECTURE}/"):
        return ARCHITECTURE
    return next((group for group, files in GROUPS.items() if PurePosixPath(path).name in files), path)


def sort_slowest_first(items: list[pytest.Item]) -> None:
    order = {name: location for location, name in enumerate(SLOWEST_FILES)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


class GroupScheduling(LoadScopeScheduling):
    """Gives an idle worker the next group, in the order of collection."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        """Keep the order: by default xdist sorts groups by their number of tests."""
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def slowest_groups(reports: Sequence[pytest.TestReport]) -> list[tuple[str, float]]:
    """Return each group with its seconds, including setup and teardown, slowest first."""
    seconds: dict[str, float] = {}
    for report in reports:
        group = group_of(report.nodeid)
        seconds[group] = seconds.get(group, 0.0) + report.duration
    return sorted(seconds.items(), key=lambda item: -item[1])
