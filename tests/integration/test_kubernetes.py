"""Run `deploy` against a real API server, scheduler and controllers; tests set what a kubelet reports."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.pool import ThreadPool
from pathlib import Path
from threading import Barrier
from typing import Any, Final

import pytest
from cluster_samples import cluster_plan
from command_line import CommandLine, Running
from loopback_registry import push
from private_cluster import PrivateCluster, unavailable
from waits import wait_for

from orchestrator.core.errors import NameTakenError
from orchestrator.core.paths import Home
from orchestrator.images.receipt import BASE_NAME, RECEIPT_LABEL
from orchestrator.planner.planning import load, render_artifacts
from orchestrator.runtimes.base import Unit
from orchestrator.runtimes.kubernetes.runtime import KubernetesRuntime

pytestmark = [
    pytest.mark.skipif(bool(unavailable()), reason=f"a real Kubernetes {unavailable()}"),
    pytest.mark.real_kubernetes,
    pytest.mark.slow,
]

IMAGE: Final = f"registry.invalid/sglang@sha256:{'0123456789abcdef' * 4}"
KEY: Final = "sk-0f-the-tests-0f-the-tests"
CLAIM: Final = ("--set", "kubernetes.weights.pvc=models")
HOST_PATH: Final = ("--set", "kubernetes.weights.host_path=/srv/models")


@pytest.fixture(scope="module")
def cluster(cluster_without_node: PrivateCluster) -> Iterator[PrivateCluster]:
    """Return the shared cluster with one node of eight GPUs."""
    cluster_without_node.node("node-a", amd_com__gpu="8")
    yield cluster_without_node
    cluster_without_node.kubectl("delete", "node", "node-a")


@pytest.fixture
def namespace(cluster: PrivateCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Create a namespace for the test, and check afterwards that it is empty."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:60].strip("-")
    cluster.kubectl("create", "namespace", name)
    yield name
    for kind in ("replicasets", "pods"):  # they are deleted after their Deployment
        wait_for(lambda kind=kind: not cluster.objects(kind, "deploy.name", namespace=name))
    leftovers = cluster.get("all,secrets,networkpolicies", "--namespace", name, "--selector", "deploy.name")
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    assert not leftovers, [f"{obj['kind']} {obj['metadata']['name']}" for obj in leftovers]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def environ_of(cluster: PrivateCluster) -> dict[str, str]:
    return {"KUBECONFIG": str(cluster.config), "SGLANG_KEY": KEY}


@pytest.fixture
def command(cluster: PrivateCluster, home: Home) -> Iterator[Callable[..., Running]]:
    """Return a function that starts `deploy` in the background."""
    line = CommandLine(home, environ_of(cluster))
    with ExitStack() as last:
        yield lambda *words: last.enter_context(line.running(*words))


def deploy(cluster: PrivateCluster, home: Home, *words: str) -> tuple[int, str, str]:
    done = CommandLine(home, environ_of(cluster)).run(*words)
    return done.returncode, done.stdout, done.stderr


def listed(cluster: PrivateCluster, home: Home) -> list[dict[str, Any]]:
    """Return the servers that `status` lists in clusters; other tests may have servers in this machine's Docker."""
    servers = json.loads(deploy(cluster, home, "status", "--json")[1])
    return [entry for entry in servers if entry["runtime"] == "kubernetes"]


def up_words(namespace: str, *more: str, profile: str = "cpu-tiny", minutes: int = 1) -> tuple[str, ...]:
    settings = (
        f"kubernetes.namespace={namespace}",
        f"kubernetes.pending_timeout={minutes}",
        "server.api_key_env=SGLANG_KEY",
    )
    sets = [word for setting in settings for word in ("--set", setting)]
    return (
        "up",
        profile,
        "--name",
        "boxed",
        "--runtime",
        "kubernetes",
        "--image",
        IMAGE,
        "--allow-untuned",
        *sets,
        *more,
    )


def the_pod(cluster: PrivateCluster, namespace: str) -> dict[str, Any]:
    """Return the pod of the server once it is placed on a node."""

    def placed() -> list[Any]:
        pods = cluster.objects("pods", "deploy.name=boxed", namespace=namespace)
        return [pod for pod in pods if pod["spec"].get("nodeName")]

    wait_for(lambda: bool(placed()), interval=0.5)
    pod: dict[str, Any] = placed()[0]
    return pod


