"""Rendered scripts run the same commands if any string of the plan is hostile.

The expected commands are those of a plan with a plain word in the same field, with the word replaced.
"""

import csv
import dataclasses
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import DeployError
from orchestrator.images.sources import image_sources
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load
from orchestrator.render.dockerfile import build_context, quoted
from orchestrator.render.scripts import server_script
from orchestrator.runtimes.docker.container import docker_run_files, render
from orchestrator.runtimes.supervisor.prepare import rendered

PROFILES = ("mi355x-tp4dp2", "b200-tp8", "cpu-tiny")
PLAIN = "plain-word"
HOSTILE = (
    "$(touch canary)`touch canary`;touch canary;|touch canary&touch canary",
    "' ; touch canary ; '",
    '" ; touch canary ; "',
    "-v a\tb *?~#!{a,b}<>$HOME,source=/etc \\",
    "a\ntouch canary\r\nRUN touch canary\n",
)
SAFE_FIELDS = {"profile", "name", "origin"}  # their schemas allow only characters that need no quotes
STUBS = {
    "docker": """for word; do printf '%s\\0' "$word"; done >"$SEEN"\n""",
    "python3": """for word; do printf '%s\\0' "$word"; done >"$SEEN"\n""",
    "getent": """echo x:x:44:\n""",
}


def leaves(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all strings in a plan."""
    if isinstance(value, str):
        yield path
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), (*path, field.name))
    elif isinstance(value, tuple):
        for at, item in enumerate(value):
            yield from leaves(item, (*path, at))


def with_leaf(value: Any, path: tuple[Any, ...], text: str) -> Any:  # noqa: ANN401 - a part of a plan
    """Return the plan with one string replaced; an absolute path stays one."""
    if not path:
        return f"/{text}" if value.startswith("/") else text
    step, *rest = path
    if isinstance(value, tuple):
        return (*value[:step], with_leaf(value[step], tuple(rest), text), *value[step + 1 :])
    return dataclasses.replace(value, **{step: with_leaf(getattr(value, step), tuple(rest), text)})


def cases() -> list[Any]:
    """Return each field that holds a string, in the first profile that has it."""
    result: dict[tuple[Any, ...], Any] = {}
    for profile in PROFILES:
        for overrides in ((), ("model.checkpoint.source=local", "model.checkpoint.path=/srv/weights")):
            plan = load(profile, overrides=overrides).plan
            for path in leaves(plan):
                field = (bool(overrides), *(step for step in path if not isinstance(step, int)))
                if field[-1] not in SAFE_FIELDS and (not overrides or field[-1] == "path"):
                    result.setdefault(field, pytest.param(plan, path, id=".".join(map(str, field))))
    return list(result.values())


def run(folder: Path, script: str) -> list[str]:
    """Run a script and return the argv of its `docker` or `python3`; check that nothing else happened."""
    folder.mkdir()
    file = folder / "script.sh"
    file.write_text(script)
    assert subprocess.run(["bash", "-n", str(file)], check=False).returncode == 0
    seen = folder / "seen"
    environ = {"PATH": f"{folder.parents[1]}/bin:{os.environ['PATH']}", "SEEN": str(seen), "DEPLOY_HOME": str(folder)}
    environ |= {"API_KEY_FILE": "/key.yaml", "PATCHED_SGLANG": "/copy"}  # a user of the script sets these
    subprocess.run(["sh", str(file)], cwd=folder, env=environ, check=True)
    assert {path.name for path in folder.iterdir()} == {"script.sh", "seen"}
    return os.fsdecode(seen.read_bytes()).replace(str(folder), "FOLDER").split("\0")[:-1]


def split_mounts(words: list[str]) -> list[str]:
    """Split mounts into their options, and drop words that hold a digest of the plan."""
    result = []
    for word in words:
        result += next(csv.reader([word], strict=True)) if word.startswith("type=") else [word]
    return [word for word in result if not word.startswith(("deploy.plan=", "source=deploy-cache-"))]


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """Create a `docker` and a `python3` that record their arguments."""
    (tmp_path / "bin").mkdir()
    for name, text in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(("plan", "path"), cases())
def test_hostile_strings_do_not_change_script_commands(plan: Plan, path: tuple[Any, ...], stubs: Path) -> None:
    def words(text: str, folder: Path) -> list[str]:
        folder.mkdir()
        changed = with_leaf(plan, path, text)
        container = render(changed, None, text if path == ("engine", "image") else "image:1")
        server = server_script(rendered(changed, {}))
        [docker_run] = docker_run_files(container, "a")
        return run(folder / "docker", docker_run.content.decode()) + run(folder / "server", server)

    expected = split_mounts(words(PLAIN, stubs / "plain"))
    for number, hostile in enumerate(HOSTILE):
        assert split_mounts(words(hostile, stubs / str(number))) == [word.replace(PLAIN, hostile) for word in expected]


@pytest.mark.parametrize(("plan", "path"), cases())
def test_hostile_strings_do_not_change_dockerfile_instructions(plan: Plan, path: tuple[Any, ...]) -> None:
    expected = instructions(plan, plan)
    for hostile in HOSTILE:
        try:
            result = instructions(plan, with_leaf(plan, path, hostile))
        except DeployError:
            continue
        assert [line.split()[0] for line in result] == [line.split()[0] for line in expected]


def instructions(plan: Plan, changed: Plan) -> list[str]:
    """Return the instructions of a plan's Dockerfile, as docker reads them."""
    context = build_context(changed, image_sources(plan))
    text = next(file.content.decode() for file in context.files if file.path == "Dockerfile")
    lines = [line for line in text.split("\n") if not re.match(r"\s*(#|$)", line)]
    return re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).split("\n")


@pytest.mark.docker
def test_docker_preserves_quoted_values() -> None:
    """Docker expands variables in the values of ENV and LABEL, even in double quotes."""
    value = "costs $5 ${HOME} \"quoted\" 'single' \\ \\\\ $(id) `id` # not a comment \\"
    dockerfile = f"FROM scratch\nENV A={quoted(value)}\nLABEL a={quoted(value)}\n"
    argv = ["docker", "build", "--quiet", "--force-rm", "-"]
    built = subprocess.run(argv, input=dockerfile, capture_output=True, text=True, check=True).stdout.strip()
    try:
        inspected = subprocess.run(["docker", "inspect", built], capture_output=True, text=True, check=True).stdout
    finally:
        subprocess.run(["docker", "rmi", built], capture_output=True, check=True)
    config = json.loads(inspected)[0]["Config"]
    assert f"A={value}" in config["Env"]
    assert config["Labels"] == {"a": value}
