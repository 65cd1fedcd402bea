"""Test that a start applies config patches as the image's receipt says, not as the plan alone says."""

import pytest

from orchestrator.core.paths import Home
from orchestrator.images.build import BuiltImage
from orchestrator.images.receipt import ImageReceipt, PatchRecord
from orchestrator.planner.planning import load, render_artifacts
from orchestrator.runtimes.base import HostRef
from orchestrator.runtimes.docker import spec

EXCLUDE = "mtp-shared-expert-exclude"


@pytest.mark.parametrize(
    ("state", "is_applied"), [("applied at startup", True), ("upstream", False), ("not applicable", False)]
)
def test_config_patch_is_applied_only_if_receipt_requires(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, state: str, is_applied: bool
) -> None:
    record = PatchRecord(id=EXCLUDE, title="", kind="config", state=state, upstream="", evidence=(), files=())
    receipt = ImageReceipt(python="3.10", sources={}, patches=(record,))
    built = BuiltImage(tag="t:1", image_id="sha256:1", receipt=receipt, built=True, builder="classic", seconds=0.0)
    monkeypatch.setattr(spec, "find_docker", lambda _: None)
    monkeypatch.setattr(spec, "build_image", lambda *_: built)
    host_ref = HostRef(home=Home(tmp_path_factory.mktemp("home")))

    prepared = spec.prepare(render_artifacts(load("mi355x-tp8-july").plan), host_ref)

    assert (EXCLUDE not in prepared.not_needed) == is_applied
