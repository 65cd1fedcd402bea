"""`deploy watch` starts even if its standard error is a full pipe."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from deployment import Deployments
from waits import TIMEOUT, wait_for

pytestmark = pytest.mark.attack


def test_blocked_stderr_does_not_delay_watch(deployments: Deployments, tmp_path: Path) -> None:
    """A weak key causes a warning before the first event."""
    deployment, key = deployments(0), {"SHORT_KEY": "abcde"}
    assert not list(deployment.run(*deployment.up("--set", "server.api_key_env=SHORT_KEY"), **key).faults(0))
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, b"\0" * 4096):
            pass
    os.set_blocking(writer, True)
    printed = tmp_path / "printed"
    argv = [sys.executable, "-m", "orchestrator", "watch", deployment.name, "--json"]
    environ = {**os.environ, "DEPLOY_HOME": str(deployment.home), **key}
    with printed.open("wb") as stdout:
        watch = subprocess.Popen(argv, stdout=stdout, stderr=writer, env=environ)
    try:
        wait_for(lambda: '"watching"' in printed.read_text() or watch.poll() is not None)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(TIMEOUT) == 130
    finally:
        watch.kill()
        watch.wait()
        os.close(reader)
        os.close(writer)
    assert not list(deployment.run("down", deployment.name, **key).faults(0))
