"""Messages before a rolling update: it is impossible, or requests will fail during it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from plan_samples import plan_of
from run_samples import request_of

from orchestrator.core.errors import NameTakenError, UsageError
from orchestrator.core.paths import Home
from orchestrator.hosts.report import PreflightReport
from orchestrator.runs.run_dir import RunDir
from orchestrator.runtimes.base import HostRef, ServerState, Status, Unit
from orchestrator.servers.group import Server
from orchestrator.servers.rollout import update
from orchestrator.servers.servers import Servers
from orchestrator.servers.start.request import StartSpec
from orchestrator.servers.start.up import _already_up


class Unchanged(Exception):  # noqa: N818 - it is no error
    """Raised by the first change of the update."""


def begin_update(profile: str, outdated: Sequence[int], monkeypatch: pytest.MonkeyPatch, *overrides: str) -> None:
    def replace_replica(_: int) -> None:
        raise Unchanged

    state: Any = SimpleNamespace(
        set_running=lambda _: None,
        outdated=lambda: list(outdated),
        replace_replica=replace_replica,
        explain=lambda _: None,
    )
    monkeypatch.setattr(update, "_RollingUpdate", lambda **_: state)
    monkeypatch.setattr(update, "open_gateway_workers", lambda *_, **__: None)
    monkeypatch.setattr(update, "open_run_dir", lambda *_: None)
    request = SimpleNamespace(drain=None, min_gsm8k=None, max_replicas=None)
    start = SimpleNamespace(artifacts=SimpleNamespace(plan=plan_of(profile, *overrides)), key=None, request=request)
    servers = SimpleNamespace(runtime=lambda _: None, home=Path())
    with pytest.raises(Unchanged):
        update.rolling_update(
            cast("StartSpec", start),
            cast("Servers", servers),
            cast("Server", SimpleNamespace(plan=None, backend=None)),
            cast("HostRef", None),
            cast("PreflightReport", None),
        )


@pytest.mark.parametrize(
    ("before", "after", "hint"),
    [
        (("cpu-tiny", "replicas=2"), ("cpu-tiny", "replicas=3"), "--replace` does a rolling update; or choose"),
        (("cpu-tiny-1p1d",), ("cpu-tiny-1p1d", "layout.decode.replicas=2"), "--replace` does a rolling update; or"),
        (("cpu-tiny-1p1d",), ("cpu-tiny-1p1d", "layout.decode.dp=2"), "`deploy down owl`, then `deploy up "),
        (("cpu-tiny", "replicas=2"), ("cpu-tiny", "replicas=2", "server.port=31000"), "`deploy down owl`, then `"),
    ],
    ids=["replicas", "roles", "role", "port"],
)
def test_hint_for_another_plan_names_a_command_that_works(
    before: tuple[str, ...], after: tuple[str, ...], hint: str, tmp_path: Path
) -> None:
    """The hint once named `--replace`, which was then rejected."""
    home, old, new = Home(tmp_path), plan_of(*before), plan_of(*after)
    run = RunDir(home.make_runs("owl") / "20261127T110000Z-6204c84e")
    run.save("plan.json", {})
    (run.path / "plan.json").write_text(old.to_json())
    gateway = Unit(
        runtime="process",
        name="owl",
        profile="",
        plan_digest=old.digest,
        url="",
        run_dir=str(run.path),
        runtime_id="1",
        state=ServerState(status=Status.RUNNING),
    )
    replica = replace(gateway, run_dir=str(run.path / "replica-1"))
    group: Any = SimpleNamespace(find=lambda _: (gateway, replica))
    with pytest.raises(NameTakenError, match="`owl` has another plan") as caught:
        _already_up(Servers(home, {"process": group}), "owl", plan=new, request=request_of())
    assert hint in caught.value.hint


def test_minimum_score_is_rejected_for_disaggregated_roles() -> None:
    plan, request = plan_of("cpu-tiny-1p1d"), request_of(min_gsm8k=0.9)
    with pytest.raises(UsageError, match="`--min-gsm8k` asks each server alone") as caught:
        update.require_rollable(plan, plan, "owl", request)
    assert "deploy eval owl --suite gsm8k" in caught.value.hint


def test_replacing_only_server_of_a_role_warns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_update("cpu-tiny-1p1d", [2], monkeypatch)
    message = "warning: decode 1 of 1 is replaced: requests fail until the new one is ready\n"
    assert capsys.readouterr().err == message
    begin_update("cpu-tiny", [1, 2], monkeypatch, "replicas=2")
    assert capsys.readouterr().err == ""
