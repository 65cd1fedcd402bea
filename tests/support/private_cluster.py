"""A private Kubernetes: a real API server, scheduler and controllers, with fake nodes.

`make kubernetes` builds the programs from Debian's sources, once. There is no kubelet: a test sets the status of pods.
"""

import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
from leftover_processes import MARK
from ports import free_port
from waits import wait_for

from orchestrator.core.subprocesses import Program, start

PROGRAMS = Path.home() / ".cache/deploy-tests/kubernetes"
_BUILT = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
_TOKEN = "of-the-tests"
GC = "GOGC"  # `off` saves a fifth of the CPU time of kubectl, which ends before it needs much memory


def lasting(log: Path, *argv: str) -> Program:
    """Start a program that several tests use; it ends with the test run."""
    with log.open("ab") as output:
        return start(argv, env={MARK: None, GC: None}, output=output, tied=True)


def unavailable() -> str:
    """Return why this machine cannot run a cluster; empty if it can."""
    missing = [program for program in _BUILT if not (PROGRAMS / program).is_file()]
    if missing:
        return f"needs {', '.join(missing)}: `make kubernetes` builds them"
    missing = [program for program in ("etcd", "kubectl", "openssl") if shutil.which(program) is None]
    return f"needs {', '.join(missing)}" if missing else ""


