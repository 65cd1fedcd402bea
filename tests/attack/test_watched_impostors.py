"""`deploy watch` restarts a server that only appears healthy."""

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from deployment import ENGINE, Deployments
from leftovers import listens
from server_pids import pids_of
from waits import wait_for
from watching import end, wait_for_event, watched

from orchestrator.core import subprocesses

pytestmark = pytest.mark.attack

NO_TOKEN = {"text": "", "output_ids": [], "meta_info": {"prompt_tokens": 3, "completion_tokens": 0, "cached_tokens": 0}}


class Impostor(BaseHTTPRequestHandler):
    """Answers everything with `200 {}`."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def impostor(port: int, model: str) -> Iterator[None]:
    """Run another server on a port: one of that model, or one that answers everything with `200 {}`."""
    if not model:
        with ThreadingHTTPServer(("127.0.0.1", port), Impostor) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield
            server.shutdown()
        return
    options = {"--model-path": "/tiny", "--served-model-name": model, "--host": "127.0.0.1", "--port": str(port)}
    words = [word for option in options.items() for word in option]
    argv = [sys.executable, str(ENGINE), "-m", "sglang.launch_server", *words]
    with subprocesses.start(argv, output=subprocesses.DEVNULL, tied=True):
        wait_for(lambda: listens(port))
        yield


@pytest.mark.parametrize("model", ["", "tiny"], ids=["an-empty-object", "the-same-model"])
def test_impostor_on_port_does_not_hide_server_death(deployments: Deployments, model: str) -> None:
    deployment = deployments(0)
    watch = watched(deployment)
    watch.send(signal.SIGSTOP)  # so that it never sees a closed port
    for pid in pids_of(deployment, "server"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: _is_free(deployment.port))
    with impostor(deployment.port, model):
        watch.send(signal.SIGCONT)
        wait_for_event(watch, "died")
    wait_for_event(watch, "restarted")
    end(deployment, watch)


@pytest.mark.parametrize("body", ["hangs", "{}", json.dumps(NO_TOKEN)], ids=["hangs", "an-empty-object", "no-token"])
def test_healthy_server_without_tokens_is_restarted(deployments: Deployments, body: str) -> None:
    deployment = deployments(0)
    mute = deployment.folder / "mute"
    watch = watched(deployment, f"SCRIPTED_MUTE={mute}")
    (deployment.folder / "body").write_text(body)
    (deployment.folder / "body").rename(mute)
    assert httpx.get(f"http://127.0.0.1:{deployment.port}/health", trust_env=False).status_code == 200
    wait_for_event(watch, "died")
    wait_for_event(watch, "restarted")
    assert not mute.exists()
    end(deployment, watch)


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True
    return False
