"""The configuration file of aiperf 0.13.0 for one point; without I/O.

Keys from its config/config.py, endpoint.py, phases.py and dataset/config.py. Each request is a line of a Mooncake trace
with a `payload`, which aiperf sends as it is: both clients send the same bytes.
"""

import json
from pathlib import Path
from typing import Final

from orchestrator.bench.load_generator import PlannedRequest
from orchestrator.bench.result import EndpointFacts
from orchestrator.bench.workload import Workload
from orchestrator.core.safe_paths import FileName
from orchestrator.engine.requests import Api

VERSION: Final = "0.13.0"
REQUIREMENTS: Final = "aiperf-0.13.0.txt"  # of its virtual environment, below images/
KEY: Final = "DEPLOY_AIPERF_KEY"  # environment variable that the configuration names in place of the API key
REQUESTS: Final = FileName("requests.jsonl")
TOKENIZER: Final = FileName("tokenizer")
_OFF: Final = {"enabled": False}
# It counts nothing here, as the server reports the tokens; without one, aiperf downloads a tokenizer.
TOKENIZER_FILES: Final = {
    "tokenizer.json": {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
    },
    "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "b"},
}


def payload_line(body: bytes, planned: PlannedRequest, *, session: str, arrival_s: float | None) -> bytes:
    """Return the line of one request, whose JSON is `body`."""
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
    """Return the configuration as JSON, a subset of YAML, of the requests and the tokenizer in `work`.

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
        endpoint["session_header"] = session_header  # its value is an id that aiperf makes for each session
    if has_key:
        endpoint["api_key"] = f"${{{KEY}}}"
    slo = workload.slo
    limits = {"time_to_first_token": slo.ttft_p95_s, "inter_token_latency": slo.tpot_p95_s}
    limits |= {"request_latency": slo.e2e_p95_s}
    benchmark = {
        "model": facts.served_model,
        "endpoint": endpoint,
        "dataset": {"type": "file", "path": str(work / REQUESTS), "format": "mooncake_trace", "sampling": "sequential"},
        "phases": [phase],
        "tokenizer": {"name": str(work / TOKENIZER)},
        "slos": {name: seconds * 1e3 for name, seconds in limits.items() if seconds is not None},
        "artifacts": {"dir": str(directory)},
        "gpu_telemetry": _OFF,
        "server_metrics": _OFF,
    }
    return json.dumps({"schemaVersion": "2.0", "randomSeed": workload.seed, "benchmark": benchmark}, indent=2) + "\n"
