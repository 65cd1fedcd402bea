"""Run real sglang in a pod of a real node, from `up` to `down`."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from copy import deepcopy
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_server import ClusterEngine
from command_line import CommandLine
from cpu_server import CpuEngine
from loopback_hub import COMMIT
from private_cluster import PrivateCluster
from private_node import ENGINE_IMAGE, PACKAGES, UNCHECKED, add_engine, models_with
from rocm_image import packages_of
from waits import TIMEOUT, wait_for

from orchestrator.runtimes.base import Status
from orchestrator.runtimes.kubernetes.runtime import KubernetesRuntime

pytestmark = [pytest.mark.engine, pytest.mark.slow]
NAME = "podded"
KEY = "sk-0f-the-tests-0f-the-tests"


@pytest.fixture(scope="module")
def models(cluster_of_tests: ClusterEngine, cpu_engine: CpuEngine) -> Path:
    """Return the directory for /models of a pod, on a node that has the engine image."""
    node = cluster_of_tests.node
    node.load(ENGINE_IMAGE, add_engine)
    return models_with(
        node, "models", **{PACKAGES: packages_of(cpu_engine.python)}, tiny=cpu_engine.home.models / "tiny"
    )


@pytest.fixture
def deploy(cluster_engine: ClusterEngine) -> Iterator[CommandLine]:
    """Return `deploy`; check after the test that nothing remains in the cluster."""
    line = CommandLine(cluster_engine.home)
    yield line
    line.run("down", NAME)
    kinds = "deployments,replicasets,services,secrets,networkpolicies"
    assert not cluster_engine.cluster.get(kinds, "--selector", f"deploy.name={NAME}")


LINES = 10
# Prints lines for a second and ends; the cluster restarts it.
COUNTS = f"""
import time
run = time.time_ns()
for number in range({LINES}):
    time.sleep(0.1)
    print(run, number, flush=True)