def report_container(cluster: PrivateCluster, namespace: str, state: dict[str, object], **more: object) -> None:
    """Set the status of the server's container, as a kubelet would."""
    pod = the_pod(cluster, namespace)["metadata"]["name"]
    status = {
        "name": "server",
        "image": IMAGE,
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": state,
        **more,
    }
    cluster.say(pod, namespace, phase="Pending", containerStatuses=[status])


def test_unschedulable_server_is_reported_and_cleaned_up(cluster: PrivateCluster, home: Home, namespace: str) -> None:
    start = time.monotonic()
    code, _, errors = deploy(
        cluster, home, *up_words(namespace, *HOST_PATH, "--set", "kubernetes.node_selector=[gpu=none]")
    )
    assert code == 7
    assert "warning: nodes: 0 of 0 nodes with `gpu=none`" in errors
    assert "the server cannot start: no node accepts it: 0/1 nodes are available" in errors
    assert "kubectl --namespace" in errors
    assert time.monotonic() - start < 480  # the rollout would wait ten minutes
    wait_for(lambda: not cluster.objects("pods", namespace=namespace), interval=0.5)


def test_insufficient_gpus_are_reported(cluster: PrivateCluster, home: Home, namespace: str) -> None:
    """Another pod needs one of the eight GPUs, and the server needs all."""
    other_pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "other", "namespace": namespace},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "other", "image": "x", "resources": {"limits": {"amd.com/gpu": "1"}}}],
        },
    }
    cluster.kubectl("apply", "--filename", "-", stdin=json.dumps(other_pod))
    code, _, errors = deploy(cluster, home, *up_words(namespace, *HOST_PATH, profile="mi355x-tp8"))
    cluster.kubectl("delete", "pod", "other", "--namespace", namespace)
    assert code == 7
    assert "1 Insufficient amd.com/gpu" in errors


def test_missing_pvc_is_reported_before_creating_objects(cluster: PrivateCluster, home: Home, namespace: str) -> None:
    code, _, errors = deploy(cluster, home, *up_words(namespace, *CLAIM))
    assert code == 4
    assert "persistentvolumeclaim: not found (needed: models)" in errors


def test_image_without_named_kernels_is_rejected_before_creating_objects(
    cluster: PrivateCluster, home: Home, namespace: str, registry: str
) -> None:
    """An image with the named kernels is accepted."""
    kernels = f"/kernels.tar.gz@sha256:{'0' * 64}"
    more = (*HOST_PATH, "--set", "kubernetes.node_selector=[gpu=none]", "--set", f"engine.compiled_kernels={kernels}")

    def start_with_labels(**labels: str) -> tuple[int, str]:
        labels |= {BASE_NAME: load("cpu-tiny").plan.engine.image}
        labels |= {RECEIPT_LABEL: json.dumps({"python": "3.12", "sources": {}, "patches": []})}
        config = {"architecture": "amd64", "os": "linux", "config": {"Labels": labels}}
        kind = "application/vnd.oci.image.config.v1+json"
        image = push(registry, "engine", config=json.dumps(config).encode(), kind=kind)
        code, _, errors = deploy(cluster, home, *up_words(namespace, *more, "--image", image))
        return code, errors

    code, errors = start_with_labels()
    assert (code, f"does not have those of `{kernels}`" in errors) == (9, True), errors
    assert "`deploy build cpu-tiny --set engine.compiled_kernels=" in errors
    assert not cluster.objects("events", namespace=namespace), "no object may be created"
    code, errors = start_with_labels(**{"deploy.kernels": kernels.rpartition("@")[2]})
    assert (code, "the server cannot start: no node accepts it" in errors) == (7, True), errors


def test_missing_namespace_is_reported(cluster: PrivateCluster, home: Home) -> None:
    code, _, errors = deploy(cluster, home, *up_words("nowhere", *HOST_PATH))
    assert code == 4
    assert "kubectl --namespace default create namespace nowhere" in errors


def test_unbound_pvc_is_reported(cluster: PrivateCluster, home: Home, namespace: str) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models", "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    cluster.kubectl("apply", "--filename", "-", stdin=json.dumps(claim))
    code, _, errors = deploy(cluster, home, *up_words(namespace, *CLAIM))
    assert code == 7
    assert "persistentvolumeclaim: not bound" in errors
    assert "unbound immediate PersistentVolumeClaims" in errors


