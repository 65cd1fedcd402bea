"""A real node for `private_cluster`: a kubelet with its own containerd, and images that are in no registry.

It needs root and Debian's containerd, runc and containernetworking-plugins. The kubelet and containerd run in their own
mount namespace, because the directories of pod logs and networks are the same for all kubelets of a machine, and a
kubelet deletes unknown entries there. This file as a program is a keeper: it removes leftover containers and restores
kernel settings that the kubelet has changed, even if the tests are killed.
"""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from leftover_processes import MARK
from ports import free_port
from private_cluster import PROGRAMS, PrivateCluster, lasting
from rocm_image import MOONCAKE, SEED, add_file, add_forked_ranks, add_system, closure, debian_python, files_of
from waits import wait_for

from orchestrator.core.subprocesses import PIPE, Program

CNI: Final = Path("/usr/lib/cni")
SERVICES: Final = "10.199.0.0/24"  # the service addresses of `private_cluster`
_LOCATIONS: Final = ("/var/log/pods", "/var/log/containers", "/run/netns")  # shared by all kubelets and containerds
_APART: Final = "here=$0; for place in {}; do mkdir -p $place $here$place && mount --bind $here$place $place; done"
_KERNEL: Final = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
_ENDS: Final = 60.0  # seconds for killed containers to exit
_RARELY: Final = "10m"  # interval of container metrics, which no test uses
_SANDBOX_IMAGE: Final = "deploy.test/pause:1"
ENGINE_IMAGE: Final = "deploy.test/engine:1"
PACKAGES: Final = "packages"  # folder in the models directory of a pod of ENGINE_IMAGE
UNCHECKED: Final = "TESTS_UNCHECKED"  # the check of the arguments takes 9 s of CPU time; one test has it
PYTHON_IMAGE: Final = "deploy.test/python:1"  # Debian's Python and a shell


def unavailable() -> str:
    """Return why this machine cannot run a node; empty if it can."""
    if os.getuid() != 0:
        return "only root runs a kubelet"
    needed = ("containerd", "ctr", "runc", "iptables", "nsenter", "unshare")
    missing = [name for name in needed if shutil.which(name) is None]
    missing += [] if (CNI / "ptp").is_file() else [str(CNI / "ptp")]
    return f"needs {', '.join(missing)}" if missing else ""


