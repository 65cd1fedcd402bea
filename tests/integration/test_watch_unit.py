"""The systemd unit of `deploy watch --install`, read by systemd itself, and the alerts that a watch sends."""

import http.server
import json
import os
import shutil
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest
from patience import wait_for
from run_samples import past_run

from orchestrator.commands.alerts import Alerts, Receiver
from orchestrator.commands.watch_unit import install_unit
from orchestrator.core.errors import HostError
from orchestrator.core.paths import Home

EVENT = {"name": "owl", "event": "died", "detail": "killed by SIGKILL"}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "100% of a home")
    past_run(home, 1, "server.api_key_env=OWL_KEY")
    return home


def test_systemd_takes_the_unit_and_no_secret_stands_in_it(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze (Debian: systemd)")
    monkeypatch.setenv("OWL_KEY", "key-of-the-owl-4711")
    monkeypatch.setenv("DEPLOY_WEBHOOK", "https://hooks.example/secret-path-4712")
    file = tmp_path / "deploy-watch-owl.service"
    said = install_unit(["owl"], home, command='notify --to "the $team" 50%', output=file)

    verified = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    unit, secrets = file.read_text(), home.root / "watch-owl.env"
    assert "4711" not in unit + said
    assert "4712" not in unit + said
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    assert "printf 'OWL_KEY=%s\\n' \"$OWL_KEY\" >>" in said
    assert f"systemctl enable --now {file.name}" in said
    for line in ("Restart=always", "KillMode=process", "RestartPreventExitStatus=2 6 11", "SuccessExitStatus=130"):
        assert line in unit.splitlines()


def test_a_unit_that_cannot_be_written_names_the_command_that_can(home: Home, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="cannot write the unit") as refused:
        install_unit(["owl"], home, command=None, output=tmp_path / "file" / "unit.service")
    assert "--output deploy-watch-owl.service" in refused.value.hint


def finish(alerts: Alerts) -> list[str]:
    failed: list[str] = []

    def is_done() -> bool:
        failed.extend(alerts.failed())
        return not alerts.under_way

    wait_for(is_done)
    return failed


def test_a_command_reads_the_event_and_inherits_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_token_of_this_shell")
    file = tmp_path / "told"
    told = Receiver.command(f"sh -c 'cat > {file}; env >> {file}'")
    alerts = Alerts((told, Receiver.command("false"), Receiver.command("no-such-program")), time.monotonic)
    assert list(alerts.send(EVENT)) == ["`no-such-program`: there is no program `no-such-program` on this machine"]
    assert finish(alerts) == ["`false`: it ended with 1"]
    first, _, environment = file.read_text().partition("\n")
    assert json.loads(first) == EVENT
    assert "hf_token_of_this_shell" not in environment


def test_a_receiver_that_hangs_is_ended_with_all_it_has_started_and_told() -> None:
    now = [0.0]
    alerts = Alerts((Receiver.command("sh -c 'sleep 600 & wait'"),), lambda: now[0])
    assert list(alerts.send(EVENT)) == []
    assert list(alerts.failed()) == []
    now[0] = 31.0
    assert list(alerts.failed()) == ["`sh`: it took longer than 30 s"]
    assert not alerts.under_way


def test_a_webhook_is_posted_the_event_and_its_url_stands_in_no_command_line() -> None:
    taken: list[object] = []
    seen: list[bytes] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            lines = (folder / "cmdline" for folder in Path("/proc").glob("[0-9]*") if int(folder.name) != os.getpid())
            seen.extend(line.read_bytes() for line in lines if line.exists())
            taken.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(204 if len(taken) == 1 else 500)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing to say."""

    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        alerts = Alerts(
            (Receiver.webhook(f"http://127.0.0.1:{server.server_port}/secret-path-4712?x=1"),), time.monotonic
        )
        assert list(alerts.send(EVENT)) == []
        assert finish(alerts) == []
        assert list(alerts.send(EVENT)) == []
        assert finish(alerts) == ["the webhook at 127.0.0.1: it ended with 1"]
        server.shutdown()
    assert taken == [("/secret-path-4712?x=1", EVENT)] * 2
    assert not [line for line in seen if b"secret-path-4712" in line]
