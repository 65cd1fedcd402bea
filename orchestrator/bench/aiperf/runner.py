"""The runner of points whose load aiperf sends; `deploy` warms up and reads server counters and energy.

Keys of its configuration from config/config.py, endpoint.py, phases.py and dataset/config.py of aiperf 0.13.0. Each
request is a line of a Mooncake trace with a `payload`, which aiperf sends unchanged: both clients send the same bytes.
"""

import asyncio
import json
import signal
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from orchestrator.bench.aiperf.export import EXPORT, AiperfExport, parse_export, with_export
from orchestrator.bench.load_generator import LoadResult, PlannedLoad, PlannedRequest, PlannedSession
from orchestrator.bench.result import EndpointFacts, EndReason, Point
from orchestrator.bench.run_point import PointRunner
from orchestrator.bench.workload import Workload
from orchestrator.core import subprocesses
from orchestrator.core.console import Progress
from orchestrator.core.errors import BenchError
from orchestrator.core.files import atomic_write, open_new, read_file, remove_tree
from orchestrator.core.logs.lines import last_lines
from orchestrator.core.paths import Home, data_root
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import Secret, redact
from orchestrator.engine.requests import Api
from orchestrator.hosts.venvs.venv import ensure_venv

_VERSION: Final = "0.13.0"
_REQUIREMENTS: Final = "aiperf-0.13.0.txt"  # requirements of its virtual environment, below images/
KEY: Final = "DEPLOY_AIPERF_KEY"  # environment variable with the API key, named in the configuration
_REQUESTS: Final = FileName("requests.jsonl")
_TOKENIZER: Final = FileName("tokenizer")
_OFF: Final = {"enabled": False}
# Unused, since the server counts the tokens; without it, aiperf downloads a tokenizer.
_TOKENIZER_FILES: Final = {
    "tokenizer.json": {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
    },
    "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "b"},
}
CLIENT: Final = f"aiperf {_VERSION}"
_NEXT_PROMPTS: Final = "the recorded blocks, or drawn tokens in place of answers"
_POLL_S: Final = 0.2
_GRACE_S: Final = 10.0  # after Ctrl-C
_TAIL: Final = 12
_MAX_LOG: Final = 1 << 26
_OFFLINE: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # if set, aiperf treats a directory as a name on the hub
_LOG: Final = "aiperf.log"


def aiperf_program(home: Home) -> Path:
    """Return the program in its own virtual environment; the first call builds it. Raises BuildError."""
    venv = ensure_venv(data_root() / "images" / _REQUIREMENTS, home=home, progress=Progress())
    return venv.python.with_name("aiperf")


@dataclass(frozen=True, kw_only=True)
class _AiperfLoad(LoadResult):
    """A load without records of its requests."""

    export: AiperfExport


@dataclass(frozen=True, kw_only=True)
class AiperfRunner(PointRunner):
    """A runner whose load comes from aiperf; its files stay in `directory`."""

    program: Path
    key: Secret | None
    directory: Path

    def _finish(self, point: Point, load_result: LoadResult) -> tuple[Point, LoadResult]:
        assert isinstance(load_result, _AiperfLoad)  # noqa: S101 - made by `_send`
        exported = with_export(point, load_result.export, self.gpus, self.price)
        if point.sessions is not None and self.source is not None:
            totals = self.source.totals
            sessions = replace(point.sessions, sessions=totals.sessions, subagents=totals.subagents)
            exported = replace(exported, sessions=replace(sessions, next_prompts=_NEXT_PROMPTS))
        return exported, load_result

    def _load(self, sessions: Iterable[PlannedSession], activity: str, count: int) -> PlannedLoad:
        return replace(super()._load(sessions, f"{CLIENT}: {activity}", count), warmup_requests=0, duration_s=None)

    async def _send(self, label: str, load: PlannedLoad) -> LoadResult:
        """Run aiperf and always remove its temporary files. Raises BenchError with its log if it fails."""
        out = self.directory / FileName(f"aiperf-{label}")
        remove_tree(out, within=self.directory)
        with tempfile.TemporaryDirectory(prefix="deploy-aiperf-") as folder:
            work = Path(folder)
            for name, content in _TOKENIZER_FILES.items():
                atomic_write(work / _TOKENIZER / FileName(name), json.dumps(content))
            with open_new(work / _REQUESTS) as trace:
                written = await _write_requests(trace, load.sessions, recorded=self.source is not None)
            config = aiperf_config(
                self.endpoint.facts,
                self.workload,
                self._phase(*written),
                work=work,
                directory=out,
                has_key=self.key is not None,
                session_header=self.session_header,
            )
            code = await self._follow(atomic_write(work / "aiperf.yaml", config), work, out / _LOG)
            return _AiperfLoad(records=(), end_reason=EndReason.COMPLETE, export=_read_export(out, code))

    def _phase(self, sessions: int, last_arrival_s: float) -> dict[str, object]:
        """Return the phase of aiperf: a concurrency, recorded arrivals, or a rate."""
        phase: dict[str, object] = {"name": "profiling"}
        if self.source is not None and self.workload.duration_s is not None:
            phase |= {"duration": self.workload.duration_s, "grace_period": self.workload.timeout_s}
        if self.workload.load == "closed":
            return {**phase, "type": "concurrency", "concurrency": self.workload.concurrency, "sessions": sessions}
        if self.source is not None:
            return {**phase, "type": "fixed_schedule", "auto_offset": False}
        rate = round((sessions - 1) / last_arrival_s, 9)
        return {**phase, "type": self.workload.arrivals, "rate": rate, "requests": sessions}

    async def _follow(self, config: Path, work: Path, log: Path) -> int:
        argv = [str(self.program), "profile", "--config", str(config), "--ui", "none"]
        env: dict[str, str | None] = {"TMPDIR": str(work), "AIPERF_DATASET_MMAP_CACHE_ENABLED": "false"}
        env |= dict.fromkeys(_OFFLINE)
        if self.key is not None:
            env[KEY] = self.key.reveal()
        log.parent.mkdir(parents=True)
        with open_new(log) as output, subprocesses.start(argv, cwd=work, env=env, output=output, tied=True) as program:
            try:
                while (code := program.code) is None:  # noqa: ASYNC110 - a process sets no event
                    await asyncio.sleep(_POLL_S)
            except asyncio.CancelledError:
                program.end(signal.SIGINT, grace=_GRACE_S)
                raise
            return code


