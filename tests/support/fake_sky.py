"""A fake SkyPilot `sky` that runs the files of `deploy render` on this machine; NODE is the home of the rented node.

    fake_sky.py launch --detach-run --cluster NAME --secret VARIABLE TASK.yaml
    fake_sky.py down NAME                     stop the task; any other command does nothing

SkyPilot 0.14.1 copies `file_mounts`, runs `setup` to its end and then `run`, in the background if detached.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import yaml


def launch(node: Path) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--detach-run", action="store_true", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--secret", action="append", default=[])
    parser.add_argument("task", type=Path)
    requested = parser.parse_args(sys.argv[2:])
    task = yaml.safe_load(requested.task.read_text())
    assert sorted(requested.secret) == sorted(task["secrets"])
    for destination, source in task.get("file_mounts", {}).items():
        target = Path(destination.replace("~", str(node), 1))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target, symlinks=True) if Path(source).is_dir() else shutil.copy(source, target)
    secrets = {name: os.environ[name] for name in requested.secret}
    network = {name: value for name, value in os.environ.items() if not name.startswith(("DEPLOY_", "PYTHON"))}
    environ = {**network, "HOME": str(node), "PATH": os.environ["NODE_PATH"], **secrets}
    subprocess.run(["bash", "-c", task["setup"]], env=environ, cwd=node, check=True)
    with (node / "sky.log").open("wb") as log:
        run = subprocess.Popen(
            ["bash", "-c", task["run"]],
            env=environ, cwd=node, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    (node / "sky.pid").write_text(str(run.pid))


def down(node: Path) -> None:
    """Release the node: end the job, and the server, which would end with a real node."""
    if (record := node / "sky.pid").exists():
        os.kill(int(record.read_text()), signal.SIGTERM)
        record.unlink()
        environ = {"HOME": str(node), "PATH": os.environ["PATH"]}
        subprocess.run([str(node / ".local/bin/deploy"), "down", sys.argv[2]], env=environ, check=True)


if __name__ == "__main__":
    {"launch": launch, "down": down}.get(sys.argv[1], lambda _: None)(Path(os.environ["NODE"]))
