"""Commands finish their work with unwritable output, and their exit code reports it.

Standard output, standard error or both are a full disk, a closed descriptor, or a pipe without a reader.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import httpx
import pytest
from changing_commands import CHANGING as MAKING
from changing_commands import Workspace, workspace_of
from deployment import Deployment, Deployments
from forked import Fault, Forks
from leftovers import listens
from server_pids import pids_of
from waits import wait_for

pytestmark = pytest.mark.attack

Broken: TypeAlias = Mapping[int, Fault]
LOST = 12  # `OutputError`
GONE = 141  # `ReaderGone`
BREAKAGES: dict[str, Broken] = {
    "stdout-full": {1: "full"},
    "stdout-closed": {1: "closed"},
    "stdout-gone": {1: "gone"},
    "stderr-full": {2: "full"},
    "stderr-gone": {2: "gone"},
    "both-full": {1: "full", 2: "full"},
    "both-gone": {1: "gone", 2: "gone"},
}
ALL_CLOSED: Broken = {0: "closed", 1: "closed", 2: "closed"}
# Exit codes of commands that only print a result, and of those that change something first.
READING = {name: GONE if "gone" in name else LOST for name in BREAKAGES if "stderr" not in name}
CHANGING = dict.fromkeys(READING, LOST)


READERS = (
    ("--version",),
    ("up", "--help"),
    ("profiles",),
    ("show", "cpu-tiny"),
    ("render", "cpu-tiny", "--json"),
    ("status", "--json"),
    ("status", "target"),
    ("logs", "target"),
    ("history",),
    ("ask", "target", "hello"),
)


def code_of(deployment: Deployment, broken: Broken, *words: str, fresh: bool = False) -> int | None:
    """Run a command, check that its output has no traceback, and return the exit code."""
    ended = deployment.start(*words, broken=broken, fresh=fresh).wait()
    printed = ended.stdout + ended.stderr
    assert "Traceback" not in printed
    assert "internal error" not in printed
    assert "Exception ignored" not in printed
    return ended.code


def serving(deployment: Deployment) -> tuple[int, ...]:
    """Return the pids of a healthy server; none if its port is closed."""
    if not listens(deployment.port):
        return ()
    assert httpx.get(f"http://127.0.0.1:{deployment.port}/health", trust_env=False).status_code == 200
    return tuple(pids_of(deployment, "server"))


@pytest.fixture(scope="module")
def deployment(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Start one server for all read-only commands."""
    made = Deployments(forks, tmp_path_factory.mktemp("read"), [])(0)
    assert not list(made.run(*made.up()).faults(0))
    yield made
    made.end()


@pytest.mark.parametrize("name", BREAKAGES)
def test_read_only_command_fails_when_output_is_lost(deployment: Deployment, name: str) -> None:
    # A new interpreter handles closed descriptors when it starts.
    fresh = {("--version",), ("profiles",)} if "closed" in name else set()
    table = {
        " ".join(reader): code_of(deployment, BREAKAGES[name], *reader, fresh=reader in fresh) for reader in READERS
    }
    assert table == dict.fromkeys(table, READING.get(name, 0))
    measured = CHANGING if name != "both-gone" else READING  # these commands measure or save before they print
    commands = (("smoke", "target"), ("logprobs", f"http://127.0.0.1:{deployment.port}", "--max-length", "64"))
    table = {" ".join(words): code_of(deployment, BREAKAGES[name], *words) for words in commands}
    assert table == dict.fromkeys(table, measured.get(name, 0))
    assert serving(deployment)


@pytest.fixture
def workspace(deployments: Deployments, tmp_path: Path) -> Iterator[Workspace]:
    with workspace_of(deployments(0), tmp_path) as made:
        yield made


@pytest.mark.parametrize("name", MAKING)
def test_closed_pipe_ends_command_only_before_changes(workspace: Workspace, name: str) -> None:
    """First the pipe is closed before the first message, as with `2>&1 | head -c0`; then before the result."""
    command = MAKING[name]
    assert not command.is_done(workspace)
    words = workspace.call(command)
    early = workspace.start(*words, broken=BREAKAGES["both-gone"]).wait()
    assert (early.code, command.is_done(workspace)) == ((GONE, False) if command.speaks else (LOST, True))
    if not command.speaks:
        return
    late = workspace.start(*words, broken=BREAKAGES["stdout-gone"]).wait()
    assert (late.code, command.is_done(workspace)) == (LOST if command.prints else 0, True), late.stderr
    assert "Traceback" not in late.stderr


