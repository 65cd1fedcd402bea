"""The RDMA NICs of a host, from the kernel's tables (Documentation/ABI/stable/sysfs-class-infiniband)."""

import re
import shlex
from dataclasses import dataclass
from typing import Final

_FIELDS: Final = 7
_ROCE_V2: Final = "RoCE v2"
_IPV4_MAPPED: Final = "0000:0000:0000:0000:0000:ffff:"
_LINK_LOCAL: Final = "fe80:"


@dataclass(frozen=True, kw_only=True)
class Nic:
    """An RDMA NIC with its first port; the supported NICs have one port each."""

    name: str  # as `ibv_devices` prints it
    vendor: str  # PCI vendor, such as 0x1dd8
    firmware: str
    state: str  # such as ACTIVE, DOWN
    gbits: int  # Gb/s of the link
    link_layer: str  # Ethernet or InfiniBand
    gid_indexes: tuple[int, ...]  # routable RoCE v2 rows of its GID table, best first

    @property
    def active(self) -> bool:
        """Whether the link is up."""
        return self.state == "ACTIVE"

    @property
    def usable(self) -> bool:
        """Whether the NIC can reach another node."""
        return self.active and (bool(self.gid_indexes) or not self.is_roce)

    @property
    def is_roce(self) -> bool:
        """Whether the NIC is on Ethernet, where a connection needs a GID table row."""
        return self.link_layer == "Ethernet"


def nic_survey(sysfs: str = "/sys") -> str:
    """Return the survey's shell command, which prints a line for each NIC with its valid GID table rows.

    An empty row has no type: its file cannot be read.
    """
    return (
        f"cd {shlex.quote(sysfs)}/class/infiniband 2>/dev/null || exit 0; for nic in *; do port=$nic/ports/1; "
        '[ -e "$port/state" ] || continue; '
        'echo "$nic|$(cat $nic/device/vendor)|$(cat $nic/fw_ver)|$(cat $port/state)|$(cat $port/rate)'
        "|$(cat $port/link_layer)|$(cd $port; "
        "grep -s . gid_attrs/types/* gids/* /dev/null | grep -v :0000:0000:0000:0000:0000:0000:0000:0000$ "
        '| tr "\\n" ",")"; done 2>/dev/null'
    )


def read_nics(text: str) -> tuple[Nic, ...]:
    """Parse the output of `nic_survey`."""
    rows = [line.split("|") for line in text.splitlines()]
    return tuple(
        Nic(
            name=name,
            vendor=vendor,
            firmware=firmware,
            state=state.rpartition(" ")[2],
            gbits=int(float(rate.split()[0])) if rate.strip() else 0,
            link_layer=link_layer,
            gid_indexes=_routable_rows(gids),
        )
        for name, vendor, firmware, state, rate, link_layer, gids in (row for row in rows if len(row) == _FIELDS)
    )


def _routable_rows(table: str) -> tuple[int, ...]:
    """Return the indexes of the RoCE v2 rows with an IPv4 address, then those with a global IPv6 address.

    Link-local addresses are not routable. ROCm/mori 624002c8 uses this order (rdma.cpp, ScoreGidCandidate).
    """
    types = dict(re.findall(r"gid_attrs/types/(\d+):([^,]+)", table))
    gids = dict(re.findall(r"gids/(\d+):([^,]+)", table))
    rows = [
        (not gid.startswith(_IPV4_MAPPED), int(index))
        for index, gid in gids.items()
        if types.get(index) == _ROCE_V2 and not gid.startswith(_LINK_LOCAL)
    ]
    return tuple(index for _, index in sorted(rows))
