"""A real node for `own_cluster`: its kubelet, with a containerd of its own, and images that no registry has.

As root, with Debian's containerd, runc and containernetworking-plugins. What a kubelet changes of the kernel is put
back.
"""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from own_cluster import PROGRAMS, OwnCluster, unmarked
from patience import wait_for
from ports import free_port
from standin import SEED, add_file, add_system, closure, debian_python

CNI: Final = Path("/usr/lib/cni")
_KERNEL: Final = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
_PAUSE: Final = "deploy.test/pause:1"
ENGINE_IMAGE: Final = "deploy.test/engine:1"
PACKAGES: Final = "engine"  # beside the models, in a pod of ENGINE_IMAGE
PYTHON_IMAGE: Final = "deploy.test/python:1"  # Debian's Python and a shell


def unavailable() -> str:
    """Why there can be none on this machine, empty where there can."""
    if os.getuid() != 0:
        return "only root runs a kubelet"
    missing = [name for name in ("containerd", "ctr", "runc", "iptables", "nsenter") if shutil.which(name) is None]
    missing += [str(path) for path in (PROGRAMS / "kubelet", CNI / "ptp") if not path.is_file()]
    return f"needs {', '.join(missing)}" if missing else ""


class OwnNode:
    """The machine itself as a node, under its own name; everything the node keeps is below `folder`."""

    def __init__(self, folder: Path, cluster: OwnCluster) -> None:
        self.folder, self._cluster = folder, cluster
        self.name = socket.gethostname()
        self._programs: list[subprocess.Popen[bytes]] = []

    @property
    def _socket(self) -> str:
        return str(self.folder / "containerd.sock")

    def ctr(self, *words: str) -> str:
        argv = ["ctr", "--address", self._socket, "--namespace", "k8s.io", *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    def start(self) -> None:
        """Returns when pods can be placed on it."""
        (self.folder / "cni").mkdir()
        address = {"type": "host-local", "ranges": [[{"subnet": "10.198.0.0/24"}]], "dataDir": str(self.folder / "ips")}
        plugins = [{"type": "ptp", "ipam": address}]
        network = {"cniVersion": "0.4.0", "name": "tests", "plugins": plugins}
        (self.folder / "cni/10-tests.conflist").write_text(json.dumps(network))
        (self.folder / "containerd.toml").write_text(self._containerd())
        self._run("containerd", "containerd", "--config", str(self.folder / "containerd.toml"))
        wait_for(self._answers)
        self.load(_PAUSE, lambda _: None, of=("/usr/bin/sleep", "infinity"))
        (self.folder / "kubelet.yaml").write_text(json.dumps(self._kubelet()))
        self._run(
            "kubelet", str(PROGRAMS / "kubelet"), "--config", str(self.folder / "kubelet.yaml"), "--kubeconfig",
            str(self._cluster.config), "--container-runtime=remote", "--container-runtime-endpoint",
            f"unix://{self._socket}", "--root-dir", str(self.folder / "kubelet"), "--cert-dir",
            str(self.folder / "pki"), "--hostname-override", self.name,
        )  # fmt: skip
        self.load(PYTHON_IMAGE, lambda _: None)
        wait_for(self._is_ready)

    def load(self, tag: str, fill: Callable[[tarfile.TarFile], None], *, of: Sequence[str] = ()) -> None:
        """Give the node an image: a system with Python and a shell, and what `fill` puts into it."""
        layer = self.folder / "layer.tar"
        with tarfile.open(layer, "w") as tar:
            add_system(tar, closure(SEED))
            fill(tar)
        with layer.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        settings = {"Env": ["PATH=/usr/local/bin:/usr/bin:/usr/sbin"], "Entrypoint": list(of)}
        config = {"architecture": "amd64", "os": "linux", "config": settings}
        config["rootfs"] = {"type": "layers", "diff_ids": [f"sha256:{digest}"]}
        listed = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
        (self.folder / "config.json").write_text(json.dumps(config))
        (self.folder / "manifest.json").write_text(json.dumps(listed))
        archive = self.folder / "image.tar"
        with tarfile.open(archive, "w") as tar:
            for name in ("manifest.json", "config.json", "layer.tar"):
                tar.add(self.folder / name, arcname=name)
        self.ctr("images", "import", str(archive))
        archive.unlink()
        layer.unlink()

    def end(self) -> None:
        """End the kubelet, all containers, and containerd."""
        for program in reversed(self._programs[1:]):
            _end(program)
        for pid in (line.split()[1] for line in self.ctr("tasks", "list").splitlines()[1:]):
            if pid != "0":
                os.kill(int(pid), signal.SIGKILL)
        wait_for(lambda: not [line for line in self.ctr("tasks", "list").splitlines()[1:] if "RUNNING" in line])
        for name in self.ctr("tasks", "list", "--quiet").split():
            subprocess.run(
                ["ctr", "--address", self._socket, "--namespace", "k8s.io", "tasks", "delete", "--force", name],
                capture_output=True, check=False,
            )  # fmt: skip
        _end(self._programs[0])

    def _answers(self) -> bool:
        argv = ["ctr", "--address", self._socket, "version"]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0

    def _is_ready(self) -> bool:
        kubelet = self._programs[-1]
        assert kubelet.poll() is None, (self.folder / "kubelet.log").read_text()[-3000:]
        nodes = [node for node in self._cluster.get("nodes") if node["metadata"]["name"] == self.name]
        conditions = nodes[0]["status"].get("conditions", []) if nodes else []
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
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
sandbox_image = "{_PAUSE}"
restrict_oom_score_adj = true
disable_apparmor = true
stream_server_port = "0"
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
            "evictionHard": {"memory.available": "1Mi"},
            "resolvConf": "",
        }

    def _run(self, name: str, *argv: str) -> None:
        with (self.folder / f"{name}.log").open("a") as log:
            self._programs.append(subprocess.Popen(argv, stdout=log, stderr=log, env=unmarked()))


