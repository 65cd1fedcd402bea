"""Test `bench --tool aiperf` with a fake program and the real one."""

import json
import os
import signal
import stat
import sys
import time
from dataclasses import replace
from io import BufferedWriter, FileIO
from pathlib import Path
from threading import Timer

import pytest
from cpu_server import CpuServer
from scripted_runs import WORKLOAD, kinds, only, order, order_of
from scripted_server import Answer, Script, scripted
from waits import TIMEOUT

from orchestrator.bench.aiperf import runner
from orchestrator.bench.aiperf.runner import CLIENT, aiperf_program
from orchestrator.bench.benchmark import measure
from orchestrator.bench.result import BenchResult, EndReason, IssueKind
from orchestrator.bench.sessions import open_sessions
from orchestrator.bench.workload import Workload
from orchestrator.core.errors import BenchError
from orchestrator.core.paths import Home, data_root
from orchestrator.core.secrets import Secret

KEY = "sk-of-this-test-0123456789"
SAMPLE = data_root() / "tests/samples/aiperf-0.13.0.json"
FAKE_AIPERF = f"""#!{sys.executable}
import json, os, pathlib, shutil, sys, time
config = json.loads(pathlib.Path(sys.argv[sys.argv.index("--config") + 1]).read_text())["benchmark"]
out = pathlib.Path(config["artifacts"]["dir"])
seen = {{"argv": sys.argv, "key": os.environ.get("DEPLOY_AIPERF_KEY"), "tmp": os.environ["TMPDIR"], "config": config}}
seen["lines"] = pathlib.Path(config["dataset"]["path"]).read_text().splitlines()
seen["tokenizer"] = sorted(os.listdir(config["tokenizer"]["name"]))
(out / "seen.json").write_text(json.dumps(seen))
shutil.copy("{SAMPLE}", out / "profile_export_aiperf.json")
"""


def fake_aiperf(folder: Path, ending: str = "") -> Path:
    program = folder / "aiperf"
    program.write_text(FAKE_AIPERF + ending)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def run(folder: Path, program: Path, **changes: object) -> BenchResult:
    with scripted(Script()) as server:
        request = order(server, folder / "out", workload=WORKLOAD, aiperf=program, **changes)
        return measure(request, lambda _text, _transient: None)


def temp_folders() -> set[Path]:
    return {*Path("/tmp").glob("deploy-aiperf-*")}


def test_aiperf_gets_requests_and_its_result_is_translated(tmp_path: Path) -> None:
    before = temp_folders()
    result = run(tmp_path, fake_aiperf(tmp_path), key=Secret(KEY))
    seen = json.loads((tmp_path / "out/aiperf-10/seen.json").read_text())
    assert seen["key"] == KEY
    assert KEY not in json.dumps({**seen, "key": ""})
    assert len(seen["lines"]) == WORKLOAD.requests
    payload = json.loads(seen["lines"][0])["payload"]
    assert (len(payload["prompt"]), payload["max_tokens"], payload["stream"]) == (500, 6, True)
    assert seen["tokenizer"] == ["tokenizer.json", "tokenizer_config.json"]
    assert not Path(seen["tmp"]).exists()
    assert temp_folders() == before
    assert result.run.client == CLIENT
    assert IssueKind.ANOTHER_CLIENT in kinds(result)
    assert only(result).succeeded == 30
    assert not list((tmp_path / "out").glob("requests-*"))


