"""Servers in a real cluster: a kubelet of the tests' own, and an image with Python and a shell."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cluster_samples import cluster_plan
from cpu_server import CpuServer
from own_cluster import OwnCluster
from own_node import PYTHON_IMAGE, OwnNode
from ports import free_port

from orchestrator.core.paths import Home
from orchestrator.core.secrets import Secret
from orchestrator.planner.planning import render_artifacts
from orchestrator.render.artifacts import Artifacts
from orchestrator.runs.run_dir import open_run
from orchestrator.runtimes.kubernetes.runtime import KubernetesRuntime


@dataclass(frozen=True, kw_only=True)
class ClusterEngine:
    """A cluster with a node, and the home from which servers are started in it."""

    home: Home
    cluster: OwnCluster
    node: OwnNode
    runtimes: list[KubernetesRuntime] = field(default_factory=list)

    def artifacts(self, *overrides: str, argv: tuple[str, ...]) -> Artifacts:
        """`cpu-tiny` on a free port, of which `argv` takes the place of the server."""
        settings = (
            "kubernetes.image_pull_policy=Never",
            "kubernetes.weights.host_path=/tmp",
            "kubernetes.cpu=0.1",  # the node has few, and this test's pod may have to wait for the end of another's
            "kubernetes.memory=1Gi",
            f"server.port={free_port()}",
        )
        artifacts = render_artifacts(cluster_plan("cpu-tiny", *settings, *overrides, image=PYTHON_IMAGE))
        return replace(artifacts, command=replace(artifacts.command, argv=argv))

    def start(self, name: str, artifacts: Artifacts, *, secrets: Mapping[str, Secret] | None = None) -> CpuServer:
        """Start it under a name of this test process's own; it is not ready yet."""
        runtime, name = KubernetesRuntime(self.home), f"{name}-{os.getpid()}"
        self.runtimes.append(runtime)
        run = open_run(self.home, name, artifacts.plan)
        run.write(())
        (run.path / "plan.json").write_text(artifacts.plan.to_json())  # by which others find its namespace
        handle = runtime.start(artifacts, name=name, run_dir=run.path, secrets=secrets or {})
        return CpuServer(handle=handle, runtime=runtime, plan=artifacts.plan)
