"""Every string of a plan, in turn, as an attacker would choose it: what is rendered runs what was meant, no more.

Each is first replaced by a plain word. What the script then runs, with that word replaced by the hostile one, is what
it has to run.
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
BY_PATTERN = {"profile", "name", "origin"}  # what their schema lets through needs no quoting
STUBS = {
    "docker": """for word; do printf '%s\\0' "$word"; done >"$SEEN"\n""",
    "python3": """for word; do printf '%s\\0' "$word"; done >"$SEEN"\n""",
    "getent": """echo x:x:44:\n""",
}


def leaves(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all strings in a plan."""
    if isinstance(value, str):
        yield path
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), (*path, field.name))
    elif isinstance(value, tuple):
        for at, item in enumerate(value):
            yield from leaves(item, (*path, at))


def with_leaf(value: Any, path: tuple[Any, ...], text: str) -> Any:  # noqa: ANN401 - a part of a plan
    """The same with one string exchanged; a path in it stays one."""
    if not path:
        return f"/{text}" if value.startswith("/") else text
    step, *rest = path
    if isinstance(value, tuple):
        return (*value[:step], with_leaf(value[step], tuple(rest), text), *value[step + 1 :])
    return dataclasses.replace(value, **{step: with_leaf(getattr(value, step), tuple(rest), text)})


def cases() -> list[Any]:
    """Each field that holds a string, in the first profile that has it."""
    found: dict[tuple[Any, ...], Any] = {}
    for profile in PROFILES:
        for overrides in ((), ("model.checkpoint.source=local", "model.checkpoint.path=/srv/weights")):
            plan = load(profile, overrides=overrides).plan
            for path in leaves(plan):
                field = (bool(overrides), *(step for step in path if not isinstance(step, int)))
                if field[-1] not in BY_PATTERN and (not overrides or field[-1] == "path"):
                    found.setdefault(field, pytest.param(plan, path, id=".".join(map(str, field))))
    return list(found.values())


def run(folder: Path, script: str) -> list[str]:
    """What a script runs: the argv of `docker` or `python3`. Nothing else may have happened."""
    folder.mkdir()
    file = folder / "script.sh"
    file.write_text(script)
    assert subprocess.run(["bash", "-n", str(file)], check=False).returncode == 0
    seen = folder / "seen"
    environ = {"PATH": f"{folder.parents[1]}/bin:{os.environ['PATH']}", "SEEN": str(seen), "DEPLOY_HOME": str(folder)}
    environ |= {"API_KEY_FILE": "/key.yaml", "PATCHED_SGLANG": "/copy"}  # what a script asks for by hand
    subprocess.run(["sh", str(file)], cwd=folder, env=environ, check=True)
    assert {path.name for path in folder.iterdir()} == {"script.sh", "seen"}
    return os.fsdecode(seen.read_bytes()).replace(str(folder), "FOLDER").split("\0")[:-1]


def apart(words: list[str]) -> list[str]:
    """The words with mounts taken apart, and without those that hold a digest of the plan."""
    found = []
    for word in words:
        found += next(csv.reader([word], strict=True)) if word.startswith("type=") else [word]
    return [word for word in found if not word.startswith(("deploy.plan=", "source=deploy-cache-"))]


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """`docker` and `python3` that keep what they were given."""
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

    expected = words(PLAIN, stubs / "plain")
    for number, hostile in enumerate(HOSTILE):
        assert apart(words(hostile, stubs / str(number))) == [word.replace(PLAIN, hostile) for word in apart(expected)]


@pytest.mark.parametrize(("plan", "path"), cases())
def test_hostile_strings_do_not_change_dockerfile_instructions(plan: Plan, path: tuple[Any, ...]) -> None:
    expected = instructions(plan, plan)
    for hostile in HOSTILE:
        try:
            found = instructions(plan, with_leaf(plan, path, hostile))
        except DeployError:
            continue
        assert [line.split()[0] for line in found] == [line.split()[0] for line in expected]


def instructions(plan: Plan, changed: Plan) -> list[str]:
    """The instructions of a plan's Dockerfile, read as docker reads them."""
    context = build_context(changed, image_sources(plan))
    text = next(file.content.decode() for file in context.files if file.path == "Dockerfile")
    lines = [line for line in text.split("\n") if not re.match(r"\s*(#|$)", line)]
    return re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).split("\n")


@pytest.mark.docker
def test_docker_preserves_quoted_values() -> None:
    """It expands variables in the values of ENV and LABEL, between double quotes too."""
    value = "costs $5 ${HOME} \"quoted\" 'single' \\ \\\\ $(id) `id` # not a comment \\"
    dockerfile = f"FROM scratch\nENV A={quoted(value)}\nLABEL a={quoted(value)}\n"
    argv = ["docker", "build", "--quiet", "--force-rm", "-"]
    built = subprocess.run(argv, input=dockerfile, capture_output=True, text=True, check=True).stdout.strip()
    try:
        shown = subprocess.run(["docker", "inspect", built], capture_output=True, text=True, check=True).stdout
    finally:
        subprocess.run(["docker", "rmi", built], capture_output=True, check=True)
    config = json.loads(shown)[0]["Config"]
    assert f"A={value}" in config["Env"]
    assert config["Labels"] == {"a": value}
