"""Preflight checks of everything but the GPUs: devices, limits, CPUs, disks, ports, API key, checkpoint."""

from collections import Counter
from collections.abc import Iterator

from orchestrator.core.errors import CheckpointError, CheckpointNotFoundError, UsageError
from orchestrator.core.text import gb
from orchestrator.engine.cache_tiers import RESERVE
from orchestrator.engine.endpoints import read_key
from orchestrator.engine.options import Meaning
from orchestrator.hosts.context import CheckContext
from orchestrator.hosts.gpus.inventory import GIB, gib
from orchestrator.hosts.ports import plan_ports, port_holder
from orchestrator.hosts.report import Finding, Level, fail, info, info_if, warn
from orchestrator.plan.host_needs import ranks_per_node

_SIZE_TOLERANCE = 0.1  # share by which the size of a checkpoint may differ from the planned size;
_SIZE_THAT_MATTERS = 10**8  # bytes; smaller differences are ignored
_SHM = 16 * GIB  # default minimum; sglang docs, hardware-platforms/amd_gpu.mdx


def devices(context: CheckContext) -> Iterator[Finding]:
    """Check that /dev/kfd and at least one /dev/dri/renderD* exist."""
    if context.plan.hardware.vendor != "amd":
        return
    nodes = context.host_state.devices
    names = ", ".join(f"{device.path} ({device.group} {device.gid})" for device in nodes[:2])
    suffix = f" and {len(nodes) - 2} more" if len(nodes) > 2 else ""
    has_kfd = any(device.path == "/dev/kfd" for device in nodes) and len(nodes) > 1
    needed = "/dev/kfd and /dev/dri/renderD*"
    yield info_if(has_kfd, fail, "devices", names + suffix or "none", needed, "`sudo modprobe amdgpu`")


def memory(context: CheckContext) -> Iterator[Finding]:
    """Check that the weights of a CPU server fit into the host's memory."""
    plan, host = context.plan, context.host_state.memory
    if plan.hardware.vendor != "cpu" or host is None:
        return
    copies = plan.replicas * (1 if plan.layout.dp_attention else plan.layout.dp)
    needed = plan.model.weight_bytes * copies
    text = f"{gib(host.available)} available of {gib(host.total)}"
    level, hint = fail if needed > host.total else warn, "choose a smaller model or quantization, or another host"
    yield info_if(needed <= host.available, level, "memory", text, f"{gib(needed)} for the weights", hint)


def shared_memory(context: CheckContext) -> Iterator[Finding]:
    """Check the free space of the host's /dev/shm, which a process and a container with `ipc: host` use."""
    plan, free = context.plan, context.host_state.shm_free
    private = context.access.in_container and plan.hardware.container.ipc != "host"
    if plan.hardware.vendor == "cpu" or private or free is None:
        return
    needed = plan.hardware.container.shm_bytes or _SHM
    hint = f"`sudo mount -o remount,size={needed // GIB}G /dev/shm`"
    yield info_if(free >= needed, warn, "shared memory", f"{gib(free)} free", gib(needed), hint)


def host_memory(context: CheckContext) -> Iterator[Finding]:
    """Check the memory of the host and each NUMA node for the KV cache's host tier; each rank checks only its own pool.

    Its pools are anonymous memory, which does not count against /dev/shm (sglang 0.5.14, mem_cache/mmap_allocator.py).
    """
    plan, host_state = context.plan, context.host_state
    sizes = Counter[int]()
    for server in plan.servers.values():
        sizes[server.host_cache_bytes] += ranks_per_node(server)
    del sizes[0]
    if not sizes or host_state.memory is None:
        return
    available, total = host_state.memory.available, host_state.memory.total
    pools = sum(size * ranks for size, ranks in sizes.items())
    needed = pools + (0 if plan.hardware.vendor == "cpu" else RESERVE)
    value = f"{gib(available)} available of {gib(total)}"
    text = f"{gib(needed)}: {' + '.join(f'{ranks} x {gib(size)}' for size, ranks in sizes.items())}"
    hint = f"lower `{Meaning.HOST_TIER_SIZE}` or `{Meaning.HOST_TIER_RATIO}`, in `flags` of the profile"
    if available < needed:
        # the server to be replaced frees its memory before the new one starts
        level = warn if context.access.freed else fail
        yield level("host memory", value, text, hint)
        return
    yield info("host memory", value, text)
    nodes = host_state.node_memory
    if len(nodes) > 1 and min(nodes.values()) < pools / len(nodes):
        node = min(nodes, key=nodes.__getitem__)
        smallest = f"{gib(nodes[node])} on NUMA node {node}"
        level = fail if plan.serving.binds_memory else warn  # without a binding, pages of other nodes are taken
        yield level("NUMA memory", smallest, f"{gib(int(pools / len(nodes)))} on each of {len(nodes)} nodes", hint)


def numa_balancing(context: CheckContext) -> Iterator[Finding]:
    """Check that automatic NUMA balancing is off, because it stalls GPUs.

    Source: AMD Instinct system optimization guides; sglang docs, amd_gpu.mdx.
    """
    on = context.host_state.numa_balancing
    if context.plan.hardware.vendor != "amd" or on is None:
        return
    hint = "`echo 0 | sudo tee /proc/sys/kernel/numa_balancing`"
    yield info_if(not on, warn, "numa balancing", "on" if on else "off", "off", hint)


def kernel_options(context: CheckContext) -> Iterator[Finding]:
    """Check for `iommu=pt` and `pci=realloc=off` on the kernel command line (sglang docs, amd_gpu.mdx)."""
    options = context.host_state.kernel_options
    if context.plan.hardware.vendor != "amd" or not options:
        return
    missing = [option for option in ("iommu=pt", "pci=realloc=off") if option not in options]
    hint = f"add `{' '.join(missing)}` to GRUB_CMDLINE_LINUX, `sudo update-grub`, reboot"
    needed = "iommu=pt pci=realloc=off"
    value = f"without {' '.join(missing)}" if missing else needed
    yield info_if(not missing, warn, "kernel options", value, needed, hint)


