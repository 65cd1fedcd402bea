"""Whether each rank of a server lives: a token that it is asked for, and the work that it counts.

::

    each rank is asked for a token ──answers, or refuses──▶ it lives
                │ does not             work it counts has grown, and comes out ──▶ it lives
                ▼                      it counts none, and `/health` is well   ──▶ it lives
    it is silent

This file is a program too, and what it knows of sglang others have from here: in a cluster a server's container runs it
again and again, by the engine's own Python (3.10 on AMD's images), of which it takes nothing but the standard library.

    python3 -I -S life.py PORT RANKS SECONDS [CONFIG]

Ends with 1 where a rank is silent, and says which; `SECONDS` is how long it asks, `CONFIG` sglang's own, with the key.
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

HEALTH: Final = "/health"  # generates a token: 200 where it came, 503 where it did not or the server still starts
METRICS: Final = "/metrics"  # Prometheus text, where the server runs with --enable-metrics
GENERATE: Final = "/generate"
RANK_FIELD: Final = "routed_dp_rank"  # the field that pins a request to one data-parallel rank of sglang
RANK_TOKENS: Final = "sglang:realtime_tokens_total"  # of each rank, at every chunk of prefill and every step of decode
# Counted where an answer is put together, behind the detokenizer (0.5.14, managers/tokenizer_manager.py, line 2363).
FIRST_TOKENS: Final = "sglang:time_to_first_token_seconds"
LATER_TOKENS: Final = "sglang:inter_token_latency_seconds"
REQUESTS: Final = "sglang:num_requests_total"
_COMING_OUT: Final = frozenset({f"{FIRST_TOKENS}_count", f"{LATER_TOKENS}_count", REQUESTS})
MOST_METRICS_BYTES: Final = 8 << 20
SLOW_AFTER_S: Final = 3.0  # seconds after which an answer that has not come is a reason to look
REJECTED: Final = range(400, 500)  # the question is refused: somebody lives who refuses it
_PROMPT: Final = (100, 101, 102)  # ids that every tokenizer has; from the cache after the first time
_LAST: Final = 2.0  # seconds for what is asked at the end of a look
_KEPT_IN: Final = "/tmp"  # noqa: S108 - the container's own; `tempfile` raises where no disk has room
_CONFIG_KEY: Final = re.compile(r"""^["']?api[-_]key["']?[ ]*:[ ]*(["']?)(.+?)\1[ ]*(?:[ ]#.*)?$""", re.MULTILINE)
_MANY: Final = "*+" if sys.version_info >= (3, 11) else "*"  # possessive: a hostile line of 8 MiB takes no gigabyte
# One sample a line, with a time behind it or not; a value of a label may hold any character but a bare quote.
_LABELS: Final = rf'(?:[^"}}\n]|"(?:[^"\\\n]|\\.){_MANY}"){_MANY}'
_LINE: Final = re.compile(
    rf"^(sglang:\w+)(?:\{{({_LABELS})\}})?[ \t]+([-+.\w]+)(?:[ \t]+-?\d+)?[ \t\r]*$", re.MULTILINE
)
_OTHER_RANK: Final = re.compile(r'\btp_rank="(?!0")')
_DP_RANK: Final = re.compile(r'\bdp_rank="([0-9]{1,6})"')
_DECODED: Final = 'mode="decode"'


@dataclass(frozen=True)
class RankProgress:
    """What a server has done so far: tokens by data-parallel rank, and what has come out of it."""

    done: Mapping[int, float]  # prefilled and decoded; it grows while a request gets on. {}: it does not count them
    decoded: Mapping[int, float]
    came_out: float | None  # first tokens, later ones and ends of requests, behind the detokenizer; None: not counted


def question(rank: int) -> dict[str, object]:
    """The body that asks a rank for one token; the counters of requests and latencies leave it out (`log_metrics`)."""
    sampling = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
    return {"input_ids": _PROMPT, "sampling_params": sampling, RANK_FIELD: rank, "log_metrics": False}


def samples(content: bytes | bytearray, names: Collection[str]) -> Iterator[tuple[str, str, float]]:
    """Name, labels and value of each sample of these that counts.

    Ranks of one tensor-parallel group repeat each other with --enable-metrics-for-all-schedulers: only tp rank 0
    counts.
    """
    for line in _LINE.finditer(content.decode(errors="replace")):
        name, labels, value = line.groups(default="")
        if name in names and not _OTHER_RANK.search(labels):
            yield name, labels, number_in(value)


def number_in(value: str) -> float:
    """A value of Prometheus' text; NaN for what is none."""
    try:
        return float(value)
    except ValueError:
        return math.nan


def read_work(content: bytes | bytearray) -> RankProgress:
    """The work of each rank, by its scheduler, and what came out, by the process that answers.

    A server of one rank does not say which it is.
    """
    done: dict[int, float] = {}
    decoded: dict[int, float] = {}
    for _, labels, value in samples(content, {RANK_TOKENS}):
        named = _DP_RANK.search(labels)
        rank = int(named[1]) if named else 0
        done[rank] = done.get(rank, 0.0) + value
        if _DECODED in labels:
            decoded[rank] = decoded.get(rank, 0.0) + value
    came_out = [value for _, _, value in samples(content, _COMING_OUT)]
    return RankProgress(done=done, decoded=decoded, came_out=sum(came_out) if came_out else None)


def makes_progress(rank: int, before: RankProgress | None, work: RankProgress) -> bool:
    """Whether a rank that does not answer has worked between two readings, and what is decoded comes out."""
    was, is_now = (before.done.get(rank) if before else None), work.done.get(rank)
    return None not in (was, is_now) and was != is_now and not output_stalled(before, work)


def output_stalled(before: RankProgress | None, work: RankProgress) -> bool:
    """Whether tokens were decoded between two readings and nothing has come out, as where the detokenizer hangs.

    What is decoded comes out, of each request every 50 tokens at the latest (0.5.14, SGLANG_FORCE_STREAM_INTERVAL).
    """
    if before is None or before.came_out is None or work.came_out != before.came_out:
        return False
    return any(tokens > before.decoded.get(rank, tokens) for rank, tokens in work.decoded.items())


class LivenessCheck:
    """One look at a server on a port of this machine. Every rank is asked as it begins, all of them at once."""

    def __init__(self, port: int, ranks: int, *, key: str, seconds: float) -> None:
        """`seconds` until a rank that has not answered is silent; `key` is "" where the server has none."""
        self._port, self._key, self._end = port, key, time.monotonic() + seconds
        self._asked: dict[int, http.client.HTTPConnection] = {}
        self.silent: dict[int, str] = {}  # the ranks that have not answered, each with why
        for rank in range(ranks):
            try:
                self._asked[rank] = self._sent("POST", GENERATE, json.dumps(question(rank)).encode())
                self.silent[rank] = f"no answer within {seconds:g} s"
            except OSError as error:
                self.silent[rank] = _why(error)

    def wait(self, seconds: float = math.inf) -> None:
        """Wait for answers so long, or until the look ends."""
        end = min(time.monotonic() + seconds, self._end)
        while self._asked and (left := end - time.monotonic()) > 0:
            answered = {each.sock: rank for rank, each in self._asked.items()}
            for each in select.select([*answered], [], [], left)[0]:
                self._take(answered[each])

    def is_well(self) -> bool:
        """Whether the server says so: it asks the ranks in turn, and is well by the answer of any."""
        return self._ask(HEALTH)[0] == http.client.OK

    def work(self) -> RankProgress | None:
        """What each rank has done so far; None where nobody says."""
        status, content = self._ask(METRICS)
        return read_work(content if status == http.client.OK else b"") if status else None

    def close(self) -> None:
        """Ask no more: sglang aborts what nobody waits for."""
        for connection in self._asked.values():
            connection.close()

    def _take(self, rank: int) -> None:
        status, why = _answer(self._asked.pop(rank), within=_LAST)
        if status == http.client.OK or status in REJECTED:
            del self.silent[rank]
        else:
            self.silent[rank] = f"it answers {status}" if status else why.decode()

    def _sent(self, method: str, path: str, content: bytes | None = None) -> http.client.HTTPConnection:
        headers: dict[str, str | bytes] = {"Content-Type": "application/json", "Connection": "close"}
        if self._key and self._key.isprintable():  # no header holds another one, and Python's error would show it
            headers["Authorization"] = f"Bearer {self._key}".encode()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_LAST)
        connection.request(method, path, body=content, headers=headers)
        return connection

    def _ask(self, path: str) -> tuple[int, bytes]:
        """Status and content, within what is left of the look and a little more; 0 where there is no answer."""
        try:
            return _answer(self._sent("GET", path), within=max(self._end - time.monotonic(), _LAST))
        except OSError as error:
            return 0, _why(error).encode()


