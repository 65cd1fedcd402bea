"""The liveness check of a server: each rank generates a token, or its progress counters grow.

::

    request a token from each rank ──response or rejection──▶ alive
                │ no response          its counters grow and output is emitted ──▶ alive
                ▼                      no counters, and `/health` answers 200  ──▶ alive
          unresponsive

This file is also a program, which a server's container in a cluster runs repeatedly with the engine's own Python (3.10
in AMD's images) and only the standard library. Therefore it imports no other module of this project.

    python3 -I -S liveness.py PORT RANKS SECONDS [--alone] [CONFIG]

SECONDS is the time limit of the check, CONFIG is sglang's config file with the API key. `--alone` checks a prefill or
decode server. If a rank is unresponsive, the program names it and exits with 1.
"""

import http.client
import json
import math
import re
import select
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

HEALTH: Final = "/health"  # generates a token: 200, or 503 if that fails or the server is still starting
METRICS: Final = "/metrics"  # Prometheus text, if the server runs with --enable-metrics
GENERATE: Final = "/generate"
RANK_FIELD: Final = "routed_dp_rank"  # pins a request to one data-parallel rank of sglang
RANK_TOKENS: Final = "sglang:realtime_tokens_total"  # by rank; grows with every chunk of prefill and every decode step
# Counted after the detokenizer, when a response is assembled (0.5.14, managers/tokenizer_manager.py, line 2363).
FIRST_TOKENS: Final = "sglang:time_to_first_token_seconds"
LATER_TOKENS: Final = "sglang:inter_token_latency_seconds"
REQUESTS: Final = "sglang:num_requests_total"
_EMITTED: Final = frozenset({f"{FIRST_TOKENS}_count", f"{LATER_TOKENS}_count", REQUESTS})
MAX_METRICS_BYTES: Final = 8 << 20
SLOW_AFTER_S: Final = 3.0  # seconds without a response before the counters are read
# sglang's own health check of a prefill or decode server uses this address, without a transfer; a server rejects a
# request without an address (0.5.14, http_server.py).
FAKE_BOOTSTRAP: Final[Mapping[str, object]] = {"bootstrap_host": "2.2.2.2", "bootstrap_room": 0}
ALONE: Final = "--alone"
REJECTED: Final = range(400, 500)  # a rejected request also shows that the rank is alive
_PROMPT: Final = (100, 101, 102)  # token ids valid in every tokenizer; in the prefix cache after the first check
_LAST: Final = 2.0  # seconds for a request at the end of a check
_STATE_DIR: Final = "/tmp"  # noqa: S108 - the container's own; `tempfile` raises if all disks are full
_CONFIG_KEY: Final = re.compile(r"""^["']?api[-_]key["']?[ ]*:[ ]*(["']?)(.+?)\1[ ]*(?:[ ]#.*)?$""", re.MULTILINE)
_MANY: Final = "*+" if sys.version_info >= (3, 11) else "*"  # possessive: a hostile line of 8 MiB takes no gigabyte
# One sample per line, with an optional timestamp; a label value may contain any character but an unescaped quote.
_LABELS: Final = rf'(?:[^"}}\n]|"(?:[^"\\\n]|\\.){_MANY}"){_MANY}'
_LINE: Final = re.compile(
    rf"^((?:sglang|vllm|atom):\w+)(?:\{{({_LABELS})\}})?[ \t]+([-+.\w]+)(?:[ \t]+-?\d+)?[ \t\r]*$", re.MULTILINE
)
_OTHER_RANK: Final = re.compile(r'\btp_rank="(?!0")')
_DP_RANK: Final = re.compile(r'\bdp_rank="([0-9]{1,6})"')
_DECODED: Final = 'mode="decode"'


@dataclass(frozen=True)
class RankProgress:
    """The progress counters of a server: tokens by data-parallel rank, and emitted output."""

    done: Mapping[int, float]  # prefilled and decoded tokens; {} if the server has no such counters
    decoded: Mapping[int, float]
    emitted: float | None  # first and later tokens and finished requests, after the detokenizer; None: not counted


