"""A rolling update says beforehand that requests fail while the only server of a role is replaced."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from plan_samples import plan_of

from orchestrator.runtimes.base import HostRef
from orchestrator.servers.group import RunningServer
from orchestrator.servers.rollout import update
from orchestrator.servers.servers import Servers
from orchestrator.servers.start.request import StartSpec


class Unchanged(Exception):  # noqa: N818 - it is no error
    """The update begins with its first change."""


def begun(profile: str, outdated: Sequence[int], monkeypatch: pytest.MonkeyPatch, *overrides: str) -> None:
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
            cast("RunningServer", SimpleNamespace(plan=None)),
            cast("HostRef", None),
        )


def test_replacing_only_server_of_a_role_warns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun("cpu-tiny-1p1d", [2], monkeypatch)
    said = "warning: decode 1 of 1 is replaced: requests fail until the new one is ready\n"
    assert capsys.readouterr().err == said
    begun("cpu-tiny", [1, 2], monkeypatch, "replicas=2")
    assert capsys.readouterr().err == ""
