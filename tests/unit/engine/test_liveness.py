"""Test when a rank counts as unresponsive, and that a container's own Python can run the liveness program."""

import ast
import http.client
import json
import re
import runpy
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.engine import first_sample, liveness
from orchestrator.engine.liveness import RankProgress, key_in, makes_progress, unresponsive_ranks

IDLE = RankProgress({0: 10.0, 1: 10.0}, {0: 5.0, 1: 5.0}, 3.0)
BUSY = RankProgress({0: 10.0, 1: 12.0}, {0: 5.0, 1: 5.0}, 3.0)  # rank 1 prefills
STUCK = RankProgress({0: 10.0, 1: 12.0}, {0: 5.0, 1: 7.0}, 3.0)  # rank 1 decodes, but emits nothing
UNCOUNTED = RankProgress({}, {}, None)


@dataclass
class FakeCheck:
    """A liveness check with prepared results."""

    unresponsive: dict[int, str]
    works: list[RankProgress | None] = field(default_factory=list)
    healthy: bool = False
    waited: list[float] = field(default_factory=list)

    def wait(self, seconds: float = 0.0) -> None:
        self.waited.append(seconds)

    def is_healthy(self) -> bool:
        return self.healthy

    def work(self) -> RankProgress | None:
        return self.works.pop(0)


def ranks_without_progress(check: FakeCheck, log: Path) -> list[int]:
    return sorted(unresponsive_ranks(check, log))  # type: ignore[arg-type]  # a FakeCheck


def test_responsive_ranks_need_no_progress_check(tmp_path: Path) -> None:
    log = tmp_path / "kept"
    log.write_text("{}")
    assert ranks_without_progress(FakeCheck({}), log) == []
    assert not log.exists(), "a reading from before a response must not count as later progress"


@pytest.mark.parametrize(
    ("before", "after", "unresponsive"),
    [
        (IDLE, IDLE, [1]),
        (IDLE, BUSY, []),
        (IDLE, STUCK, [1]),
        (IDLE, None, [1]),
        (None, BUSY, [1]),
        (RankProgress({0: 1.0}, {}, None), RankProgress({0: 9.0}, {}, None), [1]),  # rank 1 has no counter
    ],
    ids=["idle", "prefills", "output stalled", "no reading after", "no reading before", "only the other rank works"],
)
def test_busy_rank_without_response_is_alive(
    before: RankProgress | None, after: RankProgress | None, unresponsive: list[int], tmp_path: Path
) -> None:
    assert ranks_without_progress(FakeCheck({1: "no answer"}, [before, after]), tmp_path / "kept") == unresponsive


def test_progress_between_probes_counts(tmp_path: Path) -> None:
    """A request counts when it ends, which may be between two probes."""
    log = tmp_path / "kept"
    assert ranks_without_progress(FakeCheck({1: "no answer"}, [IDLE, IDLE]), log) == [1]
    assert ranks_without_progress(FakeCheck({1: "no answer"}, [BUSY]), log) == []
    assert ranks_without_progress(FakeCheck({1: "no answer"}, [BUSY]), log) == [1]
    log.write_text("damaged")
    assert ranks_without_progress(FakeCheck({1: "no answer"}, [IDLE, BUSY]), log) == []


def test_full_disk_does_not_fail_liveness(tmp_path: Path) -> None:
    """A reading that cannot be saved or loaded affects only the next check."""
    log = tmp_path / "no such folder" / "kept"
    assert ranks_without_progress(FakeCheck({1: "no answer"}, [IDLE, BUSY]), log) == []
    assert ranks_without_progress(FakeCheck({1: "no answer"}, [IDLE, IDLE]), log) == [1]
    assert ranks_without_progress(FakeCheck({}), tmp_path) == [], "a directory cannot be removed with `unlink`"


@pytest.fixture
def server_ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """Simulate a server that accepts every request; return the server's ends of the connections."""
    ends: list[socket.socket] = []

    def connect(connection: http.client.HTTPConnection) -> None:
        connection.sock, end = socket.socketpair()
        end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        ends.append(end)

    monkeypatch.setattr(http.client.HTTPConnection, "connect", connect)
    yield ends
    for end in ends:
        end.close()