@dataclass
class PrivateCluster:
    """A cluster with all of its files below `folder`."""

    folder: Path
    port: int = field(default_factory=free_port)
    etcd: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))
    programs: dict[str, Program] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.folder / "kubeconfig"

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl; return its stdout, and fail if it fails."""
        argv = ["kubectl", "--kubeconfig", str(self.config), *words]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, *words: str) -> list[Mapping[str, Any]]:
        """Return objects of several kinds."""
        objects: list[Mapping[str, Any]] = json.loads(self.kubectl("get", *words, "--output", "json"))["items"]
        return objects

    def objects(self, kind: str, selector: str = "", *, namespace: str = "default") -> list[Mapping[str, Any]]:
        """Return the objects of one kind in a namespace, over HTTP: tests poll, and kubectl takes 0.1 s of CPU time."""
        group = "apis/apps/v1" if kind in {"deployments", "replicasets"} else "api/v1"
        answer = self._request("GET", f"/{group}/namespaces/{namespace}/{kind}", params={"labelSelector": selector})
        objects: list[Mapping[str, Any]] = answer.json()["items"]
        return objects

    def remove(self, pod: str, namespace: str = "default") -> None:
        """Remove a deleted pod, as its kubelet would."""
        self._request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{pod}", params={"gracePeriodSeconds": "0"})

    def start(self) -> None:
        """Start all programs and wait until the controllers run."""
        key = self.folder / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        (self.folder / "tokens").write_text(f'{_TOKEN},tests,tests,"system:masters"\n')
        self._write_config()
        local = "http://127.0.0.1"
        client, peer = (f"{local}:{port}" for port in self.etcd)
        self._run(
            "etcd", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", "--unsafe-no-fsync",
        )  # fmt: skip
        self.start_api()
        common = ("--kubeconfig", str(self.config), "--leader-elect=false", "--port=0")
        self._run(
            "kube-controller-manager", *common, f"--secure-port={free_port()}", "--bind-address=127.0.0.1",
            "--service-account-private-key-file", str(key), "--cert-dir", str(self.folder / "controllers"),
            "--root-ca-file", str(self.folder / "api/apiserver.crt"),
            "--node-monitor-grace-period=24h",
        )  # fmt: skip
        self._run(
            "kube-scheduler", *common, f"--secure-port={free_port()}", "--bind-address=127.0.0.1",
            "--cert-dir", str(self.folder / "scheduler"),
        )  # fmt: skip
        wait_for(lambda: bool(self.objects("serviceaccounts")))

    def start_api(self) -> None:
        """Start the API server and wait until it is ready."""
        key = self.folder / "accounts.key"
        self._run(
            "kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{self.etcd[0]}",
            "--secure-port", str(self.port), "--bind-address", "127.0.0.1",
            "--advertise-address", "127.0.0.1", "--cert-dir", str(self.folder / "api"), "--token-auth-file",
            str(self.folder / "tokens"), "--service-account-key-file", str(key), "--service-account-signing-key-file",
            str(key), "--service-account-issuer", "tests", "--service-cluster-ip-range", "10.199.0.0/24",
            "--authorization-mode", "RBAC",
            "--enable-priority-and-fairness=false",  # half the CPU time of an idle API server
        )  # fmt: skip

        wait_for(self.is_ready)

    def end_api(self) -> None:
        """Kill the API server; `start_api` restarts it with the same data."""
        self.programs.pop("kube-apiserver").end(signal.SIGKILL)

    def is_ready(self) -> bool:
        dead = [name for name, program in self.programs.items() if program.code is not None]
        assert not dead, [(self.folder / f"{name}.log").read_text()[-2000:] for name in dead]
        try:
            return self._request("GET", "/readyz").is_success
        except httpx.TransportError:
            return False

    def end(self) -> None:
        self._client.close()
        for program in self.programs.values():
            program.end(signal.SIGKILL)

    def nodes(self) -> list[Mapping[str, Any]]:
        """Return all nodes, over HTTP."""
        nodes: list[Mapping[str, Any]] = self._request("GET", "/api/v1/nodes").json()["items"]
        return nodes

    def node(self, name: str, **capacity: str) -> None:
        """Create a ready node without a kubelet; `__` in the name of a resource stands for `/`."""
        more = {key.replace("__", "/").replace("_", "."): amount for key, amount in capacity.items()}
        resources = {"cpu": "64", "memory": "512Gi", "pods": "110", **more}
        ready = {"type": "Ready", "status": "True", "reason": "Said", "message": "by the tests"}
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        self.kubectl("apply", "--filename", "-", stdin=json.dumps(node))
        status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
        self._patch(f"/api/v1/nodes/{name}/status", {"status": status})
        wait_for(lambda: not self._taints(name))  # the controllers remove theirs

    def say(self, pod: str, namespace: str = "default", **status: object) -> None:
        """Set the status of a pod, as its kubelet would."""
        self._patch(f"/api/v1/namespaces/{namespace}/pods/{pod}/status", {"status": status})

    def _taints(self, name: str) -> object:
        return self._request("GET", f"/api/v1/nodes/{name}").json()["spec"].get("taints")

    def _patch(self, path: str, body: object) -> None:
        """Patch a status over HTTP: kubectl does this from 1.24 on, and Debian's is older."""
        answer = self._request("PATCH", path, body, kind="application/strategic-merge-patch+json")
        assert answer.is_success, answer.text

    def _request(
        self, method: str, path: str, body: object = None, *, kind: str = "", params: Mapping[str, str] | None = None
    ) -> httpx.Response:
        url = f"https://127.0.0.1:{self.port}{path}"
        return self._client.request(
            method, url, json=body, headers={"Content-Type": kind} if kind else {}, params=params
        )

    @cached_property
    def _client(self) -> httpx.Client:
        """A client that keeps its connection, because a new one for each request takes 5 ms of CPU time more."""
        return httpx.Client(headers={"Authorization": f"Bearer {_TOKEN}"}, verify=False, trust_env=False)  # noqa: S501

    def _write_config(self) -> None:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
            "users": [{"name": "tests", "user": {"token": _TOKEN}}],
            "clusters": [
                {
                    "name": "tests",
                    "cluster": {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True},
                }
            ],
        }
        self.config.write_text(json.dumps(config))  # JSON is YAML
        self.config.chmod(0o600)

    def _run(self, name: str, *options: str) -> None:
        program = str(PROGRAMS / name) if name in _BUILT else name
        self.programs[name] = lasting(self.folder / f"{name}.log", program, *options)


@contextmanager
def private_cluster() -> Iterator[PrivateCluster]:
    """Run a cluster without nodes."""
    folder = Path(tempfile.mkdtemp(prefix="deploy-kubernetes-"))
    cluster = PrivateCluster(folder)
    with ExitStack() as last:
        last.callback(shutil.rmtree, folder, ignore_errors=True)
        last.callback(cluster.end)
        cluster.start()
        yield cluster