@pytest.mark.parametrize("open_loop", [True, False])
def test_trace_sessions_become_aiperf_timestamps_or_delays(tmp_path: Path, open_loop: bool) -> None:
    lines = [
        {"session_id": "a", "timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]},
        {"session_id": "b", "timestamp": 500, "input_length": 512, "output_length": 4, "hash_ids": [1]},
        {"session_id": "a", "delay": 250, "input_length": 700, "output_length": 4, "hash_ids": [1, 3]},
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    load = {"load": "open", "speeds": (2.0,)} if open_loop else {"load": "closed", "concurrency": 2}
    workload = Workload(trace=str(trace), **load)  # type: ignore[arg-type]
    with scripted(Script()) as server:
        request = order(server, tmp_path / "out", workload=workload, aiperf=fake_aiperf(tmp_path))
        result = measure(replace(request, source=open_sessions(workload)), lambda _text, _transient: None)
    (seen_file,) = (tmp_path / "out").glob("aiperf-*/seen.json")
    seen = json.loads(seen_file.read_text())
    sent = [json.loads(line) for line in seen["lines"]]
    assert [len(entry["payload"]["prompt"]) for entry in sent] == [600, 700, 512]
    assert sent[0]["payload"]["prompt"][:512] == sent[1]["payload"]["prompt"][:512] == sent[2]["payload"]["prompt"]
    assert sent[0]["session_id"] == sent[1]["session_id"] != sent[2]["session_id"]
    times = [(item.get("timestamp"), item.get("delay")) for item in sent]
    assert times == (
        [(0.0, None), (None, 125.0), (250.0, None)] if open_loop else [(None, None), (None, 250.0), (None, None)]
    )
    (phase,) = seen["config"]["phases"]
    assert phase["type"] == ("fixed_schedule" if open_loop else "concurrency")
    assert phase.get("sessions") == (None if open_loop else 2)
    sessions = only(result).sessions
    assert sessions is not None
    assert (sessions.sessions, sessions.warmup_requests) == (2, 0)


def test_duration_and_session_header_are_passed_to_aiperf(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"session_id": "a", "input_length": 20, "output_length": 4}\n' * 3)
    workload = Workload(trace=str(trace), load="closed", concurrency=2, duration_s=7.0, timeout_s=9.0)
    with scripted(Script()) as server:
        request = order(
            server, tmp_path / "out", workload=workload, aiperf=fake_aiperf(tmp_path), session_header="x-key"
        )
        measure(replace(request, source=open_sessions(workload)), lambda _text, _transient: None)
    (seen_file,) = (tmp_path / "out").glob("aiperf-*/seen.json")
    config = json.loads(seen_file.read_text())["config"]
    (phase,) = config["phases"]
    assert (phase["duration"], phase["grace_period"]) == (7.0, 9.0)
    assert config["endpoint"]["session_header"] == "x-key"


def test_full_disk_while_writing_aiperf_requests_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = temp_folders()
    monkeypatch.setattr(runner, "open_new", lambda _path: BufferedWriter(FileIO("/dev/full", "w")))
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path, fake_aiperf(tmp_path))
    assert temp_folders() == before


def test_aiperf_failure_names_its_log(tmp_path: Path) -> None:
    before = temp_folders()
    program = fake_aiperf(tmp_path, "print('no such thing', os.environ['DEPLOY_AIPERF_KEY'])\nsys.exit(3)\n")
    with pytest.raises(BenchError, match=r"aiperf 0.13.0 failed with exit code 3") as failed:
        run(tmp_path, program, key=Secret(KEY))
    assert failed.value.location == str(tmp_path / "out/aiperf-10/aiperf.log")
    assert "no such thing" in failed.value.details
    assert KEY not in failed.value.details
    assert temp_folders() == before


def test_incomplete_aiperf_run_is_rejected(tmp_path: Path) -> None:
    cut = json.dumps({**json.loads(SAMPLE.read_text()), "is_complete": False, "incomplete_reason": "stalled"})
    (tmp_path / "cut.json").write_text(cut)
    program = fake_aiperf(
        tmp_path, f"shutil.copy({str(tmp_path / 'cut.json')!r}, out / 'profile_export_aiperf.json')\n"
    )
    with pytest.raises(BenchError, match="ended early: stalled"):
        run(tmp_path, program)


@pytest.mark.usefixtures("sigint_raises")
def test_ctrl_c_leaves_no_aiperf_process_or_files(tmp_path: Path) -> None:
    before = temp_folders()
    pid = tmp_path / "pid"
    program = fake_aiperf(tmp_path, f"pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n")

    def interrupt() -> None:
        deadline = time.monotonic() + TIMEOUT
        while not pid.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    timer = Timer(0.1, interrupt)
    timer.start()
    result = run(tmp_path, program)
    timer.join()
    assert result.end_reason is EndReason.INTERRUPTED
    assert not Path(f"/proc/{pid.read_text()}").exists()
    assert temp_folders() == before


@pytest.fixture(scope="module")
def real_aiperf() -> Path:
    """Return the real program in the user's home: 1.2 GB, built on first use."""
    return aiperf_program(Home.from_environment())


@pytest.mark.slow
def test_both_load_generators_agree_on_scripted_server(real_aiperf: Path, tmp_path: Path) -> None:
    """The server sends the first token after 50 ms, then one every 5 ms."""
    workload = WORKLOAD.model_copy(update={"output_tokens": 20, "request_rates": (10.0,), "requests": 40})
    script = Script(answer=lambda _: Answer(ttft_s=0.05, itl_s=0.005))
    with scripted(script) as server:
        ours, theirs = (
            measure(order(server, tmp_path / name, workload=workload, aiperf=program), lambda _text, _transient: None)
            for name, program in (("ours", None), ("theirs", real_aiperf))
        )
    own, other = only(ours), only(theirs)
    assert own.latency is not None
    assert other.latency is not None
    assert (own.succeeded, other.succeeded) == (40, 40)
    assert (own.input_tokens, own.output_tokens) == (other.input_tokens, other.output_tokens)
    assert other.latency.ttft_from_send_s.p50 == pytest.approx(own.latency.ttft_from_send_s.p50, abs=0.02)
    assert other.latency.tpot_s is not None
    assert own.latency.tpot_s is not None
    assert other.latency.tpot_s.p50 == pytest.approx(own.latency.tpot_s.p50, abs=0.002)


@pytest.mark.slow
def test_both_load_generators_send_same_tokens_to_sglang(real_aiperf: Path, server: CpuServer, tmp_path: Path) -> None:
    """The server counts the tokens; its prefix cache is flushed before each run."""
    workload = WORKLOAD.model_copy(
        update={"input_tokens": 200, "output_tokens": 16, "requests": 30, "request_rates": (3.0,), "timeout_s": 60.0}
    )
    template = order_of(server.url, tmp_path, workload=workload)
    ours, theirs = (
        only(measure(replace(template, directory=tmp_path / name, aiperf=program), lambda _text, _transient: None))
        for name, program in (("ours", None), ("theirs", real_aiperf))
    )
    assert ours.server is not None
    assert theirs.server is not None
    assert theirs.server.prompt_tokens == ours.server.prompt_tokens == 30 * 200
    assert theirs.server.output_tokens == ours.server.output_tokens == 30 * 16
    assert theirs.cache is not None
    assert ours.cache is not None
    assert theirs.cache.metrics_share == pytest.approx(ours.cache.metrics_share, abs=0.02)
