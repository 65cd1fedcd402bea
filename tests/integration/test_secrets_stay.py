"""Tests that no output, file or process contains an API key, although the server repeats it in responses and logs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from command_line import CommandLine
from engine_process import ENCODINGS
from ports import free_port

from orchestrator.core.paths import Home

ENGINE: Final = Path(__file__).parents[1] / "support" / "scripted_engine.py"
KEY: Final = "sk-wJ4/Tq8+Mv2=nobody7"
ENCODED: Final = [name for name in ENCODINGS if name not in {"is", "bearer"}]  # these two add words around the key
TOKEN: Final = "hf_" + "q7Wn2" * 6


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[CommandLine]:
    """Return `deploy` with secrets in its environment."""
    secrets = {"TELLTALE": f"{KEY}\n", "HF_TOKEN": f"{TOKEN}\n", "COPY_OF_KEY": f"{KEY}\r\n"}  # as read from files
    command = CommandLine(Home(tmp_path / "home"), secrets, fresh=True)
    yield command
    command.run("down", "telltale")


def forms(secret: str) -> list[str]:
    """Return the secret in every encoding, and with escape sequences between its characters."""
    return [*(ENCODINGS[name](secret) for name in ENCODED), "\x1b[31m".join(secret)]


def assert_not_in(text: str, location: str) -> None:
    """Assert that a text has no eight successive characters of any form of a secret."""
    text = "".join(text.split())
    for secret in (KEY, TOKEN):
        for form in forms(secret):
            part = "".join(form.split()).removeprefix("Authorization:Basic")[10:]
            leaked = [part[at : at + 8] for at in range(len(part) - 7) if part[at : at + 8] in text]
            assert not leaked, f"{location}: {leaked[0]!r} in {text[:2000]}"


def processes_with_secret() -> dict[str, str]:
    """Return the arguments and environments in /proc that contain the key or the token."""
    texts = {}
    for path in [folder / name for folder in Path("/proc").glob("[0-9]*") for name in ("environ", "cmdline")]:
        try:
            text = path.read_text(errors="replace")
        except OSError:  # the process has ended
            continue
        if KEY in text or TOKEN in text:
            texts[str(path)] = text
    return texts


def test_api_key_echoed_by_server_never_leaks(deploy: CommandLine, tmp_path: Path) -> None:
    port, results = free_port(), tmp_path / "results"
    settings = ("server.api_key_env=TELLTALE", f"server.port={port}", f"engine.python={ENGINE}")
    settings += (f"env.SCRIPTED_ECHO={','.join(ENCODINGS)}", "env.SCRIPTED_LOG=OOMKilled", "model.questions=null")
    sets = [word for setting in settings for word in ("--set", setting)]
    bench = ("bench", "--workload", "smoke-tiny", "--requests", "2", "--request-rate", "50")
    commands = (
        ("up", "--profile", "cpu-tiny", "--name", "telltale", "--keep-failed", *sets),
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
        assert_not_in(done.stdout + done.stderr, " ".join(words[:2]))
        if words[0] in {"ask", "logs", "diagnose"}:
            assert "[REDACTED]" in done.stdout
    assert processes_with_secret() == {}
    running = json.loads(deploy.run("status", "--json").stdout)
    assert [server["status"] for server in running if server["name"] == "telltale"] == ["running"]
    deploy.run("down", "telltale")

    written = [path for folder in (deploy.home.root, results) if folder.exists() for path in folder.rglob("*")]
    assert {"server.log", "smoke.json", "plan.json"} <= {path.name for path in written}
    for path in written:
        if path.is_file():
            assert_not_in(path.read_text(errors="replace"), str(path))


@pytest.mark.parametrize("key", ["cpu-tiny", "null", "true"])
def test_api_key_may_equal_command_or_json_word(key: str, tmp_path: Path) -> None:
    """Redaction must change neither the saved request that `restart` reads nor the syntax of `--json`."""
    deploy = CommandLine(Home(tmp_path / "home"), {"WORD": key, "DOCKER_HOST": "unix:///nonexistent"})
    settings = ("server.api_key_env=WORD", f"server.port={free_port()}", f"engine.python={ENGINE}")
    sets = [word for setting in (*settings, "model.questions=null") for word in ("--set", setting)]
    try:
        for words in (("up", "--profile", "cpu-tiny", "--json", *sets), ("restart", "cpu-tiny", "--json")):
            done = deploy.run(*words)
            assert done.returncode == 0, done.stderr
            assert isinstance(json.loads(done.stdout), dict)
        assert [server["status"] for server in json.loads(deploy.run("status", "--json").stdout)] == ["running"]
    finally:
        assert deploy.run("down", "cpu-tiny").returncode == 0
