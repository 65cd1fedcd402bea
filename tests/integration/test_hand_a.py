"""By hand: each rank killed and hung, with watch. Not committed."""
import json, os, signal, time, shutil, subprocess
from pathlib import Path
import pytest
from command_line import CommandLine
from cpu_server import CpuEngine
from loopback_ssh import needs_sshd
from slurm_cluster import SlurmCluster
from waits import wait_for
from orchestrator.core.paths import Home
from test_slurm_nodes import KEY, NAME, main_process, rank_record, scheduler, status, up, deploy  # noqa: F401
import test_docker_ranks as dr
from test_docker_ranks import hosts  # noqa: F401
from standin import engine_image, packages_of

OUT = Path("/tmp/notes/s51/awork/hand.txt")
OUT.parent.mkdir(exist_ok=True)
pytestmark = [pytest.mark.engine, pytest.mark.slow]

def note(text):
    with OUT.open("a") as f: f.write(f"{time.strftime('%H:%M:%S')} {text}\n")

@pytest.mark.timeout(1500)
def test_slurm_each(deploy: CommandLine, slurm_cluster: SlurmCluster) -> None:
    t = time.monotonic()
    up(deploy, "restart_policy.unhealthy_after=30", "restart_policy.max_attempts=20", "timeouts.progress_deadline=600")
    note(f"slurm real up after {time.monotonic()-t:.1f} s")
    with deploy.running("watch", NAME, "--json") as watch:
        note(f"slurm {watch.line().strip()}")
        for what in ("kill main 1", "kill main 0", "kill sched 1", "kill sched 0", "stop sched 1", "stop sched 0"):
            how, which, rank = what.split()
            run = Path(status(deploy)["run_dir"])
            rec = rank_record(run, int(rank))
            pid = scheduler(rec) if which == "sched" else main_process(rec)
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            detail, events = "", []
            while True:
                event = json.loads(watch.line())
                events.append(f"+{time.monotonic()-began:.1f}s {event['event']}: {event['detail']}")
                if event["event"] in ("died", "unhealthy") and not detail:
                    detail = str({k: status(deploy)[k] for k in ("status", "health", "detail") if k in status(deploy)})
                if event["event"] in ("restarted", "recovered", "gave-up", "restart-failed"):
                    break
            note(f"slurm {what}: status {detail}")
            for e in events: note(f"   {e}")
            code = deploy.run("status", NAME).returncode
            smoke = deploy.run("smoke", NAME).returncode
            note(f"   status {code}, smoke {smoke}")
        # a lost node
        run = status(deploy)["run_dir"]
    slurm_cluster.lose_node("n1")
    wait_for(lambda: status(deploy)["status"] == "exited")
    note(f"slurm lost node n1: {status(deploy)['detail']}")
    wait_for(lambda: not slurm_cluster.queue())
    slurm_cluster.start_node("n1")
    slurm_cluster.wait_for_nodes()
    r = deploy.run("restart", NAME)
    note(f"slurm restart after lost node: {r.returncode}")
    # busy down
    d = deploy.run("down", NAME)
    note(f"slurm down {d.returncode}")

@needs_sshd
@pytest.mark.docker
@pytest.mark.timeout(1500)
def test_docker_each(engine_home: Home, tiny_model: Path, hosts, docker_daemon, cpu_environment) -> None:
    deploy = CommandLine(engine_home, {"THE_KEY": dr.KEY})
    first, second = hosts
    both = ["--host", first, "--host", second]
    image = engine_image(packages_of(cpu_environment.python), docker=docker_daemon.program)
    more = [w for s in ("restart_policy.unhealthy_after=30", "restart_policy.max_attempts=20", "timeouts.progress_deadline=600") for w in ("--set", s)]
    t = time.monotonic()
    started = deploy.run(*dr.up_words(image, *more), *both)
    assert started.returncode == 0, started.stderr
    note(f"ssh real up after {time.monotonic()-t:.1f} s")
    def sched(c):
        return dr.scheduler(c)
    def main(c):
        listed = dr.docker("top", c, "-eo", "pid,args").splitlines()
        return int([l.split()[0] for l in listed if "launch_server" in l and "docker-init" not in l and "sh -c" not in l][0])
    try:
        with deploy.running("watch", dr.NAME, "--json") as watch:
            note(f"ssh {watch.line().strip()}")
            for what in ("kill main 1", "kill main 0", "kill sched 1", "stop sched 1", "stop sched 0"):
                how, which, rank = what.split()
                c = (dr.RANK_0, dr.RANK_1)[int(rank)]
                pid = sched(c) if which == "sched" else main(c)
                began = time.monotonic()
                os.kill(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
                detail, events = "", []
                while True:
                    event = json.loads(watch.line())
                    events.append(f"+{time.monotonic()-began:.1f}s {event['event']}: {event['detail']}")
                    if event["event"] in ("died", "unhealthy") and not detail:
                        s = dr.status(deploy, first); detail = str({k: s[k] for k in ("status", "health", "detail") if k in s})
                    if event["event"] in ("restarted", "recovered", "gave-up", "restart-failed"):
                        break
                note(f"ssh {what}: status {detail}")
                for e in events: note(f"   {e}")
                note(f"   status {deploy.run('status', dr.NAME, '--host', first).returncode}, smoke {deploy.run('smoke', dr.NAME, '--host', first).returncode}")
        d = deploy.run("down", dr.NAME, "--host", first)
        note(f"ssh down {d.returncode}")
    finally:
        dr.docker("rm", "--force", dr.RANK_0, dr.RANK_1)
