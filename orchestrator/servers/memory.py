"""The memory of a server that a soak watches: that of its processes, and that of its GPUs."""

import os

from orchestrator.core.errors import HostError
from orchestrator.hosts.gpus import read_gpus
from orchestrator.hosts.ssh import ssh_runner
from orchestrator.hosts.survey import local
from orchestrator.plan.plan import Plan
from orchestrator.runtimes import runtime_class
from orchestrator.servers.group import RunningServer, ServerGroup
from orchestrator.verify.memory import CACHED_TOKEN_BYTES, MemoryGauge


def memory_gauges(handle: RunningServer, runtime: ServerGroup, plan: Plan) -> tuple[MemoryGauge, ...]:
    """Return the gauges of a running server; without GPUs only that of host memory."""
    kind, layout = runtime_class(handle.runtime), plan.layout

    def of_host() -> int | None:
        try:
            return runtime.host_memory(handle)
        except HostError:
            return None

    def of_gpus() -> int | None:
        try:
            remote = kind.resolve_host(runtime.runtime.host_name, os.environ)
            found = read_gpus(plan.hardware.vendor, ssh_runner(remote) if remote else local)
        except HostError:
            return None
        used = [gpu.vram_used for gpu in (found.gpus if found else ()) if gpu.index in plan.gpus]
        return None if not used or None in used else sum(filter(None, used))

    schedulers = len(handle.replicas or (handle,)) * layout.gpus // layout.dp
    host = MemoryGauge(
        name="host memory",
        read=of_host,
        unwatched="" if of_host() is not None else f"the {kind.name} runtime does not report it",
        token_bytes=CACHED_TOKEN_BYTES * schedulers,
    )
    if not plan.gpus:
        return (host,)
    unwatched = "" if kind.is_local else f"the {kind.name} runtime starts servers on other hosts"
    if kind.is_local and of_gpus() is None:
        unwatched = "no tool on the host reports it"
    return (host, MemoryGauge(name="GPU memory", read=of_gpus, unwatched=unwatched))
