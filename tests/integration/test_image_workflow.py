"""Validate the workflows, and run the steps of the image workflow with stubs for the programs of a runner."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from orchestrator.cli.profiles import command as profiles
from orchestrator.core.paths import data_root

WORKFLOWS = data_root() / ".github/workflows"
WORKFLOW = WORKFLOWS / "images.yml"
UNPACKED_BYTES = 75_300_000_000  # an sglang image for ROCm (sgl-project/sglang#22037)
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


def validate(workflow: Path) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(workflow)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def steps() -> dict[str, str]:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    return {step["name"]: step["run"] for step in jobs["image"]["steps"] if "name" in step}


def make_room(tmp_path: Path, *, on_root: int, on_mnt: int) -> tuple["subprocess.CompletedProcess[str]", str]:
    """Run the step with this free space in GiB; return its result and the new configuration of Docker."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in STUBS.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    daemon = tmp_path / "daemon.json"
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", "RUNNER_LOG": str(tmp_path / "log")}
    environ |= {"DAEMON_JSON": str(daemon), "NEEDED": "96", "ON_ROOT": str(on_root), "ON_MNT": str(on_mnt)}
    script = ["bash", "-eo", "pipefail", "-c", steps()["Make room"]]
    done = subprocess.run(script, env=environ, capture_output=True, text=True, check=False)
    return done, daemon.read_text() if daemon.exists() else ""


def test_runner_with_enough_space_is_unchanged(tmp_path: Path) -> None:
    done, daemon = make_room(tmp_path, on_root=112, on_mnt=97)
    assert (done.returncode, daemon) == (0, "")
    assert "the image needs 96 GiB, 112 are free below /var/lib/docker" in done.stdout


def test_docker_data_moves_to_larger_disk(tmp_path: Path) -> None:
    done, daemon = make_room(tmp_path, on_root=72, on_mnt=98)
    assert done.returncode == 0, done.stderr
    assert json.loads(daemon)["data-root"] == "/mnt/docker"
    assert "98 are free below /mnt/docker" in done.stdout


def test_runner_without_space_fails_before_pulling(tmp_path: Path) -> None:
    done, _ = make_room(tmp_path, on_root=72, on_mnt=82)
    assert done.returncode == 1
    assert "name one with 96 GiB in the variable IMAGE_RUNNER" in done.stdout


def test_matrix_disk_size_exceeds_unpacked_image(capsys: pytest.CaptureFixture[str]) -> None:
    profiles(format_="github-matrix")
    entries = json.loads(capsys.readouterr().out)["include"]
    needed = {entry["profile"]: entry["disk_gib"] for entry in entries}["mi355x-tp8"]
    assert needed << 30 > UNPACKED_BYTES


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.name)
def test_workflow_is_valid(path: Path) -> None:
    """The schema is that of schemastore.org for GitHub workflows, which check-jsonschema includes."""
    done = validate(path)
    assert done.returncode == 0, done.stdout


def test_invalid_workflow_is_rejected(tmp_path: Path) -> None:
    changed = tmp_path / "images.yml"
    changed.write_text(WORKFLOW.read_text().replace("runs-on: ubuntu-latest", "run-on: ubuntu-latest", 1))
    assert validate(changed).returncode == 1


def test_workflow_runs_makefile_targets() -> None:
    workflow = yaml.safe_load((WORKFLOWS / "tests.yml").read_text())
    quick, parts = (workflow["jobs"][name] for name in ("quick", "real-parts"))
    assert [step["run"] for step in quick["steps"] if "run" in step] == ["make check", "make unit", "make golden"]
    assert quick["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    on_push, on_pull_request = "github.event_name == 'push'", "github.event_name == 'pull_request'"
    assert (quick["if"], parts["if"]) == (on_push, on_push.replace("==", "!="))
    assert {step["run"]: step["if"] for step in parts["steps"] if "if" in step} == {
        "make test": on_pull_request,
        **dict.fromkeys(("make kubernetes", ".ci/run"), on_pull_request.replace("==", "!=")),
    }
    assert "make test-all" in (data_root() / ".ci/run").read_text()
    for target in ("check", "unit", "golden", "test", "test-all", "kubernetes"):
        argv = ["make", "--dry-run", target]
        done = subprocess.run(argv, cwd=data_root(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_workflow_verifies_the_pushed_image() -> None:
    """`deploy build` adds the tuned table unless `--allow-untuned` is given."""
    build = steps()["Build with the tuned table, verify, push"]
    assert "deploy build --profile" in build
    assert "--allow-untuned" not in build
    assert "deploy up --profile $PROFILE --image $pushed" in build