def cpu_affinity(context: CheckContext) -> Iterator[Finding]:
    """Check that the cpuset allows all CPUs if sglang binds its ranks: sglang divides all cores among them regardless.

    A rank without an allowed CPU dies at startup with "CPU number 0 is not eligible" (sglang PR 39552; wheel 0.5.14
    srt/utils/common.py:2283-2316). Without SGLANG_SET_CPU_AFFINITY, only the ROCm image binds (docker/rocm.Dockerfile).
    """
    plan, host_state = context.plan, context.host_state
    in_rocm_image = plan.engine.platform == "rocm" and context.access.in_container
    binds = {item.name: item.value for item in plan.env}.get("SGLANG_SET_CPU_AFFINITY", str(int(in_rocm_image)))
    if binds.lower() not in {"1", "true"} or not host_state.cpus_allowed:
        return
    value = f"{len(host_state.cpus_allowed)} of {len(host_state.cpus_online)} CPUs"
    hint = "`--set env.SGLANG_SET_CPU_AFFINITY=0`, or start the server with all CPUs allowed"
    yield info_if(host_state.cpus_allowed >= host_state.cpus_online, warn, "cpu affinity", value, "all CPUs", hint)


def disk_space(context: CheckContext) -> Iterator[Finding]:
    """Check that each file system has the total space that the plan still needs on it."""
    spaces, disks = context.access.spaces, context.host_state.disks
    measured = [space for space in spaces if space.directory in disks]
    for device in dict.fromkeys(disks[space.directory].device for space in measured):
        same_device = [space for space in measured if disks[space.directory].device == device]
        disk, needed = disks[same_device[0].directory], sum(space.size for space in same_device)
        value = f"{gib(disk.free)} free on {disk.mount}"
        text = f"{gib(needed)} for {' and '.join(space.purpose for space in same_device)}"
        hint = "free up space, or point `DEPLOY_HOME` at a larger disk"
        yield info_if(disk.free >= needed, fail, "disk", value, text, hint)


def ports(context: CheckContext) -> Iterator[Finding]:
    """Check that every port of the plan is free, or will be freed before the start."""
    for purpose, port in plan_ports(context.plan, rank=context.access.rank):
        if port not in context.host_state.listening:
            yield info(f"port {port}", "free", purpose)
            continue
        if port in context.access.freed:
            yield info(f"port {port}", "in use by the server to be replaced", purpose)
            continue
        candidates = (*range(port + 1, 1 << 16), *range(1024, port))
        free = next(other for other in candidates if other not in context.host_state.listening)
        hint = f"`--set server.port={free}`" if purpose == "server" else f"change `{purpose}`"
        if name := context.access.server_on(port):
            yield fail(f"port {port}", f"in use by your server `{name}`", purpose, f"`deploy down {name}`, or {hint}")
            continue
        holder = port_holder(port, context.access.runner)
        if holder and holder.pid:
            hint = f"`kill {holder.pid}`, or {hint}"
        yield fail(f"port {port}", f"in use by {holder}" if holder else "in use", purpose, hint)


def checkpoint(context: CheckContext) -> Iterator[Finding]:
    """Check that the checkpoint is complete, or that it can be downloaded from the hub.

    A missing checkpoint is only a warning if its source is the hub, because `deploy up` stages it after preflight.
    A gated repository additionally needs HF_TOKEN.
    """
    plan, verify = context.plan, context.access.checkpoint
    if verify is None:
        return
    on_hub = plan.model.checkpoint.source == "hub"
    try:
        value, size = verify()
    except CheckpointError as error:
        if on_hub and isinstance(error, CheckpointNotFoundError):
            level, value = warn, "not staged yet"
        else:
            level, value = fail, _first(error)
        hint = error.problems_or_self()[0].hint or error.hint or "`deploy stage PROFILE`"
        yield level("checkpoint", value, "complete", hint)
        if plan.model.gated and on_hub:
            yield _variable("token", "HF_TOKEN", context, f"a token that can read {plan.model.checkpoint.path}")
        return
    planned = plan.model.weight_bytes
    if abs(size - planned) > max(planned * _SIZE_TOLERANCE, _SIZE_THAT_MATTERS):
        hint = f"the plan assumes {gb(planned)} of weights: correct `weights_size` in the model's file"
        yield warn("checkpoint", value, f"complete, {gb(planned)}", hint)
    else:
        yield info("checkpoint", value, "complete")


def api_key(context: CheckContext) -> Iterator[Finding]:
    """Check that the environment variable of the API key is set and holds a valid key."""
    if not (name := context.plan.server.api_key_env):
        return
    finding = _variable("api key", name, context, "the API key of the server")
    if finding.level is Level.INFO:
        try:
            read_key(context.access.environ[name], location=name)
        except UsageError as error:
            finding = fail(finding.check, error.message, finding.needed, error.hint)
    yield finding


def _first(error: CheckpointError) -> str:
    """Summarize an error: its first problem and the number of remaining problems."""
    first = error.problems[0].message if error.problems else error.message
    return f"{first}, and {len(error.problems) - 1} more" if len(error.problems) > 1 else first


def _variable(check: str, name: str, context: CheckContext, needed: str) -> Finding:
    is_set = bool(context.access.environ.get(name, "").strip())
    return info_if(is_set, fail, check, f"{name} is {'set' if is_set else 'not set'}", needed, f"`export {name}=…`")
