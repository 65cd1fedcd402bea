"""Start servers in a real cluster, with a private kubelet and an image with Python and a shell."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cluster_samples import cluster_plan
from cpu_server import CpuServer
from ports import free_port
from private_cluster import PrivateCluster
from private_node import PYTHON_IMAGE, PrivateNode

from orchestrator.core.paths import Home
from orchestrator.core.secrets import Secret
from orchestrator.planner.planning import render_artifacts
from orchestrator.render.artifacts import Artifacts
from orchestrator.runs.run_dir import open_run
from orchestrator.runtimes.kubernetes.runtime import KubernetesRuntime


@dataclass(frozen=True, kw_only=True)
class ClusterEngine:
    """A cluster with a node, and the home that its servers are started from."""

    home: Home
    cluster: PrivateCluster
    node: PrivateNode
    runtimes: list[KubernetesRuntime] = field(default_factory=list)

    def artifacts(self, *overrides: str, argv: tuple[str, ...]) -> Artifacts:
        """Render `cpu-tiny` on a free port, with `argv` in place of the server."""
        settings = (
            "kubernetes.image_pull_policy=Never",
            "kubernetes.weights.host_path=/tmp",
            "kubernetes.cpu=0.1",  # the node has few cores, and pods of other tests may still run
            "kubernetes.memory=1Gi",
            f"server.port={free_port()}",
        )
        artifacts = render_artifacts(cluster_plan("cpu-tiny", *settings, *overrides, image=PYTHON_IMAGE))
        return replace(artifacts, command=replace(artifacts.command, argv=argv))

    def start(self, name: str, artifacts: Artifacts, *, secrets: Mapping[str, Secret] | None = None) -> CpuServer:
        """Start a server, without waiting for readiness; its name gets the pid as suffix."""
        runtime, name = KubernetesRuntime(self.home), f"{name}-{os.getpid()}"
        self.runtimes.append(runtime)
        run = open_run(self.home, name, artifacts.plan)
        run.write(())
        (run.path / "plan.json").write_text(artifacts.plan.to_json())  # other commands read the namespace from it
        handle = runtime.start(artifacts, name=name, run_dir=run.path, secrets=secrets or {})
        return CpuServer(handle=handle, runtime=runtime, plan=artifacts.plan)