def test_closed_pipe_ends_only_read_only_multi_host_commands(deployments: Deployments) -> None:
    # No daemon answers at these addresses.
    hosts = ("--host", "unix:///nonexistent/a", "--host", "unix:///nonexistent/b")
    gone = BREAKAGES["both-gone"]
    assert code_of(deployments(0), gone, "preflight", "cpu-tiny", "--set", "runtime=docker", *hosts) == GONE
    assert code_of(deployments(1), gone, "prune", "--caches", *hosts) == 4


def test_lost_error_message_keeps_its_exit_code(deployments: Deployments) -> None:
    deployment = deployments(0)
    failing = {("status", "nobody"): 6, ("up", "no-such"): 3}
    table = {(words, name): code_of(deployment, how, *words) for words in failing for name, how in BREAKAGES.items()}
    assert table == {(words, name): GONE if name == "both-gone" else failing[words] for words, name in table}


@pytest.mark.parametrize("name", ["stdout-full", "stderr-gone", "both-gone", "all-closed"])
def test_server_changes_complete_when_output_is_lost(deployments: Deployments, name: str) -> None:
    """Run `up`, `up --replace`, `restart` and `down` with `--json`, so that each has a result to lose."""
    deployment, how = deployments(0), BREAKAGES.get(name, ALL_CLOSED)
    lost = CHANGING.get(name, LOST if name == "all-closed" else 0)
    # A closed pipe for all output ends a command before it starts or stops a server.
    ends = name == "both-gone"
    assert code_of(deployment, how, *deployment.up("--json")) == (GONE if ends else lost)
    if ends:
        assert deployment.leftovers(killed=True) == []
        assert not list(deployment.run(*deployment.up()).faults(0))
    first = serving(deployment)
    assert first
    replaced = code_of(deployment, how, *deployment.up("--replace", "--json"))
    second = serving(deployment)
    assert second
    assert (replaced, second == first) == ((GONE, True) if ends else (lost, False))
    restarted = code_of(deployment, how, "restart", deployment.name, "--json")
    third = serving(deployment)
    assert third
    assert (restarted, third == second) == ((GONE, True) if ends else (lost, False))
    assert code_of(deployment, how, "down", deployment.name, "--json") == lost
    assert not listens(deployment.port)
    assert deployment.leftovers(killed=True) == []


@pytest.mark.parametrize("name", ["stdout-closed", "stderr-full", "both-full"])
def test_lost_messages_do_not_change_exit_code(deployments: Deployments, name: str) -> None:
    deployment = deployments(0)
    assert code_of(deployment, BREAKAGES[name], *deployment.up()) == 0
    assert serving(deployment)
    assert code_of(deployment, BREAKAGES[name], "down", deployment.name) == 0
    assert not listens(deployment.port)


@pytest.mark.parametrize("name", ["both-gone", "all-closed"])
def test_watch_restarts_server_when_output_is_lost(deployments: Deployments, name: str) -> None:
    deployment = deployments(0)
    assert not list(deployment.run(*deployment.up("--set", "restart_policy.unhealthy_after=3")).faults(0))
    first = serving(deployment)
    signal_file = deployment.folder / "events"
    script = f'{sys.executable} -c \'import sys; open("{signal_file}", "a").write(sys.stdin.read())\''
    watch = deployment.start("watch", deployment.name, "--exec", script, broken=BREAKAGES.get(name, ALL_CLOSED))
    lock = deployment.home / "runs" / deployment.name / ".watch"
    wait_for(lambda: lock.exists() and lock.read_text().strip() == str(watch.pid))
    for pid in first:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "restarted" in _events(deployment) or watch.ends_within(0))
    assert not watch.ends_within(0)
    assert _events(deployment) == ["died", "restarted"]
    assert serving(deployment) not in {(), first}
    watch.send(signal.SIGINT)
    assert watch.wait().code == 130
    assert not list(deployment.run("down", deployment.name).faults(0))


def _events(deployment: Deployment) -> list[str]:
    signal_file = deployment.folder / "events"
    time.sleep(0.1)
    return [json.loads(line)["event"] for line in signal_file.read_text().splitlines()] if signal_file.exists() else []
