"""What `deploy up` adds to a start in a cluster: the same manifest by `kubectl apply`, side by side in one run.

    python tests/benchmarks/cluster_overhead.py [ROUNDS [PAUSE]]

By hand: `kubectl apply --server-side` of the file that `deploy render` writes; how long until the server's `/health`,
asked every 0.05 s at the address of its pod, answers 200, and until `kubectl rollout status` says so, which waits for
the kubelet's next look, up to 10 s later. `deploy up`: from the command's first moment to the line that says ready. The
two alternate, on a real Kubernetes with this machine as its node (as root; `make kubernetes` builds it). The server is
tests/attack/scripted_engine.py, which takes PAUSE seconds (1) for each of its stages.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

import httpx
from own_cluster import OwnCluster, own_cluster
from own_node import own_node
from patience import wait_for
from standin import add_file

ENGINE = Path(__file__).parents[1] / "attack/scripted_engine.py"
IMAGE, PORT, NAME = "deploy.test/scripted:1", 21878, "cpu-tiny"
DEPLOY = [sys.executable, "-m", "orchestrator"]


def fill(tar: tarfile.TarFile) -> None:
    """An image whose Python is the scripted engine."""
    add_file(tar, "/opt/scripted_engine.py", ENGINE.read_bytes())
    script = b'#!/bin/sh\nexec /usr/bin/python3 /opt/scripted_engine.py "$@"\n'
    add_file(tar, "/usr/local/bin/python3", script, mode=0o755)


def words(models: str) -> list[str]:
    settings = ["kubernetes.image_on_node=true", f"kubernetes.weights.host_path={models}", f"server.port={PORT}"]
    return [NAME, "--on", "kubernetes", *(w for each in settings for w in ("--set", each))]


def by_hand(cluster: OwnCluster, manifest: Path) -> tuple[float, float]:
    """Seconds to a 200 from /health, and to the end of `kubectl rollout status`."""
    wait_for(lambda: not cluster.get("pods"))  # an address of the one before is no address of this one
    start = time.perf_counter()
    kubectl = ["kubectl", "--kubeconfig", str(cluster.config)]
    nowhere = subprocess.DEVNULL
    subprocess.run(
        [*kubectl, "apply", "--server-side", "-f", str(manifest)], stdout=nowhere, stderr=nowhere, check=False
    )
    selector = f"deploy.name={NAME}"
    with subprocess.Popen([*kubectl, "rollout", "status", f"deployment/deploy-{NAME}"], stdout=nowhere) as watch:
        address = ""
        while not address:
            address = next((pod["status"].get("podIP", "") for pod in cluster.get("pods", "-l", selector)), "")
        while not answers(f"http://{address}:{PORT}/health"):
            time.sleep(0.05)
        serves = time.perf_counter() - start
        watch.wait()
    rolled_out = time.perf_counter() - start
    cluster.kubectl("delete", "deployments,services,networkpolicies", "-l", selector)
    cluster.kubectl("delete", "pods", "-l", selector, "--grace-period=1")
    return serves, rolled_out


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=1, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def by_deploy(cluster: OwnCluster, models: str, env: dict[str, str]) -> float:
    """Seconds to ready."""
    wait_for(lambda: not cluster.get("pods"))
    start, ready = time.perf_counter(), 0.0
    argv = [*DEPLOY, "up", *words(models), "--image", IMAGE]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("ready after"):
                ready = time.perf_counter() - start
                process.send_signal(signal.SIGINT)  # the smoke test is not the question
    assert ready, "".join(said)
    return ready


def main(rounds: int, pause: float) -> None:
    with own_cluster() as cluster, own_node(cluster) as node, tempfile.TemporaryDirectory() as folder:
        node.load(IMAGE, fill, env=(f"SCRIPTED_PAUSE={pause}",))
        env = {**os.environ, "DEPLOY_HOME": f"{folder}/home", "KUBECONFIG": str(cluster.config)}
        env |= {"PYTHONPYCACHEPREFIX": f"{folder}/compiled", "PYTHONDONTWRITEBYTECODE": ""}  # as once installed
        subprocess.run(
            [*DEPLOY, "render", *words(folder), "--image", IMAGE, "--output", f"{folder}/out"], env=env, check=True
        )
        manifest = Path(folder, "out/kubernetes.yaml")
        by_deploy(cluster, folder, env)  # what is read for the first time is read for both
        taken = [(*by_hand(cluster, manifest), by_deploy(cluster, folder, env)) for _ in range(rounds)]
        version = json.loads(cluster.kubectl("get", "--raw", "/version"))["gitVersion"]
    serves, rolled_out, ours = (statistics.median(each) for each in zip(*taken, strict=True))
    print(f"Kubernetes {version}, {rounds} rounds: {[[round(each, 1) for each in one] for one in taken]}")
    print(f"kubectl apply, /health asked every 0.05 s   {serves:6.2f} s")
    print(f"kubectl apply, kubectl rollout status       {rolled_out:6.2f} s")
    print(f"deploy up, to ready                         {ours:6.2f} s")
    print(f"ratio                                       {ours / serves:6.3f}, {ours / rolled_out:.3f}")


if __name__ == "__main__":
    numbers = [float(word) for word in sys.argv[1:]]
    main(int(numbers[0]) if numbers else 5, numbers[1] if len(numbers) > 1 else 1.0)
