"""Mutated profiles, catalog files, recipes and references are rejected with an error or rendered as plain text."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from deployment import Deployment, Deployments
from quark_source import write_source
from rounds import attack

from orchestrator.core.paths import data_root

pytestmark = pytest.mark.attack

ROUNDS = 120
CPU_S = 5.0
PROFILES = ("cpu-tiny", "mi355x-tp8", "mi355x-tp4dp2", "b200-tp8")
KINDS = ("hardware", "model", "engine")
FOLDERS = {"hardware": "hardware", "model": "models", "engine": "engines"}
EXIT_CODES = (0, 2, 3, 4, 5)  # success, or an invalid argument, profile, host or image
EVERY = 8  # rounds with one recipe and one reference
CLOSED_URL = "http://127.0.0.1:1"  # the request fails after the reference was read


def test_hostile_profiles_are_planned_or_rejected_safely(deployments: Deployments, tmp_path: Path) -> None:
    checkpoint = write_source(tmp_path / "tiny")

    def read(number: int, rng: Random) -> Iterator[str]:
        deployment = deployments(number)
        rendered = deployment.folder / "rendered"
        if number % EVERY == 0:
            mutation = hostile_recipe(deployment, rng)
            words: tuple[str, ...] = ("quantize", str(checkpoint), str(tmp_path / "made"), "--recipe", "mine")
            words = (*words, "--profile", "cpu-tiny", "--image", "deploy/nobody:1")  # fails before Quark runs
        elif number % EVERY == 1:
            file, mutation = hostile_reference(deployment, rng)
            words = ("logprobs", CLOSED_URL, "--reference", file)
        else:
            profile, mutation = hostile_files(deployment, rng)
            words = rng.choice(
                [
                    ("render", "--profile", profile, "--output", str(rendered)),
                    ("up", "--profile", profile, "--dry-run"),
                    ("show", profile, *rng.choice([(), ("--explain",), ("--json",)])),
                ]
            )
        before = files_below(deployment.folder)
        ended = deployment.start(*words, fresh=number % 20 == 0).wait()
        faults = [*ended.faults(*((8, 10) if words[0] == "logprobs" else EXIT_CODES))]
        if ended.cpu_s > CPU_S:
            faults.append(f"{words} takes {ended.cpu_s:.1f} s of CPU")
        if strays := files_below(deployment.folder) - before:
            faults.append(f"written outside of --output: {strays}")
        faults += injected_commands(deployment, rendered)
        yield from (f"{mutation}: {fault}" for fault in faults)

    attack("hostile profiles", ROUNDS, read)


def hostile_files(deployment: Deployment, rng: Random) -> tuple[str, str]:
    """Write a mutated profile or a mutated catalog file that it uses; return the profile's path and the mutation."""
    name = rng.choice(PROFILES)
    data = yaml.safe_load((data_root() / f"profiles/{name}.yaml").read_text())
    path = deployment.folder / "mine.yaml"
    kind = rng.choice(KINDS)
    if rng.random() < 0.5:
        named = data_root() / "profiles" / FOLDERS[kind] / f"{data[kind]}.yaml"
        own = deployment.home / "profiles" / FOLDERS[kind] / named.name
        own.parent.mkdir(parents=True)
        content, mutation = mutated(yaml.safe_load(named.read_text()), rng, canary(deployment))
        own.write_bytes(content)
        path.write_text(yaml.safe_dump(data))
        return str(path), f"{kind} of {name}: {mutation}"
    content, mutation = mutated(data, rng, canary(deployment))
    path.write_bytes(content)
    return str(path), f"{name}: {mutation}"


def hostile_recipe(deployment: Deployment, rng: Random) -> str:
    """Write a mutated recipe; return the mutation."""
    name = rng.choice(("glm-5.2-amd", "glm-5.2-quark", "glm-5.2-routed"))
    shipped = yaml.safe_load((data_root() / f"profiles/recipes/{name}.yaml").read_text())
    content, mutation = mutated(shipped, rng, canary(deployment))
    own = deployment.home / "profiles/recipes/mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_bytes(content)
    return f"recipe {name}: {mutation}"


def hostile_reference(deployment: Deployment, rng: Random) -> tuple[str, str]:
    """Write a mutated reference of `logprobs`; return its path and the mutation."""
    pairs = [[7, -0.5]]
    texts: list[Any] = [{"ids": [1, 2, 3], "actual": [-1.0, -2.0], "top": [pairs, pairs]}]
    data = {"schema_version": 1, "model": "tiny", "source": None, "numerics": {"dtype": "auto"}, "ids_sha256": "x"}
    data |= {"noise": 0.0, "top": 1, "texts": texts}
    path, mutations = deployment.folder / "reference.json", []
    for _ in range(rng.randint(1, 3)):
        parent, key = rng.choice([*positions(data), *positions(texts[0])])
        unit = rng.choice(["[]", "1", '""', "{}", "[[]]", '{"a":[]}'])
        parent[key] = rng.choice([*values(canary(deployment)), json.loads(f"[{','.join([unit] * 150_000)}]")])
        mutations.append(f"{key} = {str(parent[key])[:80]!r}")
    path.write_bytes(json.dumps(data, default=str)[: rng.choice([None, None, None, 200])].encode())
    return str(path), f"reference: {'; '.join(mutations)}"


def canary(deployment: Deployment) -> Path:
    return deployment.folder / "canary"


