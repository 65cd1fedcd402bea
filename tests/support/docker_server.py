"""Start real sglang in a container of an image from this machine's packages, with the engine's packages mounted."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from cpu_server import CpuServer
from ports import free_port
from rocm_image import ENGINE_PACKAGES

from orchestrator.core.paths import Home
from orchestrator.core.secrets import Secret
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load
from orchestrator.render.artifacts import Artifacts
from orchestrator.runs.run_dir import open_run
from orchestrator.runtimes.base import Unit
from orchestrator.runtimes.docker.container import Mount, render, spec_of
from orchestrator.runtimes.docker.runtime import DockerRuntime


@dataclass(frozen=True, kw_only=True)
class DockerEngine:
    """Starts servers in containers and records them; `run` makes names unique between test runs."""

    home: Home
    image: str
    packages: Path
    run: int = field(default_factory=os.getpid)
    started: list[tuple[DockerRuntime, Unit]] = field(default_factory=list)

    def plan(self, *overrides: str) -> Plan:
        """Return the plan of `cpu-tiny` on a free port, for docker."""
        return replace(load("cpu-tiny", overrides=[f"server.port={free_port()}", *overrides]).plan, runtime="docker")

    def artifacts(self, *overrides: str, argv: tuple[str, ...] = ()) -> Artifacts:
        """Render the artifacts of `plan`; `argv` replaces the server's command."""
        plan = self.plan(*overrides)
        packages = Mount(source=str(self.packages), target=ENGINE_PACKAGES, read_only=True)
        artifacts = render(plan, None, self.image)
        spec = spec_of(artifacts)
        return replace(
            artifacts,
            command=replace(artifacts.command, argv=argv or artifacts.command.argv),
            spec=replace(spec, mounts=(*spec.mounts, packages)),
        )

    def start(
        self,
        name: str,
        artifacts: Artifacts,
        *,
        runtime: DockerRuntime | None = None,
        secrets: Mapping[str, Secret] | None = None,
    ) -> CpuServer:
        """Start a server under a unique name, without waiting for readiness."""
        runtime = runtime or DockerRuntime(self.home)
        name = self.name(name)
        run = open_run(self.home, name, artifacts.plan)
        handle = runtime.start(artifacts, name=name, run_dir=run.path, secrets=secrets or {})
        self.started.append((runtime, handle))
        return CpuServer(handle=handle, runtime=runtime, plan=artifacts.plan)

    def name(self, name: str) -> str:
        return f"{name}-{self.run}"

    def stop_all(self) -> None:
        """Stop all started servers, even if stopping one of them fails."""
        with ExitStack() as last:
            while self.started:
                runtime, handle = self.started.pop()
                last.callback(runtime.close)
                last.callback(runtime.stop, handle, grace=0)
