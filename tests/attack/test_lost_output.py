"""Standard output and standard error that cannot be written to: the work is done, and its exit code tells how it went.

The table of commands below, each with a full disk, a closed descriptor and a pipe whose reader has ended in the place
of standard output, of standard error and of both.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest
from deployment import Deployment, Deployments
from parts import pids_of
from patience import PATIENCE, wait_for
from survivors import listens

pytestmark = pytest.mark.attack

LOST = 12  # `OutputError`
GONE = 141  # `ReaderGone`
FAULTS = {"full": ">/dev/full", "closed": ">&-", "gone": ">&3"}
BREAKAGES = {
    **{f"stdout-{name}": how for name, how in FAULTS.items()},
    **{f"stderr-{name}": f"2{how}" for name, how in FAULTS.items()},
    "both-full": ">/dev/full 2>&1",
    "both-closed": ">&- 2>&-",
    "both-gone": ">&3 2>&3",
}
ALL_CLOSED = "<&- >&- 2>&-"
MAIN_LINE = {"stdout-closed", "stderr-full", "both-gone"}  # the others are marked `slow`: each takes several seconds
# Of commands that print their result, and of those that change something first; `lost` is about standard output.
READING = {name: GONE if "gone" in name else LOST for name in BREAKAGES if "stderr" not in name}
CHANGING = dict.fromkeys(READING, LOST)


def each(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=() if name in MAIN_LINE else pytest.mark.slow) for name in names]
    )


READERS = (
    ("--version",),
    ("up", "--help"),
    ("profiles",),
    ("show", "cpu-tiny"),
    ("render", "cpu-tiny", "--json"),
    ("matrix",),
    ("status", "--json"),
    ("status", "target"),
    ("logs", "target"),
    ("history",),
    ("ask", "target", "hello"),
    ("smoke", "target"),
)


@contextmanager
def broken(deployment: Deployment, how: str, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `deploy` with such descriptors; 3 is a pipe that nobody reads. What is not broken is a pipe that is read."""
    reader, writer = os.pipe()
    os.close(reader)
    env = {**os.environ, "DEPLOY_HOME": str(deployment.home), "DOCKER_HOST": "unix:///nonexistent"}
    script = f'exec 3>&{writer} {writer}>&-; exec "$@" {how} 3>&-'
    argv = ["bash", "-c", script, "bash", sys.executable, "-m", "orchestrator", *words]
    with subprocess.Popen(
        argv,
        env=env,
        pass_fds=(writer,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=deployment.folder,
    ) as process:
        os.close(writer)
        try:
            yield process
        finally:
            process.kill()


def code_of(deployment: Deployment, how: str, *words: str) -> int:
    """The exit code; whatever could be printed holds no traceback."""
    with broken(deployment, how, *words) as process:
        printed = "".join(process.communicate(timeout=PATIENCE))
    assert "Traceback" not in printed
    assert "a fault of this tool" not in printed
    assert "Exception ignored" not in printed
    return process.returncode


def serving(deployment: Deployment) -> tuple[int, ...]:
    """The server's processes, where it serves."""
    if not listens(deployment.port):
        return ()
    assert httpx.get(f"http://127.0.0.1:{deployment.port}/health", trust_env=False).status_code == 200
    return tuple(pids_of(deployment, "server"))


@each(*BREAKAGES)
def test_a_command_that_only_reads_tells_that_its_result_was_lost(deployments: Deployments, name: str) -> None:
    deployment = deployments(0)
    assert not list(deployment.run(*deployment.up()).faults(0))
    table = {" ".join(words): code_of(deployment, BREAKAGES[name], *words) for words in READERS}
    assert table == dict.fromkeys(table, READING.get(name, 0))
    assert serving(deployment)


def test_an_error_keeps_its_exit_code(deployments: Deployments) -> None:
    deployment = deployments(0)
    failing = {("status", "nobody"): 6, ("up", "no-such"): 3}
    table = {(words, name): code_of(deployment, how, *words) for words in failing for name, how in BREAKAGES.items()}
    may_end = {name for name in BREAKAGES if name == "both-gone"}  # then the error is the first that is not read
    assert table == {(words, name): GONE if name in may_end else failing[words] for words, name in table}


@each(*BREAKAGES, "all-closed")
def test_what_changes_a_server_is_done_whatever_becomes_of_its_output(deployments: Deployments, name: str) -> None:
    """`up`, `up --replace`, `restart` and `down`, each with `--json`, so that there is a result to be lost."""
    deployment, how = deployments(0), BREAKAGES.get(name, ALL_CLOSED)
    lost = CHANGING.get(name, LOST if name == "all-closed" else 0)
    # One pipe for all that is printed, and nobody reads it: that ends a command before it starts or stops a server.
    ends = name == "both-gone"
    assert code_of(deployment, how, *deployment.up("--json")) == (GONE if ends else lost)
    if ends:
        assert deployment.survivors(killed=True) == []
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
    assert deployment.survivors(killed=True) == []


@each("stdout-full", "stdout-closed", "stderr-full", "stderr-gone", "both-full")
def test_what_prints_no_result_loses_none(deployments: Deployments, name: str) -> None:
    """Messages for people go to standard error; that they are lost is no failure."""
    deployment = deployments(0)
    assert code_of(deployment, BREAKAGES[name], *deployment.up()) == 0
    assert serving(deployment)
    assert code_of(deployment, BREAKAGES[name], "down", deployment.name) == 0
    assert not listens(deployment.port)


@each(*BREAKAGES, "all-closed")
def test_a_watch_starts_the_server_again_whatever_becomes_of_its_output(deployments: Deployments, name: str) -> None:
    deployment = deployments(0)
    assert not list(deployment.run(*deployment.up("--set", "healing.unhealthy_after=3")).faults(0))
    first = serving(deployment)
    told = deployment.folder / "told"
    script = f'{sys.executable} -c \'import sys; open("{told}", "a").write(sys.stdin.read())\''
    with broken(deployment, BREAKAGES.get(name, ALL_CLOSED), "watch", deployment.name, "--exec", script) as watch:
        lock = deployment.home / "runs" / deployment.name / ".watch"
        wait_for(lambda: lock.exists() and lock.read_text().strip() == str(watch.pid))
        for pid in first:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: "serves" in _events(deployment) or watch.poll() is not None)
        assert watch.poll() is None
        assert _events(deployment) == ["died", "serves"]
        assert serving(deployment) not in {(), first}
        watch.send_signal(signal.SIGINT)
        watch.communicate(timeout=PATIENCE)
        assert watch.returncode == 130
    assert not list(deployment.run("down", deployment.name).faults(0))


def _events(deployment: Deployment) -> list[str]:
    told = deployment.folder / "told"
    time.sleep(0.1)
    return [json.loads(line)["event"] for line in told.read_text().splitlines()] if told.exists() else []
