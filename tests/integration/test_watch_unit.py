"""Tests of the systemd unit of `deploy watch --install`, with systemd itself, and of the alerts of a watch."""

import http.server
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from proc_files import proc_files
from run_samples import past_run
from typer.testing import CliRunner
from waits import wait_for

from orchestrator.cli.main import app
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.servers.servers import open_servers
from orchestrator.servers.watch.alerts import Alerts, Receiver
from orchestrator.servers.watch.recovery import snapshot_of
from orchestrator.servers.watch.systemd import unit_text
from orchestrator.servers.watch.watch import LiveBackend

EVENT = {"name": "owl", "event": "died", "detail": "killed by SIGKILL \udcff"}  # a byte of a log that is not UTF-8


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = Home(tmp_path / "100% of a home")
    monkeypatch.setenv("DEPLOY_HOME", str(home.root))
    past_run(home, 1, "server.api_key_env=OWL_KEY")
    return home


def print_unit(*words: str) -> tuple[str, str]:
    """Run `deploy watch --install`; return the printed unit and the messages."""
    result = CliRunner().invoke(app, ["watch", "owl", "--install", *words], prog_name="deploy")
    if result.exception is not None:
        raise result.exception
    return result.stdout, result.stderr


def test_systemd_accepts_unit_without_secrets(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze (Debian: systemd)")
    monkeypatch.setenv("OWL_KEY", "key-of-the-owl-4711")
    monkeypatch.setenv("DEPLOY_WEBHOOK", "https://hooks.example/secret-path-4712")
    (tmp_path / "notify").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    file = tmp_path / "deploy-watch-owl.service"
    unit, notes = print_unit("--exec", 'notify --to "the $team" 50%')
    file.write_text(unit)

    verified = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    assert "4711" not in unit + notes
    assert "4712" not in unit + notes
    assert f"reads OWL_KEY, DEPLOY_WEBHOOK from `{home.root / 'watch-owl.env'}`" in " ".join(notes.split())
    assert f"EnvironmentFile=-{str(home.root).replace('%', '%%')}/watch-owl.env" in unit.splitlines()
    for line in ("Restart=always", "KillMode=process", "RestartPreventExitStatus=2 6 11", "SuccessExitStatus=130"):
        assert line in unit.splitlines()


def test_unit_runs_as_its_creator_and_rejects_webhook(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "somebody-before-su")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notify").touch(mode=0o755)
    unit, _ = print_unit("--exec", "./notify")
    assert f"\nUser={pwd.getpwuid(os.geteuid()).pw_name}\nWorkingDirectory=-{tmp_path}\n" in unit
    assert print_unit("--exec", "./notify", "--output", "owl.service")[0] == ""
    assert (tmp_path / "owl.service").read_text() == unit
    with pytest.raises(UsageError, match="must not appear in a systemd unit") as caught:
        print_unit("--webhook", "https://hooks.example/4712")
    assert f"`DEPLOY_WEBHOOK=…` into `{home.root / 'watch-owl.env'}`" in caught.value.hint


@pytest.mark.parametrize(
    "command",
    [
        "notify --token wJ4zTq8",
        "curl -H 'Authorization: Bearer wJ4-zTq8' https://hooks.example",
        "curl https://me:wJ4zTq8@hooks.example",
        "notify wJ4zTq8-of-the-pager",
    ],
)
def test_command_containing_a_secret_is_rejected(home: Home, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("PAGER_TOKEN", "wJ4zTq8-of-the-pager")
    with pytest.raises(UsageError, match="contains a secret") as caught:
        unit_text(["owl"], home, command=command)
    assert f"{home.root / 'watch-owl.env'}" in caught.value.hint
    assert "notify --tokens 5" in unit_text(["owl"], home, command="notify --tokens 5 --to keyboard")


@pytest.mark.usefixtures("home")
def test_url_with_password_goes_into_environment_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://me:wJ4zTq8@mirror.example")
    unit, notes = print_unit()
    assert "wJ4zTq8" not in notes + unit
    assert "reads OWL_KEY, HF_ENDPOINT from" in " ".join(notes.split())


def test_unit_watches_replicated_server_by_name(home: Home) -> None:
    past_run(home, 2, "replicas=2")
    assert " watch owl --json\n" in print_unit()[0]


def test_unit_for_cluster_managed_server_is_rejected(home: Home) -> None:
    past_run(home, 2, "runtime=kubernetes", "kubernetes.weights.pvc=models", "image=null")
    with pytest.raises(UsageError, match="the cluster restarts"):
        print_unit()


def test_unit_keeps_cluster_configuration_variables(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/etc/cluster.yaml")
    monkeypatch.setenv("SLURM_CONF", "/opt/slurm/slurm.conf")
    lines = unit_text(["owl"], home, command=None).splitlines()
    assert {"Environment=KUBECONFIG=/etc/cluster.yaml", "Environment=SLURM_CONF=/opt/slurm/slurm.conf"} <= {*lines}


def test_missing_api_key_does_not_end_running_watch(home: Home) -> None:
    with open_servers(home) as servers:
        snapshot = snapshot_of(servers, "owl")
    assert (snapshot.api_key_env, LiveBackend().listens(snapshot)) == ("OWL_KEY", False)
    with pytest.raises(UsageError, match="`OWL_KEY` is not set"):
        LiveBackend().api_key_for(snapshot.api_key_env)  # called at the start of a watch


def finish(alerts: Alerts) -> list[str]:
    failed: list[str] = []

    def is_done() -> bool:
        failed.extend(f"{name}: {error}" for name, error in alerts.failed())
        return not alerts.in_flight

    wait_for(is_done)
    return failed


def test_alert_command_reads_event_without_inheriting_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_token_of_this_shell")
    file = tmp_path / "received"
    command = Receiver.command(f"sh -c 'cat > {file}; env >> {file}'")
    missing = Receiver(label="`no-such-program`", argv=("no-such-program",))
    alerts = Alerts((command, Receiver.command("false"), missing), time.monotonic)
    assert list(alerts.send(EVENT)) == ["`no-such-program`: no program `no-such-program` found on this host"]
    assert finish(alerts) == ["owl: `false`: exited with 1"]
    first, _, environment = file.read_text().partition("\n")
    assert json.loads(first) == EVENT
    assert "hf_token_of_this_shell" not in environment


def test_missing_alert_command_is_rejected_early() -> None:
    with pytest.raises(UsageError, match="no program `notfy` found"):
        Receiver.command("notfy --all")


@pytest.mark.parametrize("url", ["hooks.example", "http://[::1", "https://h:x/", "http://h/a b"])
def test_invalid_webhook_url_is_rejected_without_showing_it(url: str) -> None:
    with pytest.raises(UsageError, match="webhook") as caught:
        Receiver.webhook(url)
    assert url not in f"{caught.value.message} {caught.value.hint}"


def test_hanging_receiver_is_killed_and_reported() -> None:
    now = [0.0]
    alerts = Alerts((Receiver.command("sh -c 'sleep 600 & wait'"),), lambda: now[0])
    assert list(alerts.send(EVENT)) == []
    assert list(alerts.failed()) == []
    now[0] = 31.0
    assert list(alerts.failed()) == [("owl", "`sh`: timed out after 30 s")]
    assert not alerts.in_flight


@contextmanager
def endless_webhook() -> Iterator[str]:
    """Serve a webhook whose response never ends, so that the sender does not end by itself; return the URL."""

    def answer(server: socket.socket) -> None:
        with suppress(OSError), server.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while True:
                connection.sendall(b"x")
                time.sleep(0.2)

    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=answer, args=(server,))
        answering.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/hook"
        server.shutdown(socket.SHUT_RDWR)  # ends `accept` if the sender was killed before it connected
        answering.join()


def senders(mark: str) -> list[int]:
    """Return the pids of the processes that post an event and have inherited `MARK=mark`."""
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _posts(folder, mark.encode())]


def _posts(process: Path, mark: bytes) -> bool:
    with suppress(OSError):
        posts = b"\0orchestrator.servers.watch.worker\0post\0" in (process / "cmdline").read_bytes()
        return posts and b"\0MARK=%s\0" % mark in b"\0" + (process / "environ").read_bytes()
    return False


def test_undelivered_alerts_are_cancelled_and_reported_at_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARK", str(tmp_path))
    with endless_webhook() as url:
        alerts = Alerts((Receiver.webhook(url), Receiver.command("sleep 600")), time.monotonic)
        assert list(alerts.send(EVENT)) == []
        assert sorted(alerts.close()) == [
            ("owl", "`sleep`: `died` not delivered"),
            ("owl", "the webhook at 127.0.0.1: `died` not delivered"),
        ]
    assert not alerts.in_flight
    assert not senders(str(tmp_path))


SENDER = """
import sys, time
from orchestrator.servers.watch.alerts import Alerts, Receiver
alerts = Alerts((Receiver.webhook(sys.argv[1]),), time.monotonic)
assert not list(alerts.send({"name": "owl", "event": "died"}))
print("sent", flush=True)
time.sleep(600)
"""


def test_alert_sender_ends_with_killed_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARK", str(tmp_path))
    with endless_webhook() as url:
        watch = subprocess.Popen([sys.executable, "-c", SENDER, url], stdout=subprocess.PIPE)
        try:
            assert watch.stdout is not None
            assert watch.stdout.readline() == b"sent\n"
            wait_for(lambda: len(senders(str(tmp_path))) == 1)
        finally:
            watch.kill()
            watch.communicate()
        wait_for(lambda: not senders(str(tmp_path)))


def test_webhook_receives_event_without_exposing_its_url() -> None:
    received: list[object] = []
    credentials: list[str] = []
    cmdlines: list[bytes] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            cmdlines.extend(line for pid, line in proc_files("cmdline") if pid != os.getpid())
            credentials.append(self.headers["Authorization"])
            received.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(204 if len(received) == 1 else 500)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        alerts = Alerts(
            (Receiver.webhook(f"http://me:a%40b@127.0.0.1:{server.server_port}/secret-path-4712?x=1"),), time.monotonic
        )
        assert list(alerts.send(EVENT)) == []
        assert finish(alerts) == []
        assert list(alerts.send(EVENT)) == []
        assert finish(alerts) == ["owl: the webhook at 127.0.0.1: exited with 1"]
        server.shutdown()
    assert received == [("/secret-path-4712?x=1", EVENT)] * 2
    assert credentials == [f"Basic {b64encode(b'me:a@b').decode()}"] * 2
    assert not [line for line in cmdlines if b"secret-path-4712" in line]