def question(rank: int, *, alone: bool = False) -> dict[str, object]:
    """Return the body of a request for one token of a rank, excluded from request metrics (`log_metrics`).

    `alone` is for a prefill or decode server, without its counterpart.
    """
    sampling = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
    body = {"input_ids": _PROMPT, "sampling_params": sampling, RANK_FIELD: rank, "log_metrics": False}
    return {**body, **(FAKE_BOOTSTRAP if alone else {})}


def samples(content: bytes | bytearray, names: Collection[str]) -> Iterator[tuple[str, str, float]]:
    """Yield name, labels and value of each sample with one of these names.

    Skip samples of tensor-parallel ranks other than 0: with --enable-metrics-for-all-schedulers, all ranks of a group
    report the same values.
    """
    for line in _LINE.finditer(content.decode(errors="replace")):
        name, labels, value = line.groups(default="")
        if name in names and not _OTHER_RANK.search(labels):
            yield name, labels, number_in(value)


def number_in(value: str) -> float:
    """Parse a value of Prometheus text; NaN if it is not a number."""
    try:
        return float(value)
    except ValueError:
        return math.nan


def read_work(content: bytes | bytearray) -> RankProgress:
    """Parse the progress counters in Prometheus text.

    A server with a single rank reports no rank; its tokens belong to rank 0.
    """
    done: dict[int, float] = {}
    decoded: dict[int, float] = {}
    for _, labels, value in samples(content, {RANK_TOKENS}):
        match = _DP_RANK.search(labels)
        rank = int(match[1]) if match else 0
        done[rank] = done.get(rank, 0.0) + value
        if _DECODED in labels:
            decoded[rank] = decoded.get(rank, 0.0) + value
    emitted = [value for _, _, value in samples(content, _EMITTED)]
    return RankProgress(done=done, decoded=decoded, emitted=sum(emitted) if emitted else None)


def makes_progress(rank: int, before: RankProgress | None, work: RankProgress) -> bool:
    """Return whether an unresponsive rank made progress between two readings, while output was emitted."""
    earlier, current = (before.done.get(rank) if before else None), work.done.get(rank)
    return None not in (earlier, current) and earlier != current and not output_stalled(before, work)


def output_stalled(before: RankProgress | None, work: RankProgress) -> bool:
    """Return whether tokens were decoded between two readings but no output was emitted: the detokenizer hangs.

    A request emits output at least every 50 decoded tokens (0.5.14, SGLANG_FORCE_STREAM_INTERVAL).
    """
    if before is None or before.emitted is None or work.emitted != before.emitted:
        return False
    return any(tokens > before.decoded.get(rank, tokens) for rank, tokens in work.decoded.items())


class LivenessCheck:
    """One check of a server on a port of this host, beginning with concurrent requests to all ranks."""

    def __init__(self, port: int, ranks: int, *, key: str, seconds: float, alone: bool = False) -> None:
        """Send a request to each rank. `seconds` is the time limit; `key` is "" without an API key."""
        self._port, self._key, self._end = port, key, time.monotonic() + seconds
        self._connections: dict[int, http.client.HTTPConnection] = {}
        self.unresponsive: dict[int, str] = {}  # rank → reason for no response
        for rank in range(ranks):
            try:
                self._connections[rank] = self._send("POST", GENERATE, json.dumps(question(rank, alone=alone)).encode())
                self.unresponsive[rank] = f"no response within {seconds:g} s"
            except OSError as error:
                self.unresponsive[rank] = _reason(error)

    def wait(self, seconds: float = math.inf) -> None:
        """Wait `seconds` for responses, at most until the end of the check."""
        end = min(time.monotonic() + seconds, self._end)
        while self._connections and (remaining := end - time.monotonic()) > 0:
            answered = {item.sock: rank for rank, item in self._connections.items()}
            for entry in select.select([*answered], [], [], remaining)[0]:
                self._read_response(answered[entry])

    def is_healthy(self) -> bool:
        """Return whether `/health` answers 200; the server asks its ranks in turn, and one response is enough."""
        return self._ask(HEALTH)[0] == http.client.OK

    def work(self) -> RankProgress | None:
        """Return the progress of each rank; None if there is no response."""
        status, content = self._ask(METRICS)
        return read_work(content if status == http.client.OK else b"") if status else None

    def close(self) -> None:
        """Close the connections; sglang then aborts the requests."""
        for connection in self._connections.values():
            connection.close()

    def _read_response(self, rank: int) -> None:
        status, reason = _answer(self._connections.pop(rank), timeout=_LAST)
        if status == http.client.OK or status in REJECTED:
            del self.unresponsive[rank]
        else:
            self.unresponsive[rank] = f"status {status}" if status else reason.decode()

    def _send(self, method: str, path: str, content: bytes | None = None) -> http.client.HTTPConnection:
        return send_request(("127.0.0.1", self._port), method, path, content, key=self._key, seconds=_LAST)

    def _ask(self, path: str) -> tuple[int, bytes]:
        """Return the status and content of a response; 0 and the reason without one."""
        try:
            return _answer(self._send("GET", path), timeout=max(self._end - time.monotonic(), _LAST))
        except OSError as error:
            return 0, _reason(error).encode()


