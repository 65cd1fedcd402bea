"""When a rank counts as silent, and that a container's own Python runs the program that says so."""

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
STUCK = RankProgress({0: 10.0, 1: 12.0}, {0: 5.0, 1: 7.0}, 3.0)  # rank 1 decodes, and nothing comes out
UNCOUNTED = RankProgress({}, {}, None)


@dataclass
class Looked:
    """A look whose outcome is known."""

    silent: dict[int, str]
    works: list[RankProgress | None] = field(default_factory=list)
    healthy: bool = False
    waited: list[float] = field(default_factory=list)

    def wait(self, seconds: float = 0.0) -> None:
        self.waited.append(seconds)

    def is_healthy(self) -> bool:
        return self.healthy

    def work(self) -> RankProgress | None:
        return self.works.pop(0)


def silent(look: Looked, log: Path) -> list[int]:
    return sorted(unresponsive_ranks(look, log))  # type: ignore[arg-type]  # what a look is asked


def test_responsive_ranks_need_no_progress_check(tmp_path: Path) -> None:
    log = tmp_path / "kept"
    log.write_text("{}")
    assert silent(Looked({}), log) == []
    assert not log.exists(), "what was read before a rank answered is no sign of life after it"


@pytest.mark.parametrize(
    ("before", "after", "dead"),
    [
        (IDLE, IDLE, [1]),
        (IDLE, BUSY, []),
        (IDLE, STUCK, [1]),
        (IDLE, None, [1]),
        (None, BUSY, [1]),
        (RankProgress({0: 1.0}, {}, None), RankProgress({0: 9.0}, {}, None), [1]),  # it has never counted anything
    ],
    ids=["idle", "prefills", "held up", "nobody says", "nobody said", "the other one works"],
)
def test_busy_rank_without_response_is_alive(
    before: RankProgress | None, after: RankProgress | None, dead: list[int], tmp_path: Path
) -> None:
    assert silent(Looked({1: "no answer"}, [before, after]), tmp_path / "kept") == dead


def test_progress_between_probes_counts(tmp_path: Path) -> None:
    """It is counted as it ends, be that between two looks."""
    log = tmp_path / "kept"
    assert silent(Looked({1: "no answer"}, [IDLE, IDLE]), log) == [1]
    assert silent(Looked({1: "no answer"}, [BUSY]), log) == []
    assert silent(Looked({1: "no answer"}, [BUSY]), log) == [1]
    log.write_text("damaged")
    assert silent(Looked({1: "no answer"}, [IDLE, BUSY]), log) == []


def test_full_disk_does_not_fail_liveness(tmp_path: Path) -> None:
    """What cannot be kept, or looked for, is missed at the next look alone."""
    log = tmp_path / "no such folder" / "kept"
    assert silent(Looked({1: "no answer"}, [IDLE, BUSY]), log) == []
    assert silent(Looked({1: "no answer"}, [IDLE, IDLE]), log) == [1]
    assert silent(Looked({}), tmp_path) == [], "a folder, which cannot be removed so"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """The other ends of what is asked: a server that answers everybody."""
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
    monkeypatch: pytest.MonkeyPatch, sent: list[socket.socket]
) -> None:
    def no_room() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", no_room)
    assert liveness.main(["30000", "2", "2"]) == ""
    assert len(sent) == 2


def test_each_rank_samples_once_before_readiness(sent: list[socket.socket]) -> None:
    assert first_sample.main("30000", "3") == ""
    health, *questions = (end.recv(1 << 16).decode() for end in sent)
    assert health.startswith("GET /health ")
    bodies = [json.loads(text.partition("\r\n\r\n")[2]) for text in questions]
    assert [(body["routed_dp_rank"], body["sampling_params"]["temperature"]) for body in bodies] == [
        (rank, 1.0) for rank in range(3)
    ]


def test_prefill_or_decode_role_is_probed_with_fake_bootstrap(sent: list[socket.socket]) -> None:
    assert liveness.main(["30000", "1", "2", liveness.ALONE]) == ""
    assert first_sample.main("30000", "1", first_sample.ALONE) == ""
    texts = [end.recv(1 << 16).decode().partition("\r\n\r\n")[2] for end in sent]
    bodies = [json.loads(text) for text in texts if text]
    assert [(body["bootstrap_host"], body["bootstrap_room"]) for body in bodies] == [("2.2.2.2", 0)] * 2
    assert "bootstrap_host" not in liveness.question(0)


@pytest.mark.parametrize(
    ("key", "presented"), [("sk-0f", b"Bearer sk-0f"), ("sk-€", "Bearer sk-€".encode()), ("sk-0f\nb", None)]
)
def test_liveness_probe_omits_key_invalid_in_header(
    key: str, presented: bytes | None, tmp_path: Path, sent: list[socket.socket]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"api-key": key}))
    assert liveness.main(["30000", "1", "2", str(config)]) == ""
    asked = sent[0].recv(1 << 16)
    assert (b"Authorization: " in asked) is (presented is not None)
    assert presented is None or presented in asked


@pytest.mark.parametrize(("healthy", "dead"), [(True, []), (False, [0])])
def test_health_endpoint_decides_without_work_counters(healthy: bool, dead: list[int], tmp_path: Path) -> None:
    """A queue that is longer than a look is no death."""
    assert silent(Looked({0: "no answer"}, [UNCOUNTED], healthy=healthy), tmp_path / "kept") == dead


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
    """3.10 on AMD's images: no syntax that is younger, and nothing but the standard library."""
    source = Path(liveness.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 10))
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names
    monkeypatch.setattr(sys, "version_info", (3, 10))
    patterns = [value.pattern for value in runpy.run_path(liveness.__file__).values() if isinstance(value, re.Pattern)]
    assert patterns
    assert not [text for text in patterns if re.search(r"[*+?}]\+", text)], "possessive: 3.11"
