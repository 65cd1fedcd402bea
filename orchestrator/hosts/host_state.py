"""Typed values of a host survey: devices, limits, CPUs, disks, ports."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.hosts.gpus import inventories
from orchestrator.hosts.gpus.inventory import GpuInventory
from orchestrator.hosts.nics import Nic, read_nics
from orchestrator.hosts.survey import HOST_SECTIONS, Survey, local, survey


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device file with its group; `open` means that the current user can read and write it."""

    path: str
    gid: int
    group: str
    open: bool


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The file system of a directory, which may not exist yet, with its free space."""

    device: str  # equal for two directories on one file system
    mount: str
    free: int  # bytes


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """Main memory in bytes: total, and available without swapping; in a container, within its limit."""

    total: int
    available: int


@dataclass(frozen=True, kw_only=True)
class HostState:
    """The state of a host at one moment. Sizes are in bytes; None means that a value could not be read."""

    inventories: tuple[GpuInventory, ...]
    user: str
    devices: tuple[Device, ...]
    memlock: float | None  # bytes; infinite if unlimited
    memory: HostMemory | None
    shm_free: int | None
    node_memory: Mapping[int, int]  # bytes free or in the page cache, by NUMA node
    numa_balancing: bool | None
    kernel_options: tuple[str, ...]
    cpus_allowed: frozenset[int]
    cpus_online: frozenset[int]
    listening: frozenset[int]  # TCP ports with a listener
    rdma: tuple[Nic, ...]
    disks: Mapping[str, Disk]  # by the surveyed directory


def read_host_state(survey: Survey) -> HostState:
    """Parse the sections of a survey into typed values."""
    user = survey["user"].text.split()
    return HostState(
        inventories=inventories(survey),
        user=user[1] if len(user) > 1 else "you",
        devices=_devices(survey["devices"].text),
        memlock=_memlock(survey["memlock"].text.strip()),
        memory=read_memory(survey["memory"].text),
        shm_free=disk.free if (disk := _disk(survey["shm"].text)) else None,
        node_memory=_node_memory(survey["numa memory"].text),
        numa_balancing={"0": False, "1": True}.get(survey["numa balancing"].text.strip()),
        kernel_options=tuple(survey["kernel options"].text.split()),
        cpus_allowed=cpu_list(survey["cpus allowed"].text.partition(":")[2]),
        cpus_online=cpu_list(survey["cpus online"].text),
        listening=listening_ports(survey["sockets"].text),
        rdma=read_nics(survey["rdma"].text),
        disks={
            name.removeprefix("disk "): disk
            for name, section in survey.items()
            if name.startswith("disk ") and (disk := _disk(section.text))
        },
    )


def cpu_list(text: str) -> frozenset[int]:
    """Parse a CPU list in the kernel's form: `0-3,8`."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text)
    return frozenset(cpu for first, last in ranges for cpu in range(int(first), int(last or first) + 1))


def listening_ports(text: str) -> frozenset[int]:
    """Parse the listening ports (state 0A) from the text of /proc/net/tcp and /proc/net/tcp6."""
    return frozenset(int(port, 16) for port in re.findall(r"^\s*\d+: \w+:(\w{4}) \w+:\w{4} 0A ", text, re.MULTILINE))


def read_memory(text: str) -> HostMemory | None:
    """Parse /proc/meminfo, then the control group's limit, use and file pages if it has a limit.

    File pages count as available, as in MemAvailable: the kernel evicts them first (Linux, admin-guide/cgroup-v2.rst).
    """
    sizes = {key: int(kb) << 10 for key, kb in re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", text, re.MULTILINE)}
    if len(sizes) < 2:
        return None
    match = re.search(r"^(\d+)\n(\d+)$", text, re.MULTILINE)
    if match is None:
        return HostMemory(total=sizes["MemTotal"], available=sizes["MemAvailable"])
    cached = sum(map(int, re.findall(r"^(?:in)?active_file (\d+)$", text, re.MULTILINE)))
    limit_bytes, used_bytes = int(match[1]), int(match[2]) - cached
    return HostMemory(
        total=min(sizes["MemTotal"], limit_bytes),
        available=min(sizes["MemAvailable"], max(limit_bytes - used_bytes, 0)),
    )


def available_memory() -> int | None:
    """Return the memory available without swapping in this host or container, in bytes; None if unknown."""
    memory = read_memory(survey(local, {"memory": HOST_SECTIONS["memory"]})["memory"].text)
    return memory.available if memory else None


def _devices(text: str) -> tuple[Device, ...]:
    rows = re.findall(r"^(/dev/\S+) (\d+) (\S+) (\w+)$", text, re.MULTILINE)
    return tuple(Device(path=path, gid=int(gid), group=group, open=mode == "open") for path, gid, group, mode in rows)


def _memlock(text: str) -> float | None:
    if text == "unlimited":
        return float("inf")
    return int(text) * 1024 if text.isdigit() else None


def _node_memory(text: str) -> dict[int, int]:
    """Return the free or cached bytes of each NUMA node with memory, by node number."""
    sizes: dict[str, dict[int, int]] = {"MemTotal": {}, "MemFree": {}, "FilePages": {}}
    for node, key, value in re.findall(r"^Node (\d+) (MemTotal|MemFree|FilePages): +(\d+) kB$", text, re.MULTILINE):
        sizes[key][int(node)] = int(value) << 10
    free, cached = sizes["MemFree"], sizes["FilePages"]
    return {node: free.get(node, 0) + cached.get(node, 0) for node, total in sizes["MemTotal"].items() if total}


def _disk(text: str) -> Disk | None:
    """Parse the last line of `df -Pk`: filesystem, 1024-blocks, used, available, capacity, mount point."""
    columns = text.strip().splitlines()[-1:] and text.strip().splitlines()[-1].split()
    if len(columns) < 6 or not columns[3].isdigit():
        return None
    return Disk(device=columns[0], mount=columns[5], free=int(columns[3]) * 1024)
