"""Any content of a record file is a valid record or a readable error, and no process is killed."""

import json
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.core import procfs
from orchestrator.core.errors import DeployError, HostError
from orchestrator.core.paths import Home
from orchestrator.runtimes.base import Status
from orchestrator.runtimes.process.runtime import ProcessRuntime
from orchestrator.runtimes.supervisor.record import FILE, Record, read_record, write_record

IDENTITIES = st.from_regex(r"[0-9a-z-]{1,8}/[1-9][0-9]{0,6}/[0-9]{1,12}", fullmatch=True)
WORDS = st.text(st.characters(blacklist_categories=("C", "Z")), max_size=12)
RECORDS = st.builds(
    Record,
    name=st.just("tiny"),
    profile=WORDS,
    plan_digest=WORDS,
    url=WORDS,
    argv=st.lists(st.text(max_size=6), max_size=3).map(tuple),
    started_at=st.text(max_size=12),
    token=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12).map("/{}".format),
    supervisor=IDENTITIES,
    server=st.none() | IDENTITIES,
    output=st.none() | st.from_regex(r"pipe:\[[0-9]{1,20}\]", fullmatch=True),
    exit_code=st.none() | st.integers(),
    ended_at=st.none() | st.text(max_size=12),
    stopped=st.booleans(),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
CHANGES = st.dictionaries(
    st.sampled_from([field.name for field in fields(Record)]) | st.text(max_size=8), JSON, max_size=3
)
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the run directory of server `tiny`, on a machine without processes."""
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("boot\n")
    monkeypatch.setattr(procfs, "_PROC", tmp_path / "proc")
    monkeypatch.setattr("os.kill", lambda *_: pytest.fail("a process was killed"))
    folder = tmp_path / "runs" / "tiny" / "1"
    folder.mkdir(parents=True)
    return folder


def use(run_dir: Path) -> None:
    """Call all functions that read a record."""
    runtime = ProcessRuntime(Home(run_dir.parents[2]))
    for handle in runtime.find():
        assert handle.name == "tiny"
        assert runtime.state(handle).status is not Status.RUNNING
        with suppress(DeployError):
            runtime.stop(handle, grace=0)


@given(RECORDS)
@SHARED
def test_record_round_trips(run_dir: Path, record: Record) -> None:
    write_record(run_dir, record)
    assert read_record(run_dir) == record
    use(run_dir)


@given(RECORDS, CHANGES)
@SHARED
def test_modified_record_is_valid_or_rejected(run_dir: Path, record: Record, changes: dict[str, object]) -> None:
    (run_dir / FILE).write_text(json.dumps({**asdict(record), **changes}))
    with suppress(HostError):
        read_record(run_dir)
    use(run_dir)


@given(st.binary(max_size=200) | JSON.map(lambda data: json.dumps(data).encode()))
@SHARED
def test_arbitrary_bytes_are_rejected(run_dir: Path, content: bytes) -> None:
    (run_dir / FILE).write_bytes(content)
    with pytest.raises(HostError):
        read_record(run_dir)
    use(run_dir)
