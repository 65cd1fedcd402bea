"""Run replicas of the scripted engine, and a pair of real sglang, with the real gateway in pods of a real node.

No kube-proxy runs: a rule of this machine routes pods to the API server.
"""

import json
import re
import subprocess
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest
from cluster_server import ClusterEngine
from command_line import CommandLine
from cpu_server import CpuEngine
from ports import free_port
from private_cluster import PrivateCluster
from private_node import PACKAGES, UNCHECKED, PrivateNode, add_engine, iptables_rule, models_with
from rocm_image import add_file, debian_python, packages_of, scripted_sources
from steady_load import client_of, load
from waits import TIMEOUT, wait_for

from orchestrator.core.console import Progress
from orchestrator.core.paths import Home, data_root
from orchestrator.engine.gateway import IMAGE_DIR, IN_IMAGE_PACKAGES, LAUNCHER, REQUIREMENTS
from orchestrator.hosts.venvs.venv import ensure_venv

pytestmark = [pytest.mark.engine, pytest.mark.slow]
NAME = "pair"
TOO_LONG = 20_000  # tokens, a millisecond each: longer than `timeouts.termination_grace`
KEY = "sk-0f-several-p0ds"
IMAGE = "deploy.test/gateway:1"
REAL_IMAGE = "deploy.test/pair:1"
PAIR_CHECKS = ("pair: KV cache transferred", "pair: answer of one server", "pair: network")
ACCOUNT = f"system:serviceaccount:default:{NAME}"
KINDS = "deployments,replicasets,services,configmaps,secrets,networkpolicies,serviceaccounts,roles,rolebindings"
_LOCAL = Path("/proc/sys/net/ipv4/conf/all/route_localnet")


@pytest.fixture(scope="module")
def image(cluster_of_tests: ClusterEngine) -> str:
    """Load an image with servers and the gateway, as `deploy build` creates it, into the node."""

    def fill(tar: tarfile.TarFile) -> None:
        python = f"/usr/local/lib/{debian_python()}/dist-packages/sglang"
        for name, content in scripted_sources().items():
            add_file(tar, f"{python}/{name}", content)
        add_gateway(tar)

    cluster_of_tests.node.load(IMAGE, fill)
    return IMAGE


@pytest.fixture
def real_models(cluster_engine: ClusterEngine, cpu_engine: CpuEngine) -> Path:
    """Load `REAL_IMAGE` into the node, and return the directory for /models of its pods."""

    def fill(tar: tarfile.TarFile) -> None:
        add_engine(tar)
        add_gateway(tar)

    cluster_engine.node.load(REAL_IMAGE, fill)
    packages = {PACKAGES: packages_of(cpu_engine.python)}
    return models_with(cluster_engine.node, "roles", **packages, tiny=cpu_engine.home.models / "tiny")


def add_gateway(tar: tarfile.TarFile) -> None:
    requirements = data_root() / "images" / REQUIREMENTS
    python = ensure_venv(requirements, home=Home.from_environment(), progress=Progress()).python
    add_file(tar, f"{IMAGE_DIR}/{LAUNCHER}", (data_root() / "images" / LAUNCHER).read_bytes())
    tar.add(packages_of(python), arcname=IN_IMAGE_PACKAGES.lstrip("/"))


@pytest.fixture
def deploy(cluster_engine: ClusterEngine) -> Iterator[CommandLine]:
    """Return `deploy` in a cluster whose pods reach its API server; check that nothing remains in it."""
    line = CommandLine(cluster_engine.home, {"PAIR_KEY": KEY})
    with api_reachable(cluster_engine):
        yield line
        line.run("down", NAME)
    assert not cluster_engine.cluster.get(KINDS, "--selector", f"deploy.name={NAME}")


@contextmanager
def api_reachable(engine: ClusterEngine) -> Iterator[None]:
    """Route pods to the API server, as kube-proxy does for the Service `kubernetes`, and to each other."""
    found = engine.cluster.objects("services")
    services = {service["metadata"]["name"]: service["spec"]["clusterIP"] for service in found}
    to_api = ["--source", engine.node.pods]  # another test run may have a cluster with these addresses
    to_api += ["--protocol", "tcp", "--destination", services["kubernetes"], "--dport", "443"]
    to_api += ["--jump", "DNAT", "--to-destination", f"127.0.0.1:{engine.cluster.port}"]
    before = _LOCAL.read_text()
    _LOCAL.write_text("1")
    with ExitStack() as last:
        last.callback(_LOCAL.write_text, before)
        last.enter_context(iptables_rule("nat", "PREROUTING", *to_api))
        last.enter_context(engine.node.joined_pods())
        yield


