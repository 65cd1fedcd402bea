"""Long streams finish while servers are replaced or stopped; aborted ones are counted.

One test counts and aborts the streams of real sglang; the others use the scripted engine.
"""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from cpu_server import CpuServer
from gateway_pair import KEY, NAME, Pair, pair_in
from waits import TIMEOUT, wait_for

from orchestrator.engine.drain import RequestTally, ServerRequests

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with pair_in(tmp_path) as started:
        started.up(f"timeouts.termination_grace={TIMEOUT}", "env.SCRIPTED_STEP=0.005")
        yield started


@dataclass
class Stream:
    """The tokens of one stream so far, and how it ended."""

    tokens: int = 0
    finished: str = ""
    done: bool = False
    thread: threading.Thread | None = field(default=None, repr=False)

    def read(self, url: str, prompt: str, tokens: int) -> None:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
        headers = {"Authorization": f"Bearer {KEY}"}
        with (
            httpx.Client(timeout=TIMEOUT, trust_env=False) as client,
            client.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as response,
        ):
            for line in byte_lines(response):
                if line.startswith("data: {"):
                    [choice] = json.loads(line.removeprefix("data: "))["choices"]
                    self.tokens += 1
                    self.finished = choice["finish_reason"] or self.finished
                self.done |= line == "data: [DONE]"


def byte_lines(response: httpx.Response) -> Iterator[str]:
    """Yield the lines of a response; `iter_lines` also splits at U+0085 and U+2028, which a model may generate."""
    rest = b""
    for chunk in response.iter_bytes():
        *complete, rest = (rest + chunk).split(b"\n")
        yield from (line.decode() for line in complete)


def streams(url: str, lengths: list[int]) -> list[Stream]:
    """Start streams of these lengths and wait until all have begun."""
    started = [Stream() for _ in lengths]
    for number, (stream, tokens) in enumerate(zip(started, lengths, strict=True)):
        prompt = f"{number} is the number of this stream and of no other one"
        stream.thread = threading.Thread(target=stream.read, args=(url, prompt, tokens))
        stream.thread.start()
    wait_for(lambda: all(stream.tokens for stream in started))
    return started


def joined(started: list[Stream]) -> list[Stream]:
    for stream in started:
        assert stream.thread is not None
        stream.thread.join()
    return started


def first_has_streams(pair: Pair) -> bool:
    return ServerRequests("127.0.0.1", pair.ports[0], key=KEY).count() > 0


def endings(started: list[Stream]) -> set[tuple[bool, str]]:
    """Return how the streams ended; the scripted engine reports no reason."""
    return {(stream.done, stream.finished) for stream in joined(started)}


def reported_counts(text: str) -> tuple[int, int]:
    """Return how many requests `deploy` reported as ended and as aborted, for all servers."""
    matches = re.findall(r"drained replica [12]: (\d+) requests? ended(?:, (\d+) aborted after \d+ s)?", text)
    return sum(int(ended) for ended, _ in matches), sum(int(aborted or 0) for _, aborted in matches)


def test_streams_of_real_server_are_counted_and_aborted(server: CpuServer) -> None:
    requests = ServerRequests("127.0.0.1", server.plan.server.port, key="")
    open_streams = streams(server.url, [1000, 30_000, 30_000])
    wait_for(lambda: requests.count() == 3)
    tally = RequestTally(requests)
    wait_for(lambda: requests.count() == 2)
    tally.abort()
    assert tally.summary(2) == "1 request ended, 2 aborted after 2 s"
    finished = [(stream.done, stream.finished) for stream in joined(open_streams)]
    assert finished == [(True, "length"), (True, "abort"), (True, "abort")], open_streams
    wait_for(lambda: requests.count() == 0)


def test_drain_without_gateway_counts_aborted_streams(tmp_path: Path) -> None:
    with pair_in(tmp_path) as pair:
        pair.up("replicas=1", "timeouts.termination_grace=4", "env.SCRIPTED_STEP=0.005")
        open_streams = streams(pair.url, [50, 30_000])
        down = pair.deploy.run("down", NAME)
        assert down.returncode == 0, down.stderr
        ends = [(stream.done, stream.finished) for stream in joined(open_streams)]
        assert ends == [(True, "length"), (True, "")], open_streams
        assert re.search("drained `pair`: [01] requests? ended, 1 aborted after 4 s", down.stderr), down.stderr
        pair.nothing_left()


def test_streams_are_aborted_only_after_drain_timeout(pair: Pair) -> None:
    """The steps are a rolling update with a long drain, one with a short drain, and `down`."""
    open_streams = streams(pair.url, [1500] * 4)
    wait_for(lambda: first_has_streams(pair))
    waited = pair.deploy.run("restart", NAME)
    assert waited.returncode == 0, waited.stderr
    assert endings(open_streams) == {(True, "length")}, open_streams
    assert reported_counts(waited.stderr)[1] == 0, (
        waited.stderr
    )  # on a busy machine all may end before the drain begins

    open_streams = streams(pair.url, [30_000] * 4)
    wait_for(lambda: first_has_streams(pair))
    cut = pair.deploy.run("restart", NAME, "--drain", "2")
    assert cut.returncode == 0, cut.stderr
    assert endings(open_streams) == {(True, "")}, open_streams
    assert reported_counts(cut.stderr) == (0, 4), cut.stderr

    open_streams = streams(pair.url, [30_000] * 3)
    down = pair.deploy.run("down", NAME, "--drain", "2")
    assert down.returncode == 0, down.stderr
    assert endings(open_streams) == {(True, "")}, open_streams
    assert reported_counts(down.stderr) == (0, 3), down.stderr
    pair.nothing_left()
    print(waited.stderr, cut.stderr, down.stderr)