def send_request(
    address: tuple[str, int], method: str, path: str, content: bytes | None, *, key: str, seconds: float
) -> http.client.HTTPConnection:
    """Send a request and return its connection. An answer may take `seconds`. Raises OSError."""
    headers: dict[str, str | bytes] = {"Content-Type": "application/json", "Connection": "close"}
    if key and key.isprintable():  # otherwise Python's error about the header would show the key
        headers["Authorization"] = f"Bearer {key}".encode()
    connection = http.client.HTTPConnection(*address, timeout=seconds)
    connection.request(method, path, body=content, headers=headers)
    return connection


def _answer(connection: http.client.HTTPConnection, *, timeout: float) -> tuple[int, bytes]:
    """Return the status and content of a response; 0 and the reason if it is incomplete."""
    try:
        connection.sock.settimeout(timeout)
        response = connection.getresponse()
        return response.status, response.read(MAX_METRICS_BYTES)
    except (OSError, http.client.HTTPException) as error:
        return 0, _reason(error).encode()
    finally:
        connection.close()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or "no complete response"


def unresponsive_ranks(check: LivenessCheck, saved: Path) -> dict[int, str]:
    """Return the unresponsive ranks, each with the reason.

    While a rank does not respond, its counters are saved in the file `saved` for the next check, because a chunk of
    prefill may take longer than one check. On a full disk, checks do not share counters.
    """
    check.wait(SLOW_AFTER_S)
    if not check.unresponsive:
        with suppress(OSError):
            saved.unlink(missing_ok=True)
        return {}
    before = _saved(saved) or check.work()
    if before is not None and not before.done:
        return {} if check.is_healthy() else check.unresponsive
    check.wait()
    work = check.work()
    if work is None:
        return check.unresponsive
    with suppress(OSError):
        saved.write_text(json.dumps(asdict(work)), encoding="utf-8")
    return {rank: reason for rank, reason in check.unresponsive.items() if not makes_progress(rank, before, work)}


def _saved(file: Path) -> RankProgress | None:
    """Read the counters that the previous check saved; None if there are none."""
    try:
        data = json.loads(file.read_bytes())
        done, decoded = (
            {int(rank): float(count) for rank, count in data[item].items()} for item in ("done", "decoded")
        )
        return RankProgress(done=done, decoded=decoded, emitted=data["emitted"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def key_in(config: str) -> str:
    """Return the API key in the text of sglang's `--config` file, JSON or YAML; "" if there is none."""
    try:
        data = json.loads(config)
        return str(data.get("api-key", "")) if isinstance(data, dict) else ""
    except ValueError:
        match = _CONFIG_KEY.search(config)
        return match[2] if match else ""


def main(words: Sequence[str]) -> str:
    """Check once and return a message that names the unresponsive ranks; "" if there are none."""
    port, ranks, seconds, *config = (word for word in words if word != ALONE)
    key = key_in(Path(config[0]).read_text(encoding="utf-8")) if config else ""
    check = LivenessCheck(int(port), int(ranks), key=key, seconds=float(seconds), alone=ALONE in words)
    try:
        unresponsive = unresponsive_ranks(check, Path(_STATE_DIR, f"deploy-liveness-{port}.json"))
    finally:
        check.close()
    return "; ".join(f"rank {rank} makes no progress: {reason}" for rank, reason in sorted(unresponsive.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or 0)