class PrivateNode:
    """This machine as a node, under its own name, with its files below `folder`."""

    def __init__(self, folder: Path, cluster: PrivateCluster) -> None:
        self.folder, self._cluster = folder, cluster
        self.name = socket.gethostname()
        self.pods = f"10.198.{os.getpid() % 256}.0/24"  # distinct from other test runs on this machine
        self.host = self.pods.replace(".0/24", ".1")  # this machine's address for its pods
        self._programs: list[Program] = []
        self._system: dict[str, object] = {}  # descriptor of the common base layer

    @property
    def _socket(self) -> str:
        return str(self.folder / "containerd.sock")

    def ctr(self, *words: str) -> str:
        argv = ["ctr", "--address", self._socket, "--namespace", "k8s.io", *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    def start(self) -> None:
        """Start the node and wait until it accepts pods."""
        (self.folder / "cni").mkdir()
        addresses = {"subnet": self.pods, "gateway": self.host}
        address = {"type": "host-local", "ranges": [[addresses]], "dataDir": str(self.folder / "ips")}
        address["routes"] = [{"dst": SERVICES}]
        plugins = [{"type": "ptp", "ipam": address}]
        network = {"cniVersion": "0.4.0", "name": "tests", "plugins": plugins}
        (self.folder / "cni/10-tests.conflist").write_text(json.dumps(network))
        (self.folder / "containerd.toml").write_text(self._containerd())
        apart = f'{_APART.format(" ".join(_LOCATIONS))} && exec "$@"'
        self._run(
            "containerd", "unshare", "--mount", "sh", "-ec", apart, str(self.folder),
            "containerd", "--config", str(self.folder / "containerd.toml"),
        )  # fmt: skip
        wait_for(self._answers)
        self.load(_SANDBOX_IMAGE, of=("/usr/bin/sleep", "infinity"))
        (self.folder / "kubelet.yaml").write_text(json.dumps(self._kubelet()))
        self._run(
            "kubelet", *self._inside, str(PROGRAMS / "kubelet"), "--config", str(self.folder / "kubelet.yaml"),
            "--kubeconfig", str(self._cluster.config), "--container-runtime=remote", "--container-runtime-endpoint",
            f"unix://{self._socket}", "--root-dir", str(self.folder / "kubelet"), "--cert-dir",
            str(self.folder / "pki"), "--hostname-override", self.name, f"--housekeeping-interval={_RARELY}",
        )  # fmt: skip
        self.load(PYTHON_IMAGE)
        wait_for(self._is_ready, interval=0.5)

    def load(
        self,
        tag: str,
        fill: Callable[[tarfile.TarFile], None] | None = None,
        *,
        of: Sequence[str] = (),
        env: Sequence[str] = (),
    ) -> None:
        """Import an image with Python, a shell, and a layer that `fill` writes.

        The archive is an OCI image layout. Only the first archive has the base layer, which containerd keeps.
        """
        archive = self.folder / "image.tar"
        with tarfile.open(archive, "w") as tar:
            self._system = self._system or self._add_layer(tar, lambda layer: add_system(layer, closure(SEED)))
            layers = [self._system] + ([self._add_layer(tar, fill)] if fill else [])
            settings = {"Env": ["PATH=/usr/local/bin:/usr/bin:/usr/sbin", *env], "Entrypoint": list(of)}
            config: dict[str, object] = {"architecture": "amd64", "os": "linux", "config": settings}
            config["rootfs"] = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
            image = {"schemaVersion": 2, "config": _add_json(tar, "config", config), "layers": layers}
            manifest = _add_json(tar, "manifest", image) | {"annotations": {"io.containerd.image.name": tag}}
            add_file(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode())
            add_file(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        self.ctr("images", "import", str(archive))
        archive.unlink()

    def _add_layer(self, tar: tarfile.TarFile, fill: Callable[[tarfile.TarFile], None]) -> dict[str, object]:
        path = self.folder / "layer.tar"
        with tarfile.open(path, "w") as layer:
            fill(layer)
        with path.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        size = tar.gettarinfo(path).size
        tar.add(path, arcname=f"blobs/sha256/{digest}")
        path.unlink()
        return _descriptor("layer.v1.tar", digest, size)

    def show(self, source: Path, location: Path) -> None:
        """Bind-mount a directory at another location, in the mount namespace of the node only."""
        subprocess.run([*self._inside, "mount", "--bind", str(source), str(location)], check=True)

    def joined_pods(self) -> AbstractContextManager[None]:
        """Let pods reach each other, which Docker's iptables rules prevent."""
        return iptables_rule("filter", "FORWARD", "--source", self.pods, "--destination", self.pods, "--jump", "ACCEPT")

    def end(self) -> None:
        """Stop the kubelet first, because it restarts containers, and then containerd."""
        for program in reversed(self._programs):
            program.end(signal.SIGTERM, grace=20)

    @property
    def _inside(self) -> tuple[str, ...]:
        """The command prefix that runs a program in the mount namespace of the node."""
        return "nsenter", f"--mount=/proc/{self._programs[0].pid}/ns/mnt"

    def _answers(self) -> bool:
        argv = ["ctr", "--address", self._socket, "version"]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0

    def _is_ready(self) -> bool:
        kubelet = self._programs[-1]
        assert kubelet.code is None, (self.folder / "kubelet.log").read_text()[-3000:]
        nodes = [node for node in self._cluster.nodes() if node["metadata"]["name"] == self.name]
        conditions = nodes[0]["status"].get("conditions", []) if nodes else []
        ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
        return ready and not nodes[0]["spec"].get("taints")

    def _containerd(self) -> str:
        return f"""\
version = 2
root = "{self.folder}/root"
state = "{self.folder}/state"
disabled_plugins = []
[grpc]
address = "{self._socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{_SANDBOX_IMAGE}"
restrict_oom_score_adj = true
disable_apparmor = true
stream_server_port = "0"
stats_collect_period = 3600
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI}"
conf_dir = "{self.folder}/cni"
"""

    def _kubelet(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": free_port(),
            "readOnlyPort": 0,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "cgroupDriver": "cgroupfs",
            "oomScoreAdj": 0,
            "makeIPTablesUtilChains": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            # Without evictions there are no measurements, which are nine tenths of an idle kubelet's CPU time.
            "evictionHard": dict.fromkeys(("memory.available", "nodefs.available", "imagefs.available"), "0%"),
            "featureGates": {"LocalStorageCapacityIsolation": False},
            "resolvConf": "",
        }

    def _run(self, name: str, *argv: str) -> None:
        self._programs.append(lasting(self.folder / f"{name}.log", *argv))


def _add_json(tar: tarfile.TarFile, kind: str, value: object) -> dict[str, object]:
    """Add a document to an OCI image layout; return its descriptor."""
    content = json.dumps(value).encode()
    digest = hashlib.sha256(content).hexdigest()
    add_file(tar, f"blobs/sha256/{digest}", content)
    return _descriptor(f"{kind}.v1+json", digest, len(content))


def _descriptor(kind: str, digest: str, size: int) -> dict[str, object]:
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": size}


@contextmanager
def iptables_rule(table: str, chain: str, *rule: str) -> Iterator[None]:
    """Insert a rule at the start of a chain for the length of the block."""
    subprocess.run(["iptables", "--table", table, "--insert", chain, *rule], check=True)
    try:
        yield
    finally:
        subprocess.run(["iptables", "--table", table, "--delete", chain, *rule], check=True)


def add_engine(tar: tarfile.TarFile) -> None:
    """Add real sglang to an image, with its packages from the models directory.

    In a pod with the variable `UNCHECKED`, the check of the arguments finds no sglang. Then the server starts anyway.
    """
    location = f"/usr/local/lib/{debian_python()}/dist-packages/engine.pth"
    check = f"'{UNCHECKED}' in os.environ and 'check_server_args.py' in str(sys.orig_argv)"
    add_file(tar, location, f"import os, site, sys; {check} or site.addsitedir('/models/{PACKAGES}')\n".encode())
    add_forked_ranks(tar)
    for path in files_of(sorted({*closure(MOONCAKE)} - {*closure(SEED)})):
        tar.add(path, arcname=path.lstrip("/"), recursive=False)


def models_with(node: PrivateNode, name: str, **locations: Path) -> Path:
    """Create a models directory for pods, with directories of this machine mounted in it."""
    folder = node.folder / name
    folder.mkdir()
    for item, location in locations.items():
        (folder / item).mkdir()
        node.show(location, folder / item)
    return folder


@contextmanager
def private_node(cluster: PrivateCluster) -> Iterator[PrivateNode]:
    """Run this machine as a node of the cluster for the length of the block."""
    folder = tempfile.mkdtemp(prefix="deploy-node-", dir="/var/tmp")
    environ = {name: value for name, value in os.environ.items() if name != MARK}
    argv = [sys.executable, __file__, folder]
    with (
        subprocess.Popen(argv, stdin=PIPE, stdout=PIPE, env=environ, start_new_session=True) as keeper,
        ExitStack() as last,
    ):
        last.callback(keeper.communicate)  # the end of its stdin makes it clean up
        assert keeper.stdout is not None
        assert keeper.stdout.readline(), "the keeper of the node has exited"
        node = PrivateNode(Path(folder), cluster)
        last.callback(node.end)
        node.start()
        yield node
    assert keeper.returncode == 0


def keep(folder: Path) -> None:
    """Wait for the end of stdin, when the parent has ended, and then clean up after the node."""
    before = {name: Path("/proc/sys", name).read_text() for name in _KERNEL}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    print("keeps", flush=True)
    sys.stdin.read()
    _end_containers(folder)
    for name, value in before.items():
        Path("/proc/sys", name).write_text(value)
    shutil.rmtree(folder, ignore_errors=True)


def _end_containers(folder: Path) -> None:
    """Kill the children of containerd's shims, then the shims, which outlive containerd."""
    deadline = time.monotonic() + _ENDS
    while shims := _shims(folder):
        assert time.monotonic() < deadline, f"{shims} do not end"
        children = [pid for shim in shims for pid in _children(shim)]
        for pid in children or shims:  # children first: without their shims they cannot be identified
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _shims(folder: Path) -> list[int]:
    socket_of_ours = f"{folder}/containerd.sock".encode()
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"containerd-shim" in words[0] and socket_of_ours in words:
                pids.append(int(path.parent.name))
    return pids


def _children(pid: int) -> list[int]:
    """Return the running children (proc(5): in `stat`, state and parent follow the name)."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                pids.append(int(path.parent.name))
    return pids


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
