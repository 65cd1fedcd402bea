"""`deploy logs` of running and stopped servers."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from plan_samples import plan_of

from orchestrator.core.paths import Home
from orchestrator.runs.run_dir import RunDir, open_run
from orchestrator.runtimes.base import Unit
from orchestrator.servers.logs import log_lines
from orchestrator.servers.servers import Servers


class Running:
    """A runtime with one server, whose log gets two more lines while it is followed."""

    def find(self, name: str | None) -> tuple[Unit, ...]:
        return (Unit(runtime="it", name=name or "", profile="", plan_digest="", url="", run_dir="", runtime_id=""),)

    def logs(self, _handle: Unit, *, follow: bool) -> Iterator[str]:
        yield from ("a", "b", "c", *(("d", "e") if follow else ()))


def test_running_server_log_is_limited_and_followed(tmp_path: Path) -> None:
    servers = Servers(Home(tmp_path), {"it": Running()})  # type: ignore[dict-item]
    assert list(log_lines(servers, "owl", follow=True, last=1)) == ["c", "d", "e"]


def test_saved_log_is_shown_of_a_stopped_server(tmp_path: Path) -> None:
    servers = Servers(Home(tmp_path), {})
    run = open_run(servers.home, "owl", plan_of("cpu-tiny"))
    run.log.write_text("one\ntwo\n")
    assert list(log_lines(servers, "owl", follow=False)) == ["one", "two"]
    assert list(log_lines(servers, "owl", follow=False, last=1)) == ["two"]
    old = run.path.rename(run.path.with_name("20261122T080000Z-abc"))
    assert RunDir(old).started == datetime(2026, 11, 22, 8, tzinfo=UTC)
    assert RunDir(tmp_path / "other-name").started is None