def test_image_pull_failure_is_reported(
    cluster: PrivateCluster, namespace: str, command: Callable[..., Running]
) -> None:
    starting = command(*up_words(namespace, *HOST_PATH))
    waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{IMAGE}"'}
    report_container(cluster, namespace, {"waiting": waiting})
    end_pods_until(lambda: starting.over, cluster, namespace)
    code, _, errors = starting.wait()
    assert code == 7
    assert f'cannot pull its image: Back-off pulling image "{IMAGE}"' in errors


def test_volume_mount_failure_is_reported(
    cluster: PrivateCluster, namespace: str, command: Callable[..., Running]
) -> None:
    """The event is that of kubelet 1.20 for a missing directory."""
    starting = command(*up_words(namespace, *HOST_PATH))
    pod = the_pod(cluster, namespace)["metadata"]
    pod_reference = {"kind": "Pod", "namespace": namespace, "name": pod["name"], "uid": pod["uid"]}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "boxed.1", "namespace": namespace},
        "involvedObject": pod_reference,
        "type": "Warning",
        "reason": "FailedMount",
        "message": "MountVolume.SetUp failed for volume models: hostPath: /srv/models is not a directory",
    }
    cluster.kubectl("create", "--filename", "-", stdin=json.dumps(event))
    end_pods_until(lambda: starting.over, cluster, namespace)
    code, _, errors = starting.wait()
    assert code == 7
    assert "cannot mount a volume" in errors
    assert "/srv/models is not a directory" in errors


def test_crash_loop_counts_as_exited_server(
    cluster: PrivateCluster, namespace: str, command: Callable[..., Running]
) -> None:
    starting = command(*up_words(namespace, *HOST_PATH))
    the_pod(cluster, namespace)
    last = {"exitCode": 1, "reason": "Error", "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:00Z"}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    report_container(cluster, namespace, waiting, restartCount=1, lastState={"terminated": last})
    end_pods_until(lambda: starting.over, cluster, namespace)
    code, _, errors = starting.wait()
    assert code == 7
    assert "exited while" in errors


