"""The checks of everything around the GPUs: devices, limits, CPUs, disks, ports, image, secrets, checkpoint."""

from collections.abc import Iterator

from orchestrator.core.errors import NoWeightsError, WeightsError
from orchestrator.host.gpus import GIB, gib
from orchestrator.host.ports import plan_ports, port_holder
from orchestrator.host.report import Finding, fail, info, warn
from orchestrator.host.subject import Subject
from orchestrator.plan import Plan

_SHM = 16 * GIB  # sglang docs, hardware-platforms/amd_gpu.mdx


def devices(subject: Subject) -> Iterator[Finding]:
    """/dev/kfd and /dev/dri/renderD*, and whether this user may open them."""
    if subject.plan.hardware.vendor != "amd":
        return
    found, user = subject.machine.devices, subject.machine.user
    listed = ", ".join(f"{device.path} ({device.group} {device.gid})" for device in found[:2])
    more = f" and {len(found) - 2} more" if len(found) > 2 else ""
    if not any(device.path == "/dev/kfd" for device in found) or len(found) < 2:
        yield fail("devices", listed or "none", "/dev/kfd and /dev/dri/renderD*", "`sudo modprobe amdgpu`")
    elif subject.plan.runtime == "process" and (closed := [device for device in found if not device.open]):
        groups = ",".join(sorted({device.group for device in closed}))
        mend = f"`sudo usermod -aG {groups} {user}`, then log in again"
        yield fail("devices", f"{closed[0].path} is closed to {user}", "read and write", mend)
    else:
        yield info("devices", listed + more, "/dev/kfd and /dev/dri/renderD*")


def locked_memory(subject: Subject) -> Iterator[Finding]:
    """ROCm and RCCL lock memory (ROCR-Runtime #313); a container's limit is set by its own ulimits."""
    limit = subject.machine.memlock
    if subject.plan.hardware.vendor == "cpu" or subject.plan.runtime != "process" or limit is None:
        return
    if limit == float("inf"):
        yield info("memlock", "unlimited", "unlimited")
    else:
        mend = f"`echo '{subject.machine.user} - memlock unlimited' | sudo tee -a /etc/security/limits.conf`"
        yield warn("memlock", gib(limit), "unlimited", f"{mend}, then log in again")


def shared_memory(subject: Subject) -> Iterator[Finding]:
    """The machine's /dev/shm, which a process and a container with `ipc: host` use."""
    plan, free = subject.plan, subject.machine.shm_free
    own = plan.runtime == "docker" and plan.hardware.container.ipc != "host"
    if plan.hardware.vendor == "cpu" or own or free is None:
        return
    needed = plan.hardware.container.shm_bytes or _SHM
    if free >= needed:
        yield info("shared memory", f"{gib(free)} free", gib(needed))
    else:
        mend = f"`sudo mount -o remount,size={needed // GIB}G /dev/shm`"
        yield warn("shared memory", f"{gib(free)} free", gib(needed), mend)


def numa_balancing(subject: Subject) -> Iterator[Finding]:
    """Automatic NUMA balancing stalls GPUs (AMD Instinct system optimisation guides; sglang amd_gpu.mdx)."""
    on = subject.machine.numa_balancing
    if subject.plan.hardware.vendor != "amd" or on is None:
        return
    if on:
        yield warn("numa balancing", "on", "off", "`echo 0 | sudo tee /proc/sys/kernel/numa_balancing`")
    else:
        yield info("numa balancing", "off", "off")


def kernel_options(subject: Subject) -> Iterator[Finding]:
    """`iommu=pt` and `pci=realloc=off` on the kernel's command line (sglang docs, amd_gpu.mdx)."""
    given = subject.machine.kernel_options
    if subject.plan.hardware.vendor != "amd" or not given:
        return
    missing = [option for option in ("iommu=pt", "pci=realloc=off") if option not in given]
    if missing:
        mend = f"add `{' '.join(missing)}` to GRUB_CMDLINE_LINUX, `sudo update-grub`, reboot"
        yield warn("kernel options", f"without {' '.join(missing)}", "iommu=pt pci=realloc=off", mend)
    else:
        yield info("kernel options", "iommu=pt pci=realloc=off", "iommu=pt pci=realloc=off")


def cpu_affinity(subject: Subject) -> Iterator[Finding]:
    """The CPUs sglang binds each rank to are among those it may use.

    It divides the machine's cores from CPU 0 on, whatever the cpuset; a rank with none of its own dies at start with
    "CPU number 0 is not eligible" (sglang PR 39552; wheel 0.5.14 srt/utils/common.py:2283-2316).
    """
    plan, machine = subject.plan, subject.machine
    if not binds_cpus(plan) or not machine.cores or not machine.cpus_allowed:
        return
    needed = {gpu: bound_cpus(gpu, plan.layout.tp, machine.cores, len(machine.cpus_online)) for gpu in _gpus(plan)}
    found = f"{len(machine.cpus_allowed)} of {len(machine.cpus_online)} CPUs"
    mend = "`--set env.SGLANG_SET_CPU_AFFINITY=0`, or start where all CPUs are allowed"
    if homeless := [str(gpu) for gpu, cpus in needed.items() if cpus and not cpus & machine.cpus_allowed]:
        # A container does not inherit this shell's cpuset, so here it is only a sign.
        level = fail if plan.runtime == "process" else warn
        yield level("cpu affinity", f"{found}: none for gpu {' '.join(homeless)}", "some for each GPU", mend)
    elif any(cpus - machine.cpus_allowed for cpus in needed.values()):
        yield warn("cpu affinity", found, "all for each GPU", mend)
    else:
        yield info("cpu affinity", found, "some for each GPU")