"""


def test_followed_log_survives_restart_and_broken_stream(cluster_engine: ClusterEngine) -> None:
    """Each line appears once, whether or not the API server already knows of the restart."""
    server = cluster_engine.start("counts", cluster_engine.artifacts(argv=("python3", "-c", COUNTS)))
    lines: list[list[str]] = []

    def runs() -> list[str]:
        return list(dict.fromkeys(run for run, _ in lines))

    with ThreadPool(1) as pool:
        log = server.runtime.logs(server.handle, follow=True)
        following = pool.apply_async(lambda: lines.extend(line.split() for line in log))
        wait_for(kill_follower)
        wait_for(lambda: len(runs()) >= 2)
        stopping = KubernetesRuntime(cluster_engine.home)  # as from another terminal
        stopping.stop(*stopping.find(server.handle.name), grace=0)
        following.get(TIMEOUT)
    assert lines == [[run, str(number)] for run in runs() for number in range(LINES)][: len(lines)]


@pytest.fixture
def claimed(cluster_engine: ClusterEngine) -> Iterator[Path]:
    """Create the claim `models` and return its directory, which is empty."""
    folder, cluster = cluster_engine.home.root / "claimed", cluster_engine.cluster
    folder.mkdir()
    size, shared = {"storage": "1Gi"}, {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {**shared, "capacity": size, "hostPath": {"path": str(folder)}}
    claim = {**shared, "resources": {"requests": size}, "volumeName": "models"}
    for kind, spec in (("PersistentVolume", volume), ("PersistentVolumeClaim", claim)):
        document = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "models"}, "spec": spec}
        cluster.kubectl("apply", "--filename", "-", stdin=json.dumps(document))
    yield folder
    cluster.kubectl("delete", "persistentvolumeclaims,persistentvolumes", "models", "--wait=false")


def test_server_starts_once_empty_pvc_is_filled(cluster_engine: ClusterEngine, claimed: Path, tiny_model: Path) -> None:
    settings = (
        "kubernetes.weights.host_path=null",
        "kubernetes.weights.pvc=models",
        "model.checkpoint.source=hub",
        "model.checkpoint.path=tests/tiny",
        f"model.checkpoint.revision={COMMIT[:8]}",
    )
    serves = "import time; print('serves', flush=True); time.sleep(600)"
    server = cluster_engine.start("claimed", cluster_engine.artifacts(*settings, argv=("python3", "-c", serves)))
    message = f"claim `models` has no `tiny`; copy `tests/tiny`, revision `{COMMIT[:8]}`, to its directory `tiny`"
    wait_for(lambda: message in server.runtime.state(server.handle).detail)
    shutil.copytree(tiny_model, claimed / "tiny")
    wait_for(lambda: server.runtime.state(server.handle).status is Status.RUNNING)
    server.runtime.stop(server.handle, grace=0)


def follower_pids() -> list[int]:
    """Return the pids of the programs that follow a log for this process."""
    argv = ["pgrep", "--parent", str(os.getpid()), "--full", "kubectl .*--follow"]
    return [int(pid) for pid in subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split()]


def kill_follower() -> bool:
    """Kill a follower and return whether there was one; one from before the container runs ends by itself."""
    for pid in follower_pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def up_words(models: Path) -> tuple[str, ...]:
    settings = (
        "kubernetes.image_pull_policy=Never",
        "kubernetes.cpu=0.5",
        f"kubernetes.weights.host_path={models}",
        "server.api_key_env=SGLANG_KEY",
        "timeouts.termination_grace=2",
        f"timeouts.progress_deadline={TIMEOUT}",  # a busy machine may import torch three times at once
    )
    sets = [word for setting in settings for word in ("--set", setting)]
    return ("up", "cpu-tiny", "--name", NAME, "--runtime", "kubernetes", "--image", ENGINE_IMAGE, *sets)


def test_leader_worker_set_pods_form_one_server(cluster_engine: ClusterEngine, models: Path, tmp_path: Path) -> None:
    """Kubernetes 1.20 cannot run a LeaderWorkerSet, so that the test creates two pods as its controller would.

    Both nodes are this machine, so that each pod has its own network.
    """
    cluster, deploy = cluster_engine.cluster, CommandLine(cluster_engine.home, {"SGLANG_KEY": KEY})
    settings = ("layout.nodes=2", "layout.tp=2", "env.SGLANG_CPU_OMP_THREADS_BIND=0|1", f"env.{UNCHECKED}=1")
    sets = [word for setting in settings for word in ("--set", setting)]
    words = [word for word in up_words(models)[1:] if word not in {"--name", NAME}]
    rendered = deploy.run("render", *words, *sets, "--output", str(tmp_path / "lws"))
    assert rendered.returncode == 0, rendered.stderr
    text = (tmp_path / "lws/kubernetes.yaml").read_text()
    assert KEY not in text
    [make_secret] = re.findall(r"^#   (printf .*)$", text, re.MULTILINE)
    subprocess.run(["bash", "-c", make_secret], env={**os.environ, "SGLANG_KEY": KEY}, check=True)
    objects = {obj["kind"]: obj for obj in yaml.safe_load_all(text)}
    of_server = ("--selector", "deploy.name=cpu-tiny")
    with ExitStack() as last:
        last.enter_context(cluster_engine.node.joined_pods())
        last.callback(cluster.kubectl, "delete", "secret", "cpu-tiny-key")
        last.callback(cluster.kubectl, "delete", "pods,services,configmaps", *of_server, "--force", "--grace-period=0")
        for obj in (objects["Service"], objects["ConfigMap"], pod_of_group(objects["LeaderWorkerSet"], "")):
            cluster.kubectl("apply", "--filename", "-", stdin=json.dumps(obj))
        wait_for(lambda: all("podIP" in pod["status"] for pod in cluster.objects("pods", "deploy.name=cpu-tiny")))
        [address] = (pod["status"]["podIP"] for pod in cluster.objects("pods", "deploy.name=cpu-tiny"))
        worker = pod_of_group(objects["LeaderWorkerSet"], address)
        cluster.kubectl("apply", "--filename", "-", stdin=json.dumps(worker))
        wait_for(
            lambda: addresses_of(cluster) == [address], interval=0.5
        )  # only of the leader, as the worker does not serve
        smoke = deploy.run("smoke", f"http://{address}:30010", "--api-key-env", "SGLANG_KEY")
        assert smoke.returncode == 0, smoke.stdout + smoke.stderr
        log = cluster.kubectl("logs", worker["metadata"]["name"])
        assert f"dist_init_addr='{address}:31010', nnodes=2, node_rank=1" in log


def pod_of_group(group: dict[str, Any], leader: str) -> dict[str, Any]:
    """Return the worker pod of a LeaderWorkerSet, or its leader pod if no leader address is given.

    Its controller makes the same pods (kubernetes-sigs/lws, pkg/utils/pod/pod_utils.go). The cluster has no DNS, so the
    address of the leader is that of its pod.
    """
    template = deepcopy(group["spec"]["leaderWorkerTemplate"]["workerTemplate" if leader else "leaderTemplate"])
    meta, spec, rank = template["metadata"], template["spec"], "1" if leader else "0"
    for key in ("hostNetwork", "dnsPolicy", "affinity"):
        del spec[key]
    own_address = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    variables: list[dict[str, Any]] = [
        {"name": "LWS_LEADER_ADDRESS", **({"value": leader} if leader else own_address)},
        {"name": "LWS_GROUP_SIZE", "value": "2"},
        {"name": "LWS_WORKER_INDEX", "value": rank},
    ]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        container["env"] = variables + container["env"]
    meta["labels"]["leaderworkerset.sigs.k8s.io/worker-index"] = rank
    meta["name"] = f"{group['metadata']['name']}-0" + ("-1" if leader else "")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def addresses_of(cluster: PrivateCluster) -> list[str]:
    """Return the addresses of the server's Service: those of the ready pods that it selects."""
    services = [item for item in cluster.objects("endpoints") if item["metadata"]["name"] == "cpu-tiny"]
    subsets = [subset for endpoints in services for subset in endpoints.get("subsets", ())]
    return [address["ip"] for subset in subsets for address in subset.get("addresses", ())]