def test_responsive_server_is_alive_without_writable_directory(
    monkeypatch: pytest.MonkeyPatch, server_ends: list[socket.socket]
) -> None:
    def fail() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", fail)
    assert liveness.main(["30000", "2", "2"]) == ""
    assert len(server_ends) == 2


def test_each_rank_samples_once_before_readiness(server_ends: list[socket.socket]) -> None:
    assert first_sample.main("30000", "3") == ""
    health, *questions = (end.recv(1 << 16).decode() for end in server_ends)
    assert health.startswith("GET /health ")
    bodies = [json.loads(text.partition("\r\n\r\n")[2]) for text in questions]
    assert [(body["routed_dp_rank"], body["sampling_params"]["temperature"]) for body in bodies] == [
        (rank, 1.0) for rank in range(3)
    ]


def test_prefill_or_decode_role_is_probed_with_fake_bootstrap(server_ends: list[socket.socket]) -> None:
    assert liveness.main(["30000", "1", "2", liveness.ALONE]) == ""
    assert first_sample.main("30000", "1", first_sample.ALONE) == ""
    texts = [end.recv(1 << 16).decode().partition("\r\n\r\n")[2] for end in server_ends]
    bodies = [json.loads(text) for text in texts if text]
    assert [(body["bootstrap_host"], body["bootstrap_room"]) for body in bodies] == [("2.2.2.2", 0)] * 2
    assert "bootstrap_host" not in liveness.question(0)


@pytest.mark.parametrize(
    ("key", "presented"), [("sk-0f", b"Bearer sk-0f"), ("sk-€", "Bearer sk-€".encode()), ("sk-0f\nb", None)]
)
def test_liveness_probe_omits_key_invalid_in_header(
    key: str, presented: bytes | None, tmp_path: Path, server_ends: list[socket.socket]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"api-key": key}))
    assert liveness.main(["30000", "1", "2", str(config)]) == ""
    request = server_ends[0].recv(1 << 16)
    assert (b"Authorization: " in request) is (presented is not None)
    assert presented is None or presented in request


@pytest.mark.parametrize(("healthy", "unresponsive"), [(True, []), (False, [0])])
def test_health_endpoint_decides_without_work_counters(healthy: bool, unresponsive: list[int], tmp_path: Path) -> None:
    """A queue that outlasts the probe does not mean that the rank is dead."""
    assert (
        ranks_without_progress(FakeCheck({0: "no answer"}, [UNCOUNTED], healthy=healthy), tmp_path / "kept")
        == unresponsive
    )


def test_first_reading_is_not_progress() -> None:
    assert not makes_progress(0, None, BUSY)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ('{"api-key": "sk-\\"a"}\n', 'sk-"a'),
        ("# ours\napi-key: sk-a  \nlog-level: info\n", "sk-a"),
        ("api_key: 'sk-a b'\n", "sk-a b"),
        ("api-key: sk-a#b  # of the night\n", "sk-a#b"),
        ("api-key: 'sk-a # b' # quoted\n", "sk-a # b"),
        ("{}", ""),
        ("[]", ""),
        ("log-level: info\n", ""),
    ],
)
def test_api_key_is_parsed_like_sglang(config: str, key: str) -> None:
    assert key_in(config) == key


def test_liveness_script_runs_on_python_3_10(monkeypatch: pytest.MonkeyPatch) -> None:
    """AMD's images have Python 3.10: newer syntax and third-party modules are not allowed."""
    source = Path(liveness.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 10))
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names
    monkeypatch.setattr(sys, "version_info", (3, 10))
    patterns = [value.pattern for value in runpy.run_path(liveness.__file__).values() if isinstance(value, re.Pattern)]
    assert patterns
    assert not [text for text in patterns if re.search(r"[*+?}]\+", text)], "possessive quantifiers need Python 3.11"