def disk_space(subject: Subject) -> Iterator[Finding]:
    """Room for everything that is still to come, summed over what lands on the same file system."""
    spaces, disks = subject.probe.spaces, subject.machine.disks
    known = [space for space in spaces if space.directory in disks]
    for device in dict.fromkeys(disks[space.directory].device for space in known):
        here = [space for space in known if disks[space.directory].device == device]
        disk, needed = disks[here[0].directory], sum(space.size for space in here)
        found = f"{gib(disk.free)} free on {disk.mount}"
        text = f"{gib(needed)} for {' and '.join(space.purpose for space in here)}"
        if disk.free >= needed:
            yield info("disk", found, text)
        else:
            mend = "free some, or put it elsewhere: `DEPLOY_HOME=DIR`"
            yield fail("disk", found, text, mend)


def ports(subject: Subject) -> Iterator[Finding]:
    """Nobody listens on a port of the plan."""
    for purpose, port in plan_ports(subject.plan):
        if port not in subject.machine.listening:
            yield info(f"port {port}", "free", purpose)
            continue
        holder = port_holder(port, subject.probe.runner)
        mend = "`--set server.port=N`" if purpose == "server" else f"change `{purpose}`"
        if holder and holder.pid:
            mend = f"`kill {holder.pid}`, or {mend}"
        yield fail(f"port {port}", f"held by {holder}" if holder else "held", purpose, mend)


def docker(subject: Subject) -> Iterator[Finding]:
    """A Docker daemon answers, for a plan that runs in a container."""
    if subject.plan.runtime != "docker":
        return
    said = subject.machine.docker
    version = said.text.strip()
    if said.missing:
        yield fail("docker", "not installed", "a daemon", "`sudo apt-get install docker.io`, or docs.docker.com/engine")
    elif said.code != 0:
        yield fail("docker", version.rpartition(": ")[2] or "no answer", "a daemon", "`sudo systemctl start docker`")
    else:
        yield info("docker", version, "a daemon")


def image(subject: Subject) -> Iterator[Finding]:
    """The base image can be reached, and is the one that was pinned."""
    engine, lookup = subject.plan.engine, subject.probe.image_digests
    if subject.plan.runtime != "docker" or engine.image is None or lookup is None or subject.machine.docker.missing:
        return
    try:
        digests = lookup(engine.image)
    except OSError as error:
        mend = f"see what `docker manifest inspect {engine.image}` says"
        why = str(error).rpartition(": ")[2]  # Go puts the cause last
        yield warn("image", f"the registry cannot be asked: {why}", engine.image, mend)
        return
    if not digests:
        mend = "dated tags get deleted: pin another one in the engine's file"
        yield fail("image", "no such tag", engine.image, mend)
    elif engine.image_digest and engine.image_digest not in digests:
        mend = "the tag was moved: pin what was tested, or test the new one and pin it in the engine's file"
        level = fail if len(digests) == 1 else warn  # for a list of platforms its own digest is not told
        yield level("image", f"{min(digests)[:19]}…", f"{engine.image_digest[:19]}…", mend)
    else:
        yield info("image", "there", engine.image)


def checkpoint(subject: Subject) -> Iterator[Finding]:
    """The checkpoint is whole, or can still be fetched: the way to a server begins with this check, and stages later.

    Where its repository is gated, there is a token to fetch it with.
    """
    plan, verify = subject.plan, subject.probe.checkpoint
    if verify is None:
        return
    on_hub = plan.model.source.kind == "hub"
    try:
        found = verify()
    except WeightsError as error:
        if on_hub and isinstance(error, NoWeightsError):
            level, found = warn, "not staged yet"
        else:
            level, found = fail, _first(error)
        yield level("checkpoint", found, "whole", f"`deploy stage --profile {plan.profile}`")
        if plan.model.gated and on_hub:
            yield _variable("token", "HF_TOKEN", subject, f"a token that may read {plan.model.source.location}")
    else:
        yield info("checkpoint", found, "whole")


def api_key(subject: Subject) -> Iterator[Finding]:
    """The variable that is to hold the API key is set."""
    if name := subject.plan.server.api_key_env:
        yield _variable("api key", name, subject, "the API key of the server")


def binds_cpus(plan: Plan) -> bool:
    """Whether sglang sets CPU affinity: the ROCm image turns it on (sglang docker/rocm.Dockerfile)."""
    given = {variable.name: variable.value for variable in plan.env}.get("SGLANG_SET_CPU_AFFINITY")
    if given is None:
        return plan.engine.platform == "rocm" and plan.runtime == "docker"
    return given.lower() in {"1", "true"}


def bound_cpus(gpu: int, tp: int, cores: int, cpus: int) -> frozenset[int]:
    """The CPUs sglang binds the rank of a GPU to (wheel 0.5.14 srt/utils/common.py:2296-2312, one node).

    Empty with fewer cores than ranks: psutil then takes all that are allowed.
    """
    each = cores // tp
    first = gpu * each % cores
    lower = frozenset(range(first, first + each))
    return lower | {cpu + cores for cpu in lower} if cpus != cores else lower


def _gpus(plan: Plan) -> range:
    return range(plan.layout.gpus)


def _first(error: WeightsError) -> str:
    """What is wrong, with the first of many problems for all of them."""
    first = error.problems[0].message if error.problems else error.message
    return f"{first}, and {len(error.problems) - 1} more" if len(error.problems) > 1 else first


def _variable(check: str, name: str, subject: Subject, what: str) -> Finding:
    if subject.probe.environ.get(name):
        return info(check, f"{name} is set", what)
    return fail(check, f"{name} is not set", what, f"`export {name}=…`")