def test_real_sglang_pod_full_lifecycle(
    deploy: CommandLine, cluster_engine: ClusterEngine, models: Path, tmp_path: Path
) -> None:
    key = {"SGLANG_KEY": KEY}
    done = deploy.run(*up_words(models), **key)
    assert done.returncode == 0, done.stderr
    assert "correct answers" in done.stderr
    assert "API key required" in done.stderr
    assert f"is up at http://{NAME}.default.svc:30010, inside its network" in done.stderr
    assert f"to reach it from this host: `kubectl --namespace default port-forward service/{NAME} 30010`" in done.stderr

    [pod] = cluster_engine.cluster.objects("pods", f"deploy.name={NAME}")
    assert pod["status"]["qosClass"] == "Burstable"  # memory pressure evicts BestEffort pods first
    argv = ("exec", f"deployment/{NAME}", "--", "grep", "-E", "^(Uid|CapEff|NoNewPrivs|Seccomp):", "/proc/self/status")
    fields = dict(line.split(":") for line in cluster_engine.cluster.kubectl(*argv).splitlines())
    assert {name: value.split()[0] for name, value in fields.items()} == {
        "Uid": "1000",
        "CapEff": "0000000000000000",
        "NoNewPrivs": "1",
        "Seccomp": "2",
    }

    again = deploy.run(*up_words(models), **key)
    assert "is already up" in again.stderr, again.stderr

    status = deploy.run("status", NAME, "--json", **key)
    (report,) = json.loads(status.stdout)
    assert (report["status"], report["health"], report["restarts"]) == ("running", "healthy", 0)
    assert report["url"] == f"http://{NAME}.default.svc:30010"
    assert deploy.run("ask", NAME, "Once", "--tokens", "4", **key).returncode == 0
    smoke = deploy.run("smoke", NAME, **key)
    assert smoke.returncode == 0, smoke.stdout + smoke.stderr
    output = tmp_path / "results"
    words = ("bench", NAME, "--workload", "smoke-tiny", "--request-rate", "4", "--output", str(output))
    done = deploy.run(*words, **key)
    assert done.returncode == 0, done.stderr

    with deploy.running("logs", NAME, "--follow", **key) as following:
        done = deploy.run("down", NAME)
        assert done.returncode == 0, done.stderr
        code, out, _ = following.wait()
    assert code == 0
    assert out.count("fired up and ready") == 1
    assert "Multi-thread loading shards" in out  # sglang's default
    assert key["SGLANG_KEY"] not in out
    logs = deploy.run("logs", NAME)
    assert "fired up and ready" in logs.stdout