def mutated(data: dict[str, Any], rng: Random, target: Path) -> tuple[bytes, str]:
    """Return the document with one to three replaced values, or with invalid text; and the mutation."""
    if rng.random() < 0.3:
        text, mutation = with_invalid_yaml(yaml.safe_dump(data), rng)
        return text, mutation
    mutations = []
    for _ in range(rng.randint(1, 3)):
        parent, key = rng.choice(list(positions(data)))
        value = rng.choice(values(target))
        if rng.random() < 0.15:
            parent[str(value)] = value  # as an unknown key
        else:
            parent[key] = value
        mutations.append(f"{key} = {str(value)[:80]!r}")
    return yaml.safe_dump(data, allow_unicode=True).encode(errors="surrogatepass"), "; ".join(mutations)


def positions(data: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield every key of a document with its mapping."""
    for key, value in data.items():
        yield data, key
        if isinstance(value, dict):
            yield from positions(value)


def values(target: Path) -> list[object]:
    """Return hostile values."""
    touch = f"touch {target}"
    nested: object = "x"
    for _ in range(60):
        nested = [nested]
    return [
        *(
            f"$({touch})",
            f"`{touch}`",
            f"';{touch};'",
            f'";{touch};"',
            f"x\n{touch}\n",
            f"x\nRUN {touch}\n",
            f"x\r{touch}",
        ),
        *(f"x' && {touch} #", f"x; {touch}", f"x | {touch}", f"$(({touch}))", f"\\\n{touch}", f"x\u2028RUN {touch}"),
        *(
            f"{{{{ cycler.__init__.__globals__.os.system('{touch}') }}}}",
            "{% for x in range(9**9) %}{% endfor %}",
            "{{",
        ),
        *(
            "--privileged",
            "-v /:/host",
            "--config=/etc/passwd",
            "ssh://-oProxyCommand=true",
            "=",
            "a=b",
            "#",
            "!!python/x",
        ),
        *(
            "../../../../etc/passwd",
            "/etc/shadow",
            "~root/.ssh",
            "/dev/zero",
            "/proc/self/mem",
            "..",
            ".",
            "",
            " ",
            "\x00"[:0],
        ),
        *(
            "\x1b[31mred\x1b[0m",
            "\u202egnp.exe",
            "\N{PILE OF POO}" * 50,
            "a" * 100_000,
            "é" * 300,
            "null",
            "NaN",
            "yes",
        ),
        *("10 parsecs", "12GiBs", "-1MB", "1e400GiB", "9" * 400, "0x", "12:30:45", "1_0", "٣"),
        *(None, True, -1, 0, 1, 2**31, 2**64, 10**400, 1e308, float("nan"), float("inf"), -0.0, 300_000),
        *([], {}, [[]], {"a": {}}, [None], {"value": None}, {"value": [1, {"x": 2}], "origin": "published"}, nested),
        *(
            {"value": 1, "origin": "nobody"},
            {"soft": True},
            ["a"] * 20_000,
            {f"k{number}": 1 for number in range(5_000)},
        ),
    ]


def with_invalid_yaml(text: str, rng: Random) -> tuple[bytes, str]:
    """Return the text with invalid or oversized YAML, and the mutation."""
    lines = text.splitlines(keepends=True)
    index = rng.randrange(len(lines))
    names = zip("abcdefgh", "bcdefghi", strict=True)
    bomb = "".join(f"{anchor}: &{anchor} [{', '.join([f'*{before}'] * 9)}]\n" for before, anchor in names)
    kinds: dict[str, bytes] = {
        "bytes that are no UTF-8": b"description: \xff\xfe\x80\n",
        "UTF-16": "x: y\n".encode("utf-16"),
        "a byte of zero": b"description: a\0b\n",
        "an alias of itself": b"loop: &x [*x]\n",
        "aliases without end": b"a: &a [x, x, x]\n" + bomb.encode(),
        "deep nesting": b"deep: " + b"[" * 5_000 + b"\n",
        "deep steps": "".join(f"{' ' * step}s:\n" for step in range(300)).encode(),
        "a huge key": b"k" * 200_000 + b": 1\n",
        "many keys": "".join(f"key{number}: 1\n" for number in range(20_000)).encode(),
        "a tag": b"x: !!python/object/apply:os.system ['true']\n",
        "another document": b"---\nx: 1\n",
        "a tab": b"\tx: 1\n",
        "the same key": lines[index].encode(),
        "a merge": b"<<: {runtime: process}\n",
        "an open quote": b'x: "\n',
        "a directive": b"%YAML 9.9\n---\n",
    }
    mutation = rng.choice(list(kinds))
    return "".join(lines[:index]).encode() + kinds[mutation] + "".join(lines[index:]).encode(), mutation


def injected_commands(deployment: Deployment, rendered: Path) -> Iterator[str]:
    """Run the rendered scripts, and yield problems if a value became a command in them or in a Dockerfile."""
    programs = deployment.folder / "programs"
    programs.mkdir()
    for name in ("docker", "python3", "getent"):
        (programs / name).write_text("#!/bin/sh\nexit 0\n")
        (programs / name).chmod(0o755)
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(deployment.folder), "API_KEY_FILE": "none"}
    for script in rendered.glob("*.sh"):
        subprocess.run(["sh", script], env=environ, cwd=rendered, capture_output=True, timeout=60, check=False)
    if canary(deployment).exists():
        yield "the canary was executed"
    for file in rendered.rglob("*"):
        lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
        if any(line.strip().removeprefix("RUN ").startswith(f"touch {canary(deployment)}") for line in lines):
            yield f"a line of `{file.name}` is the canary"


def files_below(folder: Path) -> set[str]:
    """Return all files except the output of commands and rendered files."""
    below = (path.relative_to(folder) for path in folder.rglob("*"))
    return {str(path) for path in below if path.parts[0] not in {"output", "rendered"}}