def up_words(node: PrivateNode, image: str, port: int, profile: str = "cpu-tiny") -> tuple[str, ...]:
    (node.folder / "checkpoints/tiny").mkdir(parents=True, exist_ok=True)
    settings = (
        *(["replicas=2"] if profile == "cpu-tiny" else []),
        f"server.port={port}",
        "kubernetes.image_pull_policy=Never",
        "kubernetes.cpu=0.1",
        "kubernetes.memory=1Gi",
        f"kubernetes.weights.host_path={node.folder / 'checkpoints'}",
        "server.api_key_env=PAIR_KEY",
        "model.questions=null",
        "timeouts.termination_grace=2",
        "restart_policy.unhealthy_after=12",
    )
    sets = [word for setting in settings for word in ("--set", setting)]
    return ("up", profile, "--name", NAME, "--runtime", "kubernetes", "--image", image, *sets)


def pods(cluster: PrivateCluster, *units: str) -> list[Mapping[str, Any]]:
    return cluster.objects("pods", f"deploy.name={NAME},deploy.unit in ({','.join(units)})")


def stays(pod: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


def wait_until_healthy(deploy: CommandLine, cluster: PrivateCluster, unit: str) -> None:
    """Wait until the pod of a unit is ready, and then until `status` reports the whole server as healthy."""

    def is_ready() -> bool:
        statuses = [status for pod in pods(cluster, unit) for status in pod["status"].get("containerStatuses", ())]
        return bool(statuses) and all(status["ready"] for status in statuses)

    wait_for(is_ready, interval=1)
    wait_for(lambda: deploy.run("status", NAME).returncode == 0)


def check_logs_and_rights(deploy: CommandLine) -> None:
    log = deploy.run("logs", NAME).stdout
    assert all(f"==> {folder}server.log <==" in log for folder in ("", "replica-1/", "replica-2/"))
    rights = {
        "list pods": "yes",
        "watch pods": "yes",
        "list secrets": "no",
        "list pods --namespace kube-system": "no",
        "delete pods": "no",
    }
    for arguments, answer in rights.items():
        argv = ["kubectl", "auth", "can-i", *arguments.split(), "--as", ACCOUNT]
        assert subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip() == answer, arguments


def update_and_roll_back(deploy: CommandLine, words: tuple[str, ...]) -> str:
    """Update one replica, then the other, then to a broken plan, and roll back; return the output."""
    new, broken = ("--set", "env.SCRIPTED_STEP=0.001", "--replace"), ("--set", "env.SCRIPTED_BROKEN=1", "--replace")
    steps: tuple[tuple[tuple[str, ...], int, str, tuple[int, ...]], ...] = (
        ((*words, *new, "--max-replicas", "1"), 0, "1 of 2 replicas have this plan, 1 has another plan", (1,)),
        ((*words, *new), 0, "replica 2 of 2 is updated", (2,)),
        ((*words, *broken), 7, "0 of 2 replicas have this plan, 1 has another plan, 1 is down", (1,)),
        (("rollback", NAME), 0, "replica 1 of 2: starting", (1,)),
    )
    output = ""
    for arguments, code, message, numbers in steps:
        done = deploy.run(*arguments)
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr
        assert [number for number in (1, 2) if f"started replica {number} of 2;" in done.stderr] == [*numbers]
        output += done.stderr
    return output


def hang_replica(deploy: CommandLine, cluster: PrivateCluster) -> str:
    """Stop a replica's detokenizer, which `/health` does not check; return the replica's detail after its restart."""

    def restarts() -> int:
        (pod,) = pods(cluster, "replica-2")
        return int(pod["status"]["containerStatuses"][0]["restartCount"])

    (pod,) = pods(cluster, "replica-2")
    stop = "kill -STOP $(grep -l sglang::detokenize[r] /proc/[0-9]*/cmdline | cut -d/ -f3)"
    began = time.monotonic()
    cluster.kubectl("exec", pod["metadata"]["name"], "--", "sh", "-c", stop)
    check_logs_and_rights(deploy)
    wait_for(lambda: restarts() == 1, interval=1)
    restarted = time.monotonic() - began
    wait_until_healthy(deploy, cluster, "replica-2")
    print(f"restarted after {restarted:.0f} s, all serve after {time.monotonic() - began:.0f} s")
    (server,) = json.loads(deploy.run("status", NAME, "--json").stdout)
    return str(server["replicas"][1]["detail"])


def delete_pod_during_stream(cluster: PrivateCluster, port: int) -> tuple[list[str], str]:
    """Delete a pod during a stream longer than its grace period; return the events of the stream and the pod's log."""
    (pod,) = filter(stays, pods(cluster, "replica-1"))  # the previous pod may still be terminating
    name, body = pod["metadata"]["name"], {"model": "tiny", "prompt": "Once", "max_tokens": TOO_LONG, "stream": True}
    address = f"http://{pod['status']['podIP']}:{port}"
    with (
        subprocess.Popen(["kubectl", "logs", "--follow", name], stdout=subprocess.PIPE, text=True) as log,
        client_of(address, KEY) as client,
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        lines = answer.iter_lines()
        events = [next(lines)]
        cluster.kubectl("delete", "pod", name, "--wait=false")
        events += filter(None, lines)
        return events, log.communicate(timeout=TIMEOUT)[0]


def test_gateway_discovers_replicas_and_their_replacements(
    deploy: CommandLine, image: str, cluster_engine: ClusterEngine
) -> None:
    port, cluster = free_port(), cluster_engine.cluster
    words = up_words(cluster_engine.node, image, port)
    done = deploy.run(*words, "--json")
    assert done.returncode == 0, done.stderr
    smoke = json.loads(done.stdout)["smoke"]
    verdicts = {check["name"]: check["verdict"] for check in smoke["checks"]}
    assert smoke["ok"] is True
    for name in (
        "replica 1: served model",
        "replica 2: API key required",
        "gateway: replicas registered",
        "gateway: API key required",
    ):
        assert verdicts[name] == "passed"
    assert "is already up" in deploy.run(*words).stderr
    assert deploy.run("ask", NAME, "Once", "--tokens", "4").returncode == 0
    stderr = hang_replica(deploy, cluster)
    assert re.search("its livenessProbe failed: (rank 0 makes no progress: no response within|it timed out)", stderr), (
        stderr
    )

    before = {pod["metadata"]["name"] for pod in pods(cluster, "replica-1", "replica-2")}
    (gateway,) = pods(cluster, "gateway")
    statuses: list[int] = []
    with load(f"http://{gateway['status']['podIP']}:{port}", KEY, statuses, clients=2):
        wait_for(lambda: len(statuses) > 20)
        output = update_and_roll_back(deploy, words)
        events, log = delete_pod_during_stream(cluster, port)
        after = len(statuses)
        wait_for(lambda: len(statuses) > after + 20)
        wait_until_healthy(deploy, cluster, "replica-1")
    assert events[-1] == "data: [DONE]"
    assert len(events) < TOO_LONG
    assert re.search(r"^drained: \d+ requests? ended, 1 aborted after 2 s$", log, re.MULTILINE), log
    assert all(f"replica {number} of 2: draining" in output for number in (1, 2))
    assert "still routes" not in output
    assert Counter(statuses).keys() == {200}, (Counter(statuses), output)
    assert before.isdisjoint(pod["metadata"]["name"] for pod in pods(cluster, "replica-1", "replica-2") if stays(pod))

    down = deploy.run("down", NAME)
    assert down.returncode == 0, down.stderr
    assert not cluster.get(KINDS, "--selector", f"deploy.name={NAME}")
    assert KEY not in "".join(path.read_text() for path in deploy.home.runs.rglob("*") if path.is_file())


def test_roles_are_replaced_together(deploy: CommandLine, image: str, cluster_engine: ClusterEngine) -> None:
    """There are two prefill servers and one decode server."""
    words = up_words(cluster_engine.node, image, free_port(), "cpu-tiny-1p1d")
    done = deploy.run(*words, "--set", "layout.prefill.replicas=2", "--json")
    assert done.returncode == 0, done.stderr
    assert verdicts_of(done.stdout)["gateway: replicas registered"] == "passed"
    (server,) = json.loads(deploy.run("status", NAME, "--json").stdout)
    assert [replica["name"] for replica in server["replicas"]] == [
        f"{NAME}/{name}" for name in ("prefill-1", "prefill-2", "decode-1")
    ]
    again = deploy.run(*words, "--set", "layout.prefill.replicas=2", "--replace")
    assert again.returncode == 0, again.stderr
    assert all(f"started {name} 1 of" in again.stderr for name in ("prefill", "decode"))
    other = deploy.run(*words, "--set", "env.SCRIPTED_STEP=0.001", "--replace")
    assert "prefill and decode servers with different plans cannot work together" in other.stderr
    changed = deploy.run(*words, "--set", "layout.decode.replicas=2", "--replace")
    assert changed.returncode == 0, changed.stderr
    assert re.findall(r"started (\S+ \d) of|(\S+ \d) is removed", changed.stderr) == [
        ("decode 2", ""),
        ("", "prefill 2"),
    ]
    assert not [*filter(stays, pods(cluster_engine.cluster, "prefill-2"))]
    assert deploy.run("status", NAME).returncode == 0
    down = deploy.run("down", NAME)
    assert down.returncode == 0, down.stderr


@pytest.mark.skipif(find_library("ibverbs") is None, reason="only root installs libibverbs, which Mooncake loads")
def test_real_pair_in_pods_is_verified(deploy: CommandLine, real_models: Path, cluster_engine: ClusterEngine) -> None:
    """The pods transfer the KV cache with Mooncake over TCP."""
    settings = (
        f"server.port={free_port()}",
        "kubernetes.image_pull_policy=Never",
        "kubernetes.cpu=0.3",
        f"kubernetes.weights.host_path={real_models}",
        "server.api_key_env=PAIR_KEY",
        "timeouts.termination_grace=2",
        f"timeouts.progress_deadline={TIMEOUT}",
        f"env.{UNCHECKED}=1",  # `test_real_sglang_pod_full_lifecycle` has the check
    )
    sets = [word for setting in settings for word in ("--set", setting)]
    words = ("up", "cpu-tiny-1p1d", "--name", NAME, "--runtime", "kubernetes", "--image", REAL_IMAGE, *sets)
    done = deploy.run(*words, "--json")
    assert done.returncode == 0, done.stderr
    verdicts = verdicts_of(done.stdout)
    for name in (*PAIR_CHECKS, "correct answers", "gateway: replicas registered"):
        assert verdicts[name] == "passed", (name, done.stdout)
    assert "is already up" in deploy.run(*words).stderr

    down = deploy.run("down", NAME)
    assert down.returncode == 0, down.stderr
    assert not cluster_engine.cluster.get(KINDS, "--selector", f"deploy.name={NAME}")


def verdicts_of(output: str) -> dict[str, str]:
    """Return the verdicts of the checks in the output of `up --json` or `smoke --json`."""
    report = json.loads(output)
    return {check["name"]: check["verdict"] for check in report.get("smoke", report)["checks"]}


def test_pod_is_ready_only_after_first_sampled_response(
    deploy: CommandLine, image: str, cluster_engine: ClusterEngine
) -> None:
    """`/health` already answers 200, as sglang's does before the first request that samples."""
    cluster, models = cluster_engine.cluster, cluster_engine.node.folder / "checkpoints"
    words = up_words(cluster_engine.node, image, free_port())
    hanging = ("--set", "replicas=1", "--set", "env.SCRIPTED_SAMPLES=/models/samples")

    def container() -> Mapping[str, Any]:
        items = cluster.objects("pods", f"deploy.name={NAME}")
        return items[0]["status"].get("containerStatuses", [{}])[0] if items else {}

    def is_sampling() -> bool:
        search = "grep -l first_sampl[e] /proc/[0-9]*/cmdline"
        argv = ("kubectl", "exec", f"deployment/{NAME}", "--", "sh", "-c", search)
        runs = "running" in container().get("state", {})
        return runs and subprocess.run(argv, capture_output=True, check=False).returncode == 0 and "fired up" in log()

    def log() -> str:
        return deploy.run("logs", NAME).stdout

    with deploy.running(*words, *hanging) as up:
        wait_for(is_sampling)
        for _ in range(5):
            assert (container()["started"], container()["ready"]) == (False, False)
            time.sleep(1)
        assert "POST /v1/" not in log(), "the smoke test must not have begun"
        (models / "samples").touch()
        wait_for(lambda: container()["ready"], interval=0.5)
        code, _, errors = up.wait()
    assert code == 0, errors