def _answer(connection: http.client.HTTPConnection, *, within: float) -> tuple[int, bytes]:
    """Status and content; 0 and why where there is no complete response."""
    try:
        connection.sock.settimeout(within)
        answer = connection.getresponse()
        return answer.status, answer.read(MOST_METRICS_BYTES)
    except (OSError, http.client.HTTPException) as error:
        return 0, _why(error).encode()
    finally:
        connection.close()


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or "no complete response"


def unresponsive_ranks(look: LivenessCheck, kept: Path) -> dict[int, str]:
    """The ranks that do not live, each with why not.

    While one is silent, what was read of the work stays in `kept` for the next look: a chunk of prefill may take longer
    than a look. On a disk that is full each look counts by itself.
    """
    look.wait(SLOW_AFTER_S)
    if not look.silent:
        with suppress(OSError):
            kept.unlink(missing_ok=True)
        return {}
    before = _kept(kept) or look.work()
    if before is not None and not before.done:
        return {} if look.is_well() else look.silent
    look.wait()
    work = look.work()
    if work is None:
        return look.silent
    with suppress(OSError):
        kept.write_text(json.dumps(asdict(work)), encoding="utf-8")
    return {rank: why for rank, why in look.silent.items() if not makes_progress(rank, before, work)}


def _kept(file: Path) -> RankProgress | None:
    """What the look before has left."""
    try:
        said = json.loads(file.read_bytes())
        done, decoded = (
            {int(rank): float(count) for rank, count in said[each].items()} for each in ("done", "decoded")
        )
        return RankProgress(done=done, decoded=decoded, came_out=said["came_out"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def key_in(config: str) -> str:
    """The API key in a file for sglang's `--config`: JSON, or a line of YAML; "" where there is none."""
    try:
        said = json.loads(config)
        return str(said.get("api-key", "")) if isinstance(said, dict) else ""
    except ValueError:
        found = _CONFIG_KEY.search(config)
        return found[2] if found else ""


def main(words: Sequence[str]) -> str:
    """Look once: which ranks are silent."""
    port, ranks, seconds, *config = words
    key = key_in(Path(config[0]).read_text(encoding="utf-8")) if config else ""
    look = LivenessCheck(int(port), int(ranks), key=key, seconds=float(seconds))
    try:
        silent = unresponsive_ranks(look, Path(_KEPT_IN, f"deploy-life-{port}.json"))
    finally:
        look.close()
    return "; ".join(f"rank {rank} does not get on: {why}" for rank, why in sorted(silent.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or 0)
