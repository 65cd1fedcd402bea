"""Measure the time of `deploy status` with many servers: containers, pods or processes.

    python tests/benchmarks/status_many.py {containers|pods|processes} [SERVERS] [ROUNDS]

The containers run `sleep` in the test image of the integration tests, with the labels of servers; they need a Docker
engine. The processes run `sleep` below supervisors. The pods have the status `Running` on a fake node of a real API
server (`make kubernetes` builds it). Everything is removed at the end.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "samples"))

from cluster_samples import cluster_plan
from cpu_server import CpuEngine
from private_cluster import private_cluster
from rocm_image import base_image
from waits import wait_for
from wheels import wheel

from orchestrator.core.paths import Home
from orchestrator.planner.planning import render_artifacts
from orchestrator.render.artifacts import Artifacts, RenderedFile
from orchestrator.runs.run_dir import open_run
from orchestrator.runtimes.kubernetes.manifests import Manifest, objects_of
from orchestrator.runtimes.labels import RUN_DIR
from orchestrator.runtimes.process.runtime import ProcessRuntime

PREFIX = "deploy-bench-status"


def labels(number: int) -> list[str]:
    values = {
        "deploy.name": f"{PREFIX}-{number}",
        "deploy.plan": "0" * 64,
        "deploy.profile": "cpu-tiny",
        "deploy.run-dir": "/nonexistent",
        "deploy.starter": "none",
        "deploy.url": f"http://127.0.0.1:{1000 + number}",
        "deploy.version": "0",
    }
    return [word for name, value in values.items() for word in ("--label", f"{name}={value}")]


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout


def seconds(argv: list[str], rounds: int, env: dict[str, str] | None = None) -> float:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run(argv, check=True, capture_output=True, env=env)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def status_seconds(home: str, rounds: int, servers: int) -> float:
    argv, env = [sys.executable, "-m", "orchestrator", "status"], {**os.environ, "DEPLOY_HOME": home}
    env |= {"PYTHONPYCACHEPREFIX": f"{home}/compiled", "PYTHONDONTWRITEBYTECODE": ""}  # as installed
    status = subprocess.run(argv, capture_output=True, text=True, check=True, env=env)
    assert sum(line.startswith(PREFIX) for line in status.stdout.splitlines()) == servers
    return seconds(argv, rounds, env)


def of_containers(servers: int, rounds: int) -> None:
    image = base_image(wheel("0.5.14"))
    names = [f"{PREFIX}-{number}" for number in range(servers)]
    try:
        for number, name in enumerate(names):
            docker("run", "--detach", "--init", "--name", name, *labels(number), image, "sleep", "600")
        with tempfile.TemporaryDirectory() as home:
            taken = status_seconds(home, rounds, servers)
        print(f"docker ps of {servers:3} containers      {seconds(['docker', 'ps'], rounds):6.2f} s")
        print(f"deploy status of {servers:3} containers  {taken:6.2f} s")
    finally:
        subprocess.run(["docker", "rm", "--force", *names], capture_output=True, check=False)


def of_processes(servers: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = CpuEngine(home=Home(Path(folder)), python=Path(sys.executable))
        artifacts = engine.artifacts(argv=("sleep", "600"))
        runtime = ProcessRuntime(engine.home)
        print(f"deploy status of no server        {status_seconds(folder, rounds, 0):6.2f} s")
        try:
            for number in range(servers):
                engine.start(f"{PREFIX}-{number}", artifacts=artifacts)
            print(f"deploy status of {servers:3} processes   {status_seconds(folder, rounds, servers):6.2f} s")
            for handle in runtime.find():
                os.kill(int(handle.runtime_id.split("/")[1]), signal.SIGKILL)
            time.sleep(1)
            print(f"  their supervisors killed      {status_seconds(folder, rounds, servers):6.2f} s")
        finally:
            for handle in runtime.find():
                runtime.stop(handle, grace=0)


def started(home: str, name: str, artifacts: Artifacts) -> list[Manifest]:
    """Return the objects of a server, as if it had been started from this home."""
    run = open_run(Home(Path(home)), name, artifacts.plan)
    run.write([RenderedFile(path="plan.json", content=artifacts.plan.to_json().encode(), executable=False)])
    objects = [obj for obj in objects_of(artifacts, "x", name) if obj["apiVersion"] != "policy/v1"]  # too new for it
    for obj in objects:
        obj["metadata"]["annotations"][RUN_DIR] = str(run.path)
    return objects


def of_pods(servers: int, rounds: int) -> None:
    settings = ("kubernetes.image_pull_policy=Never", "kubernetes.weights.host_path=/srv")
    artifacts = render_artifacts(cluster_plan("cpu-tiny", *settings))
    with private_cluster() as cluster, tempfile.TemporaryDirectory() as folder:
        cluster.node("node-a", cpu="1000")
        items = [obj for number in range(servers) for obj in started(folder, f"{PREFIX}-{number}", artifacts)]
        cluster.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        wait_for(lambda: ["nodeName" in pod["spec"] for pod in cluster.objects("pods")] == [True] * servers)
        running = {"name": "server", "image": "x", "imageID": "", "ready": True, "restartCount": 0}
        running["state"] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        for pod in cluster.objects("pods"):
            cluster.say(pod["metadata"]["name"], phase="Running", containerStatuses=[running])
        os.environ["KUBECONFIG"] = str(cluster.config)
        listed = seconds(["kubectl", "get", "deployments,pods", "-o", "json"], rounds)
        print(f"kubectl get of {servers:3} servers       {listed:6.2f} s")
        print(f"deploy status of {servers:3} servers     {status_seconds(folder, rounds, servers):6.2f} s")


if __name__ == "__main__":
    kind, *numbers = sys.argv[1:]
    measure = {"containers": of_containers, "pods": of_pods, "processes": of_processes}[kind]
    measure(*([int(word) for word in numbers] + [50, 5][len(numbers) :]))
