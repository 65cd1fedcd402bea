"""Measurements between nodes, each with a time limit: `ib_write_bw` on each NIC, and all-reduce over all ranks."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.paths import data_root
from orchestrator.core.subprocesses import CompletedProgram, run_concurrently, run_or_127
from orchestrator.hosts.nics import Nic
from orchestrator.plan.plan import Plan

_TIMEOUT: Final = 250.0  # seconds for the local program that runs the command
# Seconds for a command on a node: Python with torch starts slowly from a cold disk. The command also ends when its ssh
# connection closes, for example after Ctrl-C.
_LIMIT: Final = "200"
_BOUNDED: Final = ("setpriv", "--pdeathsig", "TERM", "timeout", "--kill-after=5", _LIMIT)  # util-linux 2.33, coreutils
_PORT: Final = "18515"  # of `ib_write_bw`, its default
_SIZE: Final = "8388608"  # bytes, with 8 queue pairs: as ROCm/cvs, ibperf_config.json
_WRITE: Final = ("-q", "8", "-s", _SIZE, "-D", "5", "-F", "--report_gbits", "-p", _PORT)
# The client may start before the server, so it retries until the server listens.
_CLIENT: Final = (
    'n=0; while :; do said=$("$@" 2>&1); code=$?; n=$((n+1)); case "$code $said" in *"ouldn\'t connect"*) '
    '[ $n -lt 20 ] || break; sleep 1;; *) break;; esac; done; printf "%s\\n" "$said"; exit $code'
)
_GPU_SIZES: Final = (1 << 20, 1 << 26, 1 << 33)  # bytes; ROCm/cvs has a sample for 8 GiB (rccl_config.json)
_CPU_SIZES: Final = (1 << 20, 1 << 24)
_MISSING: Final = 127
_TIMED_OUT: Final = 124  # of coreutils' `timeout`
_PERFTEST: Final = "install perftest on all nodes: `sudo apt-get install perftest`"
_NO_IMAGE: Final = "No such image"


@dataclass(frozen=True, kw_only=True)
class FabricNode:
    """A node: its address for other nodes, and the command prefix that runs a program on it.

    `argv` converts an argv for the node to the local argv that runs it there.
    """

    name: str
    address: str
    argv: Callable[[Sequence[str]], Sequence[str]]

    def run(self, argv: Sequence[str]) -> CompletedProgram:
        """Run a program on the node and wait at most 250 s for it to exit."""
        return run_or_127(self.argv(argv), timeout=_TIMEOUT)


class NotMeasuredError(Exception):
    """A failed measurement; the message is the reason. `install` is the hint if only a program or image is missing."""

    def __init__(self, reason: str, *, install: str = "") -> None:
        super().__init__(reason)
        self.install = install


def write_gbits(server: FabricNode, client: FabricNode, nics: tuple[Nic, Nic]) -> float:
    """Return the RDMA write bandwidth between one NIC of each node, in Gb/s. Raises NotMeasuredError."""

    def argv_of(index: int) -> Sequence[str]:
        nic = nics[index]
        gid = ("-x", str(nic.gid_indexes[0])) if nic.gid_indexes else ()
        argv = ("ib_write_bw", "-d", nic.name, *gid, *_WRITE)
        return (*_BOUNDED, "sh", "-c", _CLIENT, "sh", *argv, server.address) if index else (*_BOUNDED, *argv)

    pair = (server, client)
    results = run_concurrently([node.argv(argv_of(index)) for index, node in enumerate(pair)], timeout=_TIMEOUT)
    for node, done in zip(pair, results, strict=True):
        if done.code == _MISSING:
            raise NotMeasuredError(f"no `ib_write_bw` on {node.name}", install=_PERFTEST)
    match = re.search(rf"^ *{_SIZE} +\d+ +[\d.]+ +([\d.]+) ", results[1].stdout, re.MULTILINE)
    if match is None:
        raise NotMeasuredError(f"{nics[1].name} from {client.name} to {server.name}: {_last_line(results[1])}")
    return float(match[1])


def all_reduce_gbytes(plan: Plan, nodes: Sequence[FabricNode], python: Sequence[str]) -> Mapping[int, float]:
    """Return the all-reduce bus bandwidth over all ranks, in GB/s by size in bytes. Raises NotMeasuredError.

    `python` is the argv of the engine's Python on a node, with the plan's environment.
    """
    source = (data_root() / "images" / "all_reduce.py").read_text()
    gpus, sizes = (plan.gpus, _GPU_SIZES) if plan.gpus else (("cpu",), _CPU_SIZES)
    last = (str(plan.rank_port), ",".join(map(str, gpus)), ",".join(map(str, sizes)))
    words = (*_BOUNDED, *python, "-c", source)
    argvs = [(*words, str(index), str(len(nodes)), nodes[0].address, *last) for index in range(len(nodes))]
    node_argvs = [node.argv(argv) for node, argv in zip(nodes, argvs, strict=True)]
    results = run_concurrently(node_argvs, timeout=_TIMEOUT)
    if without := [node.name for node, done in zip(nodes, results, strict=True) if _NO_IMAGE in done.stderr]:
        # The other nodes wait for these ranks until they time out.
        install = "`deploy build PROFILE`, or `docker pull` on each node"
        raise NotMeasuredError(f"no image on {', '.join(without)}", install=install)
    for node, done in zip(nodes, results, strict=True):
        if not done.ok:
            raise NotMeasuredError(f"{node.name}: {_last_line(done)}")
    rows = re.findall(r"^(\d+) ([\d.]+)$", results[0].stdout, re.MULTILINE)
    if not rows:
        raise NotMeasuredError(f"{nodes[0].name} printed no bandwidth")
    return {int(size): float(metric) for size, metric in rows}


def _last_line(done: CompletedProgram) -> str:
    lines = [
        line
        for line in (*done.stdout.splitlines(), *done.stderr.splitlines())
        if line.strip(" -*") and "--help" not in line
    ]
    last = lines[-1].strip()[:200] if lines else "no output"
    return f"no response within {_LIMIT} s" if done.code == _TIMED_OUT else last
