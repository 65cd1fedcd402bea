"""A private Slurm cluster on this machine: munged, slurmctld and two slurmd nodes.

Each node has two fake GPUs, which are character devices: Slurm schedules them like real ones.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cpu_server import CpuEngine, CpuServer
from leftover_processes import MARK, programs_with
from ports import free_port
from waits import TIMEOUT, wait_for

from orchestrator.runs.run_dir import open_run
from orchestrator.runtimes.slurm.runtime import SlurmRuntime

PACKAGES = "Slurm is not installed: apt-get install slurm-wlm munge"
NODES = ("n0", "n1")
GPU_TYPE = "mi355x"
_PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch")
_FOUND = {program: shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") for program in _PROGRAMS}
MISSING = None in _FOUND.values() or os.geteuid() != 0
_CONFIG = """
ClusterName=tests
SlurmctldHost=localhost
SlurmctldPort={control}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerParameters=sched_interval=2,batch_sched_delay=0,bf_interval=2,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=5
KillWait=2
MinJobAge=60
MaxNodeCount=2
NodeName=DEFAULT CPUs=4 RealMemory=4000 Gres=gpu:mi355x:2 State=UNKNOWN
NodeName=n0 NodeHostname=localhost NodeAddr=127.0.0.1 Port={first}
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.2 Port={last}
PartitionName=main Nodes=ALL Default=YES MaxTime=60 DefaultTime=30 State=UP
PartitionName=short Nodes=n0 MaxTime=1 State=UP
"""
_GRES = "AutoDetect=off\nName=gpu Type=mi355x File={folder}/gpu[0-1] Flags=amd_gpu_env\n"


@dataclass
class SlurmCluster:
    """A running cluster; `environ` has the variables that its commands need."""

    folder: Path
    daemons: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "SLURM_TIME_FORMAT": "standard"}

    def run(self, *argv: str) -> str:
        """Run a Slurm command; return its stdout."""
        env = {**os.environ, **self.environ}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def queue(self) -> list[str]:
        """Return the ids of the jobs that are pending, running or completing."""
        return self.run("squeue", "--noheader", "--format=%i").split()

    def start_node(self, name: str) -> None:
        self.daemons[name] = self._start("slurmd", "-D", "-N", name)

    def lose_node(self, name: str) -> None:
        """Kill all processes of a node and mark it down: Slurm would notice only after `SlurmdTimeout` and a ping."""
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait()
        # Another test run may have a cluster with a node of this name.
        own = programs_with("SLURM_CONF", self.environ["SLURM_CONF"])
        for pid, _ in [program for program in programs_with("SLURMD_NODENAME", name) if program in own]:
            with suppress(OSError):
                parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
                if Path(f"/proc/{parent}/cmdline").read_text().startswith("slurmstepd"):
                    os.kill(int(parent), signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=lost")

    def wait_for_nodes(self) -> None:
        """Wait until all nodes accept jobs."""
        wait_for(lambda: set(self.run("sinfo", "--noheader", "--Node", "--format=%T").split()) == {"idle"})

    def begin(self) -> None:
        folder = self.folder
        folder.chmod(0o755)
        ports = free_port()
        first = _free_pair()
        values = {"folder": folder, "control": ports, "first": first, "last": first + len(NODES) - 1}
        (folder / "slurm.conf").write_text(_CONFIG.format(**values))
        (folder / "gres.conf").write_text(_GRES.format(folder=folder))
        for number in range(2):
            subprocess.run(["mknod", folder / f"gpu{number}", "c", "1", "3"], check=True)
        subprocess.run([_FOUND["mungekey"], "--create", "--keyfile", folder / "munge.key"], check=True)
        own = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
        self.daemons["munged"] = self._start(
            "munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *own
        )
        wait_for((folder / "munge.socket").exists)
        self.daemons["slurmctld"] = self._start("slurmctld", "-D", "-c")
        for node in NODES:
            self.start_node(node)
        self.wait_for_nodes()

    def end(self) -> None:
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()

    def _start(self, program: str, *words: str) -> "subprocess.Popen[bytes]":
        env = {name: value for name, value in os.environ.items() if name != MARK}  # later tests use it too
        with (self.folder / f"{program}.out").open("ab") as log:
            return subprocess.Popen([str(_FOUND[program]), *words], env={**env, **self.environ}, stdout=log, stderr=log)


def _free_pair() -> int:
    """Return the first of two consecutive free ports."""
    import socket

    while True:
        port = free_port()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port + 1)) != 0:
                return port


@dataclass(frozen=True, kw_only=True)
class SlurmEngine:
    """Starts servers as jobs of a private cluster."""

    engine: CpuEngine
    cluster: SlurmCluster

    @property
    def runtime(self) -> SlurmRuntime:
        return SlurmRuntime(self.engine.home)

    def start(self, name: str, argv: tuple[str, ...], *settings: str) -> CpuServer:
        """Start a program in place of a server."""
        overrides = ("runtime=slurm", "server.allow_unauthenticated=true", "slurm.exclusive=false", *settings)
        artifacts = self.engine.artifacts(*overrides, argv=argv)
        run = open_run(self.engine.home, name, artifacts.plan)
        handle = self.runtime.start(artifacts, name=name, run_dir=run.path, secrets={})
        return CpuServer(handle=handle, runtime=self.runtime, plan=artifacts.plan)


@contextmanager
def slurm_running(folder: Path) -> Iterator[SlurmCluster]:
    """Run a cluster in an empty folder, whose path must be short enough for a socket."""
    cluster = SlurmCluster(folder)
    try:
        cluster.begin()
        yield cluster
    finally:
        cluster.end()