def load_engine(node: OwnNode) -> str:
    """Give the node an image that serves real sglang, with the packages that lie beside its models; its tag."""
    place = f"/usr/local/lib/{debian_python()}/dist-packages/engine.pth"
    paths = f"import site; site.addsitedir('/models/{PACKAGES}')\n".encode()
    node.load(ENGINE_IMAGE, lambda tar: add_file(tar, place, paths))
    return ENGINE_IMAGE


@contextmanager
def models_with(packages: Path, model: Path) -> Iterator[Path]:
    """A directory for a pod's checkpoints: the model, and the packages of an engine, which are no part of an image."""
    folder = Path(tempfile.mkdtemp(prefix="deploy-models-", dir="/var/tmp"))
    with ExitStack() as last:
        last.callback(folder.rmdir)
        for name, place in ((PACKAGES, packages), (model.name, model)):
            (folder / name).mkdir()
            last.callback((folder / name).rmdir)  # refuses where something is still mounted
            subprocess.run(["mount", "--bind", str(place), str(folder / name)], check=True)
            last.callback(subprocess.run, ["umount", "--lazy", str(folder / name)], check=True)
        yield folder


@contextmanager
def own_node(cluster: OwnCluster) -> Iterator[OwnNode]:
    """This machine as a node of the cluster; its containers go with it."""
    folder = Path(tempfile.mkdtemp(prefix="deploy-node-", dir="/var/tmp"))
    before = {name: Path("/proc/sys", name).read_text() for name in _KERNEL}
    networks = _networks()
    node = OwnNode(folder, cluster)
    with ExitStack() as last:
        last.callback(_remove, folder)
        for name, value in before.items():
            last.callback(Path("/proc/sys", name).write_text, value)
        last.callback(
            lambda: [subprocess.run(["ip", "netns", "delete", n], check=False) for n in _networks() - networks]
        )
        last.callback(node.end)
        node.start()
        yield node


def _end(program: "subprocess.Popen[bytes]") -> None:
    program.terminate()
    try:
        program.wait(timeout=20)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def _remove(folder: Path) -> None:
    """The folder, once nothing is mounted below it any more."""
    for place in sorted(_mounted(folder), reverse=True):
        subprocess.run(["umount", "--lazy", place], check=False)
    assert not _mounted(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _networks() -> set[str]:
    """The networks of pods, which outlive containers that were killed."""
    return {path.name for path in Path("/var/run/netns").glob("cni-*")}


def _mounted(folder: Path) -> list[str]:
    places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [place for place in places if place.startswith(f"{folder}/")]
