"""A server that tells its API key in every answer and every line: nothing that was started, shown or written has it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import telltale_engine
from command_line import CommandLine
from ports import free_port

from orchestrator.core.paths import Home
from orchestrator.environments import Environment

pytestmark = pytest.mark.engine  # for its checkpoint

KEY: Final = "sk-wJ4/Tq8+Mv2=nobody7"
TOKEN: Final = "hf_" + "q7Wn2" * 6


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[CommandLine]:
    """`deploy`, with a key in its shell."""
    command = CommandLine(Home(tmp_path / "home"), {"TELLTALE": KEY, "HF_TOKEN": TOKEN, "COPY_OF_IT": KEY}, fresh=True)
    yield command
    command.run("down", "telltale")


@pytest.fixture
def engine(cpu_environment: Environment, tmp_path: Path) -> Path:
    """An interpreter with sglang, but for its server: that is the telltale one."""
    path, telltale = tmp_path / "engine", f"{sys.executable} -P {telltale_engine.__file__}"
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *launch_server*) exec {telltale} "$@" ;; esac\nexec {cpu_environment.python} "$@"\n'
    )
    path.chmod(0o755)
    return path


def assert_untold(text: str, where: str) -> None:
    """Of no form of the key, eight characters in a row."""
    text = "".join(text.split())
    for secret in (KEY, TOKEN):
        for form in telltale_engine.forms(secret):
            telling = "".join(form.split()).removeprefix("Authorization:Basic")[10:]
            told = [telling[at : at + 8] for at in range(len(telling) - 7) if telling[at : at + 8] in text]
            assert not told, f"{where}: {told[0]!r} in {text[:2000]}"


def told_by_processes() -> dict[str, str]:
    """What each process but this one was given that tells the key or the token, in its argv or its environment."""
    found = {}
    for path in [folder / name for folder in Path("/proc").glob("[0-9]*") for name in ("environ", "cmdline")]:
        try:
            text = path.read_text(errors="replace")
        except OSError:  # it has ended
            continue
        if KEY in text or TOKEN in text:
            found[str(path)] = text
    return found


def test_a_key_that_a_server_tells_comes_out_nowhere(
    deploy: CommandLine, engine: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """`up`, `logs`, `diagnose`, `ask`, `smoke` and both ways of `bench`."""
    port, results = free_port(), tmp_path / "results"
    settings = ("server.api_key_env=TELLTALE", f"server.port={port}", f"engine.python={engine}")
    settings += ("model.origin.kind=directory", f"model.origin.location={tiny_model}")
    sets = [word for setting in settings for word in ("--set", setting)]
    bench = ("bench", "--workload", "smoke-tiny", "--requests", "2", "--rates", "50")
    commands = (
        ("up", "--profile", "cpu-tiny", "--name", "telltale", "--keep", *sets),
        ("smoke", "telltale", "--json"),
        ("ask", "telltale", "hello", "--tokens", "2000"),
        ("logs", "telltale"),
        ("diagnose", "telltale"),
        ("diagnose", "telltale", "--json"),
        ("status", "--json"),
        (*bench, "telltale", "--output", str(results / "by-name")),
        (*bench, f"http://127.0.0.1:{port}", "--api-key-env", "TELLTALE", "--output", str(results / "by-url")),
        ("up", "--profile", "cpu-tiny", "--name", "telltale", *sets),
    )
    for words in commands:
        done = deploy.run(*words)
        assert done.returncode in {0, 8, 10}, done.stderr
        assert "Traceback" not in done.stderr
        assert_untold(done.stdout + done.stderr, " ".join(words[:2]))
        if words[0] in {"ask", "logs", "diagnose"}:
            assert "[REDACTED]" in done.stdout
    assert told_by_processes() == {}
    running = json.loads(deploy.run("status", "--json").stdout)
    assert [server["status"] for server in running if server["name"] == "telltale"] == ["running"]
    deploy.run("down", "telltale")

    written = [path for folder in (deploy.home.root, results) if folder.exists() for path in folder.rglob("*")]
    assert {"server.log", "smoke.json", "plan.json"} <= {path.name for path in written}
    for path in written:
        if path.is_file():
            assert_untold(path.read_text(errors="replace"), str(path))