def test_lifecycle_of_pending_server_keeps_key_secret(
    cluster: PrivateCluster, home: Home, namespace: str, command: Callable[..., Running]
) -> None:
    """`status` lists the server, a second start is rejected, and `down` removes it; only the Secret holds the key."""
    starting = command(*up_words(namespace, *HOST_PATH, "--keep-failed", minutes=0))
    report_container(cluster, namespace, {"waiting": {"reason": "ErrImagePull", "message": "not found"}})
    code, _, errors = starting.wait()
    assert code == 7
    assert "`boxed` is kept" in errors

    (entry,) = listed(cluster, home)
    assert (entry["name"], entry["status"]) == ("boxed", "pending")
    assert "cannot pull its image: not found" in entry["detail"]
    assert entry["url"] == f"http://boxed.{namespace}.svc:30010"
    assert deploy(cluster, home, "status", "boxed")[0] == 6

    other_home = Home(home.root.parent / "other-home")
    code, _, errors = deploy(cluster, other_home, *up_words(namespace, *HOST_PATH))
    assert code == 6
    assert f"`boxed` exists in namespace `{namespace}`" in errors

    objects = cluster.kubectl("get", "all,networkpolicies,events", "--namespace", namespace, "--output", "yaml")
    assert KEY not in objects
    (secret,) = cluster.objects("secrets", "deploy.name=boxed", namespace=namespace)
    assert list(secret["data"]) == ["config.yaml"]
    written = [path for path in home.root.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert not written

    stopping = command("down", "boxed")
    end_pods_until(lambda: stopping.over, cluster, namespace)
    assert stopping.wait()[0] == 0
    assert not listed(cluster, home)


def test_concurrent_starts_have_exactly_one_winner(
    cluster: PrivateCluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Independent homes start the same server, or its first replica."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.config))
    words = ("cpu-tiny", HOST_PATH[1], f"kubernetes.namespace={namespace}")
    single = render_artifacts(cluster_plan(*words)), Path()
    first = render_artifacts(cluster_plan(*words, "replicas=2")).replicas[0], Path("replica-1")
    barrier = Barrier(5)
    runtimes = [KubernetesRuntime(Home(tmp_path / str(number))) for number in range(barrier.parties)]

    def start(number: int) -> Unit | NameTakenError:
        artifacts, folder = (single, first)[number % 2]
        barrier.wait()
        try:
            return runtimes[number].start(artifacts, name="boxed", run_dir=tmp_path / str(number) / folder, secrets={})
        except NameTakenError as error:
            return error

    with ThreadPool(barrier.parties) as pool:
        results = pool.map(start, range(barrier.parties), chunksize=1)
    [winner] = [result for result in results if isinstance(result, Unit)]
    losers = [result for result in results if isinstance(result, NameTakenError)]
    assert {error.message for error in losers} == {f"`boxed` exists in namespace `{namespace}`"}
    created = cluster.get("deployments,services,networkpolicies", "--namespace", namespace, "--selector", "deploy.name")
    assert len(created) == 3
    assert {obj["metadata"]["annotations"]["deploy.run-dir"] for obj in created} == {winner.run_dir}

    [runtime] = [runtime_ for runtime_, end in zip(runtimes, results, strict=True) if end is winner]
    with ThreadPool(1) as pool:
        stopping = pool.apply_async(runtime.stop, (winner,), {"grace": 0})
        end_pods_until(stopping.ready, cluster, namespace)
        stopping.get()


def test_temporary_api_server_outage_is_tolerated(
    cluster: PrivateCluster, home: Home, namespace: str, command: Callable[..., Running]
) -> None:
    """A start that is interrupted during the outage names the command that removes its objects."""
    starting = command(*up_words(namespace, *HOST_PATH, minutes=600))
    report_container(cluster, namespace, {"waiting": {"reason": "ContainerCreating"}})
    starting.wait_for("waiting for its image and volumes on node-a")
    cluster.programs["kube-apiserver"].send(signal.SIGSTOP)  # it hangs; below, it is gone
    assert "retrying for 5 min" in starting.wait_for("the kubeconfig's current context does not answer")
    code, _, errors = deploy(cluster, home, "status")
    assert (code, "the kubeconfig's current context does not answer" in errors) == (4, True)
    cluster.programs["kube-apiserver"].send(signal.SIGCONT)
    starting.wait_for("the cluster answers again")
    cluster.end_api()
    starting.wait_for("does not answer")
    code, errors = starting.end(signal.SIGINT)
    assert code == 130
    assert "warning: `boxed` may still run: the cluster of the kubeconfig's current context does not answer" in errors
    assert "hint: `deploy down boxed` stops it" in errors

    cluster.start_api()
    (pod,) = cluster.objects("pods", namespace=namespace)
    cluster.say(pod["metadata"]["name"], namespace, phase="Failed", reason="Evicted", message="low on memory")
    wait_for(lambda: "was evicted from node-a: low on memory" in listed(cluster, home)[0]["detail"])
    stopping = command("down", "boxed")
    end_pods_until(lambda: stopping.over, cluster, namespace)
    assert stopping.wait()[0] == 0


@pytest.mark.parametrize("after", ["started", "placed"])
def test_interrupted_start_leaves_no_objects(
    cluster: PrivateCluster, namespace: str, command: Callable[..., Running], after: str
) -> None:
    starting = command(*up_words(namespace, *HOST_PATH, minutes=600))
    if after == "placed":
        the_pod(cluster, namespace)
    else:
        wait_for(lambda: bool(cluster.objects("deployments", "deploy.name", namespace=namespace)))
    starting.send(signal.SIGINT)
    end_pods_until(lambda: starting.over, cluster, namespace)
    assert starting.wait()[0] == 130


def test_unreachable_cluster_is_reported(cluster: PrivateCluster, home: Home, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(cluster.config.read_text().replace(f":{cluster.port}", ":1"))
    unreachable = PrivateCluster(folder=tmp_path)
    code, _, errors = deploy(unreachable, home, *up_words("default", *HOST_PATH))
    assert code == 4
    assert "the cluster of the kubeconfig's current context does not answer" in errors


def end_pods_until(over: Callable[[], bool], cluster: PrivateCluster, namespace: str) -> None:
    """Remove terminating pods, as their kubelet would, until the condition is true."""

    def end_pods() -> bool:
        for pod in cluster.objects("pods", namespace=namespace):
            if pod["metadata"].get("deletionTimestamp"):
                cluster.remove(pod["metadata"]["name"], namespace)
        return over()

    wait_for(end_pods, interval=0.5)
