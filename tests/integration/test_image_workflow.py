"""The workflow that builds the images: its own steps, run with programs that stand for a runner's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from orchestrator.cli.images import matrix
from orchestrator.core.paths import data_root

WORKFLOW = data_root() / ".github/workflows/images.yml"
_JQ = 'import json, sys; print(json.dumps(json.load(sys.stdin) | {"data-root": sys.argv[1]}))'
STUBS = {
    "sudo": 'exec "$@"',
    "rm": 'echo "rm $*" >> "$RUNNER_LOG"',
    "systemctl": 'echo "systemctl $*" >> "$RUNNER_LOG"',
    "mkdir": 'echo "mkdir $*" >> "$RUNNER_LOG"',
    "tee": 'cat > "$DAEMON_JSON"',
    "docker": "echo /var/lib/docker",
    "df": 'case "${!#}" in /mnt*) echo "Avail"; echo "  $ON_MNT";; *) echo "Avail"; echo "  $ON_ROOT";; esac',
    "jq": f"""exec {sys.executable} -c '{_JQ}' "$3" """,
}


def steps() -> dict[str, str]:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    return {step["name"]: step["run"] for step in jobs["image"]["steps"] if "name" in step}


def make_room(tmp_path: Path, *, on_root: int, on_mnt: int) -> tuple["subprocess.CompletedProcess[str]", str]:
    """The outcome on a runner with so many GiB free, and what Docker was told about its place."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in STUBS.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    daemon = tmp_path / "daemon.json"
    environ = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "NEEDED": "64",
        "ON_ROOT": str(on_root),
        "ON_MNT": str(on_mnt),
    }
    environ |= {"RUNNER_LOG": str(tmp_path / "log"), "DAEMON_JSON": str(daemon)}
    script = ["bash", "-eo", "pipefail", "-c", steps()["Make room"]]
    done = subprocess.run(script, env=environ, capture_output=True, text=True, check=False)
    return done, daemon.read_text() if daemon.exists() else ""


def test_a_runner_with_room_is_left_as_it_is(tmp_path: Path) -> None:
    done, daemon = make_room(tmp_path, on_root=80, on_mnt=65)
    assert (done.returncode, daemon) == (0, "")
    assert "the image needs 64 GiB, 80 are free below /var/lib/docker" in done.stdout


def test_docker_moves_to_the_disk_that_has_the_room(tmp_path: Path) -> None:
    done, daemon = make_room(tmp_path, on_root=40, on_mnt=66)
    assert done.returncode == 0, done.stderr
    assert json.loads(daemon)["data-root"] == "/mnt/docker"
    assert "66 are free below /mnt/docker" in done.stdout


def test_a_runner_without_room_ends_before_anything_is_pulled(tmp_path: Path) -> None:
    done, _ = make_room(tmp_path, on_root=40, on_mnt=50)
    assert done.returncode == 1
    assert "name one with 64 GiB in the variable IMAGE_RUNNER" in done.stdout


def test_the_matrix_says_how_much_room_an_image_needs(capsys: pytest.CaptureFixture[str]) -> None:
    matrix()
    entries = json.loads(capsys.readouterr().out)["include"]
    assert {entry["profile"]: entry["disk_gib"] for entry in entries}["mi355x-tp8"] == 64


def test_the_image_that_is_built_is_the_one_that_is_named() -> None:
    """The table belongs to every `deploy build` that is not told to do without."""
    build = steps()["Build with the tuned table, prove, push"]
    assert "deploy build --profile" in build
    assert "--accept-untuned" not in build
    assert "deploy up --profile $PROFILE --image $pushed" in build