async def _write_requests(trace: BinaryIO, sessions: Iterable[PlannedSession], *, recorded: bool) -> tuple[int, float]:
    """Write the requests as lines of a trace; return the number of sessions, and the time of the last arrival.

    aiperf replays the lines of a session one after another: subagents run in turn, and drawn tokens replace an answer
    that the next prompt continues.
    """
    count, last = 0, 0.0
    for number, session in enumerate(sessions):
        name = f"session-{number}"
        for index, planned in enumerate(session.requests):
            body = b"".join(session.build(index)[1:])
            session.answered(index, None)
            if planned.arrival_s is not None and not planned.after:
                name, last = f"session-{number}.{index}", max(last, planned.arrival_s)
            count += index == 0 or name.endswith(f".{index}")
            at = planned.arrival_s if recorded else None
            trace.write(payload_line(body, planned, session=name, arrival_s=at))
        await asyncio.sleep(0)  # so that Ctrl-C is handled
    return count, last


def _read_export(out: Path, code: int) -> AiperfExport:
    """Return the summary that aiperf wrote. Raises BenchError if aiperf failed or measured only part of the load."""
    log, file = out / _LOG, out / EXPORT
    output = redact(read_file(log, max_bytes=_MAX_LOG).decode(errors="replace"))
    if code or not file.is_file():
        raise BenchError(
            f"{CLIENT} failed with exit code {code}",
            location=str(log),
            details="\n".join(line for line in last_lines(output, _TAIL) if line.strip()),
            hint="see its log; `bench` without `--tool` measures with the client of `deploy`",
        )
    export = parse_export(read_file(file, max_bytes=_MAX_LOG).decode(), location=str(file))
    if export.was_cancelled or not export.is_complete:
        raise BenchError(
            f"{CLIENT} ended early: {export.incomplete_reason or 'cancelled'}", location=str(log), hint="see its log"
        )
    return export


def payload_line(body: bytes, planned: PlannedRequest, *, session: str, arrival_s: float | None) -> bytes:
    """Return the line for one request with the JSON `body`."""
    fields: dict[str, object] = {"session_id": session, "output_length": planned.output_tokens}
    if arrival_s is not None:
        fields["timestamp"] = arrival_s * 1e3
    elif planned.delay_s:
        fields["delay"] = planned.delay_s * 1e3
    return b'%b, "payload": %b}\n' % (json.dumps(fields).removesuffix("}").encode(), body)


def aiperf_config(
    facts: EndpointFacts,
    workload: Workload,
    phase: dict[str, object],
    *,
    work: Path,
    directory: Path,
    has_key: bool,
    session_header: str | None = None,
) -> str:
    """Return the configuration for the requests and tokenizer in `work`, as JSON (a subset of YAML).

    The API key is the value of the variable `KEY`.
    """
    endpoint: dict[str, object] = {
        "url": facts.url,
        "type": "completions",
        "path": Api(facts.api).path,
        "streaming": True,
        "timeout": workload.timeout_s,
        "use_server_token_count": True,
    }
    if session_header is not None:
        endpoint["session_header"] = session_header  # aiperf sends an id for each session
    if has_key:
        endpoint["api_key"] = f"${{{KEY}}}"
    slo = workload.slo
    limits = {"time_to_first_token": slo.ttft_p95_s, "inter_token_latency": slo.tpot_p95_s}
    limits |= {"request_latency": slo.e2e_p95_s}
    benchmark = {
        "model": facts.served_model,
        "endpoint": endpoint,
        "dataset": {
            "type": "file",
            "path": str(work / _REQUESTS),
            "format": "mooncake_trace",
            "sampling": "sequential",
        },
        "phases": [phase],
        "tokenizer": {"name": str(work / _TOKENIZER)},
        "slos": {name: seconds * 1e3 for name, seconds in limits.items() if seconds is not None},
        "artifacts": {"dir": str(directory)},
        "gpu_telemetry": _OFF,
        "server_metrics": _OFF,
    }
    return json.dumps({"schemaVersion": "2.0", "randomSeed": workload.seed, "benchmark": benchmark}, indent=2) + "\n"
