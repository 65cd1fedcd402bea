"""Test the comparison of a prebuilt image with a plan; each mismatch has a hint."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import httpx
import pytest
from run_samples import request_of

from orchestrator.core.errors import BuildError, KernelsError, UsageError
from orchestrator.core.paths import Home
from orchestrator.images.prebuilt import PrebuiltImage, require_matches_plan
from orchestrator.images.receipt import (
    BASE_DIGEST,
    BASE_NAME,
    ImageReceipt,
    PatchedFile,
    PatchRecord,
    SourceRecord,
    receipt_in,
)
from orchestrator.images.registry import Registry
from orchestrator.patches.ledger import patch_digest, read_diffs, read_ledger
from orchestrator.plan.plan import Plan
from orchestrator.planner import prebuilt
from orchestrator.planner.planning import load, render_artifacts
from orchestrator.planner.prebuilt import require_image
from orchestrator.runtimes.base import HostRef
from orchestrator.runtimes.docker.container import spec_of
from orchestrator.servers.start.plans import build_first_plan

GUARD, TABLE, TOPK = "rocm-cuda-runtime-guard", "aiter-fp4-moe-table", "dsa-topk-v2-off"
PINNED = "sha256:" + "a" * 64


def july(*overrides: str) -> Plan:
    return load("mi355x-tp8-july", overrides=overrides).plan


def records(plan: Plan, **states: str) -> tuple[PatchRecord, ...]:
    """Return a record for each patch of the plan, with the digest from the ledger."""
    ledger = read_ledger()
    diffs, known = read_diffs(ledger), {patch.id: patch for patch in ledger}
    return tuple(
        PatchRecord(
            id=use.id,
            title="",
            kind=use.kind,
            state=states.get(use.id.replace("-", "_"), "applied" if use.kind == "diff" else "not applicable"),
            upstream="",
            evidence=(),
            files=(),
            digest=patch_digest(known[use.id], diffs),
        )
        for use in plan.patches
    )


def matching_image(plan: Plan, *, version: str = "0.5.14", pinned: str | None = None, **states: str) -> PrebuiltImage:
    """Return an image as the plan's own build would create it."""
    engine = plan.engine
    sources = {
        "aiter": SourceRecord(root="/aiter", version=None, commit=pinned or engine.aiter_commit),
        "sglang": SourceRecord(root="/sglang", version=version, commit=None),
    }
    labels = {BASE_NAME: engine.image or "", BASE_DIGEST: engine.image_digest or ""}
    receipt = ImageReceipt(python="3.10", sources=sources, patches=records(plan, **states))
    return PrebuiltImage(reference="ghcr.io/me/tp8@sha256:1", receipt=receipt, labels=labels)


def without(name: str, image: PrebuiltImage) -> PrebuiltImage:
    remaining = tuple(record for record in image.receipt.patches if record.id != name)
    return replace(image, receipt=replace(image.receipt, patches=remaining))


def with_other_digest(name: str, image: PrebuiltImage) -> PrebuiltImage:
    changed = tuple(
        replace(record, digest="0" * 64) if record.id == name else record for record in image.receipt.patches
    )
    return replace(image, receipt=replace(image.receipt, patches=changed))


def labeled(name: str, text: str, image: PrebuiltImage) -> PrebuiltImage:
    return replace(image, labels={**image.labels, name: text})


def test_image_built_from_plan_is_accepted() -> None:
    require_matches_plan(july(), matching_image(july()))


@pytest.mark.parametrize(
    ("image", "message", "hint"),
    [
        (
            partial(matching_image, version="0.5.16"),
            "the image contains sglang 0.5.16; the engine names 0.5.14",
            "engine.version=0.5.16",
        ),
        (
            partial(matching_image, pinned="9127" * 10),
            "the image contains aiter 912791279127; the engine pins 7d604afe5fa7",
            "9127" * 10,
        ),
        (
            lambda plan: labeled(BASE_NAME, "mine:1", matching_image(plan)),
            "the image was built on `mine:1`; the engine names `lmsysorg/sglang-rocm:v0.5.14-rocm720-mi35x-20260626`",
            "`--set engine.image=mine:1`",
        ),
        (
            lambda plan: without(GUARD, matching_image(plan)),
            f"the image was not checked for patch `{GUARD}`",
            "`deploy build PROFILE`",
        ),
        (
            lambda plan: with_other_digest(GUARD, matching_image(plan)),
            f"the image contains another version of patch `{GUARD}`",
            "rebuild the image with this version of `deploy`: `deploy build PROFILE`",
        ),
    ],
)
def test_mismatching_image_is_rejected_with_hint(
    image: Callable[[Plan], PrebuiltImage], message: str, hint: str
) -> None:
    with pytest.raises(BuildError, match="does not match the plan of `mi355x-tp8-july`") as caught:
        require_matches_plan(july(), image(july()))
    [problem] = caught.value.problems
    assert message in problem.message
    assert hint in problem.hint


def test_pinned_base_digest_must_match_image() -> None:
    plan = july(f"engine.image_digest={PINNED}")
    require_matches_plan(plan, matching_image(plan))
    with pytest.raises(BuildError) as caught:
        require_matches_plan(plan, labeled(BASE_DIGEST, "sha256:" + "b" * 64, matching_image(plan)))
    assert "the engine pins sha256:aaaaaaaaaaaa…" in caught.value.problems[0].message


def test_image_with_unplanned_patch_is_rejected() -> None:
    """The image's own environment sets the variable of a startup patch, and a start cannot remove it."""
    plain = july("skip_patches=[rocm-cuda-runtime-guard, dsa-topk-v2-off]")
    image = matching_image(july(), dsa_topk_v2_off="applied at startup")
    with pytest.raises(BuildError) as caught:
        require_matches_plan(plain, image)
    assert [problem.message for problem in caught.value.problems] == [
        f"the image contains patch `{TOPK}` (applied at startup); the plan does not",
        f"the image contains patch `{GUARD}` (applied); the plan does not",
    ]
    require_matches_plan(plain, without(GUARD, matching_image(july())))


def test_kernel_table_is_read_from_receipt() -> None:
    image = matching_image(july(), aiter_fp4_moe_table="applied")
    file = PatchedFile(path="/opt/deploy/tables/tuned_fmoe.csv", before=None, after="c" * 64)
    patches = tuple(
        replace(record, files=(file,)) if record.id == TABLE else record for record in image.receipt.patches
    )
    image = replace(image, receipt=replace(image.receipt, patches=patches))
    assert image.inputs == {"moe-table": "c" * 64}
    assert image.tables == {"moe-table": "/opt/deploy/tables/tuned_fmoe.csv"}
    assert matching_image(july()).inputs == {}


def test_prebuilt_image_is_part_of_plan_digest() -> None:
    plan = replace(july(), prebuilt_image="ghcr.io/me/tp8@sha256:1")
    artifacts = render_artifacts(plan)
    assert (artifacts.build, spec_of(artifacts).image) == (None, "ghcr.io/me/tp8@sha256:1")
    assert plan.digest != july().digest


def test_process_runtime_rejects_an_image() -> None:
    with pytest.raises(UsageError, match="the process runtime uses no image"):
        require_image("process")


def registry_with(labels: dict[str, str]) -> Registry:
    blob = json.dumps({"config": {"Env": [], "Labels": labels}}).encode()
    manifest = json.dumps({"config": {"digest": f"sha256:{hashlib.sha256(blob).hexdigest()}"}}).encode()

    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=blob if "/blobs/" in request.url.path else manifest)

    return Registry(transport=httpx.MockTransport(respond))


def dry_run_plan(*overrides: str, allow_untuned: bool = False) -> Plan:
    """Return the plan of a dry run on a remote host with an image that was never pulled."""
    image = "ghcr.io/me/tp8:v1"
    request = request_of(*overrides, profile="mi355x-tp8-july", image=image, allow_untuned=allow_untuned)
    home = Home(Path("/nowhere"))
    return build_first_plan(request, request.source(home), HostRef(home=home, remote="ssh://node"), offline=True).plan


def labels_of(image: PrebuiltImage) -> dict[str, str]:
    return {**image.labels, "deploy.receipt": json.dumps(asdict(image.receipt))}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("sources", value) for value in ([], None, 5, "x", {"sglang": 5}, {"sglang": {"root": 5}})),
        *(("patches", value) for value in ({}, None, 5, [5], [[]], [{"id": 5}])),
        *(("python", value) for value in (5, None, [])),
        (None, []),
        (None, 5),
        (None, None),
    ],
)
def test_invalid_receipt_label_is_rejected(key: str | None, value: object) -> None:
    """Anyone can put a label on an image; some values once caused an internal error."""
    image = matching_image(july())
    receipt = json.loads(labels_of(image)["deploy.receipt"])
    assert receipt_in({"deploy.receipt": json.dumps(receipt)}, "x") == image.receipt
    label = json.dumps(value if key is None else receipt | {key: value})
    with pytest.raises(BuildError, match="or damaged"):
        receipt_in({"deploy.receipt": label}, "x")


def test_dry_run_reads_receipt_from_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prebuilt, "_REGISTRY", registry_with(labels_of(matching_image(july()))))
    plan = dry_run_plan(allow_untuned=True)
    assert (plan.prebuilt_image or "").startswith("ghcr.io/me/tp8@sha256:")
    with pytest.raises(KernelsError, match="has no table of tuned kernels"):
        dry_run_plan()
    monkeypatch.setattr(prebuilt, "_REGISTRY", registry_with(labels_of(matching_image(july(), version="0.5.16"))))
    with pytest.raises(BuildError, match="does not match the plan of `mi355x-tp8-july`"):
        dry_run_plan()
    monkeypatch.setattr(prebuilt, "_REGISTRY", registry_with({}))
    with pytest.raises(BuildError, match="has no receipt"):
        dry_run_plan()


def test_dry_run_tolerates_unavailable_registry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unavailable = Registry(transport=httpx.MockTransport(lambda _: httpx.Response(503)))
    monkeypatch.setattr(prebuilt, "_REGISTRY", unavailable)
    assert dry_run_plan().prebuilt_image == "ghcr.io/me/tp8:v1"
    assert "its receipt is checked against the plan after the pull" in capsys.readouterr().err


def test_registry_is_not_queried_for_node_local_image(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = Registry(transport=httpx.MockTransport(lambda _: pytest.fail("the registry must not be queried")))
    monkeypatch.setattr(prebuilt, "_REGISTRY", registry)
    overrides = ("runtime=kubernetes", "engine=sglang-0.5.16-rocm", "kubernetes.weights.pvc=models")
    assert dry_run_plan(*overrides, "kubernetes.image_pull_policy=Never").prebuilt_image == "ghcr.io/me/tp8:v1"
    assert "is on the nodes only; its receipt is not compared" in capsys.readouterr().err


def test_replicas_need_an_image_with_gateway() -> None:
    plan = load("mi355x-tp4x2").plan
    without_gateway = matching_image(plan, version=plan.engine.version)
    with pytest.raises(BuildError) as error:
        require_matches_plan(plan, without_gateway)
    assert "the image contains no gateway" in [problem.message for problem in error.value.problems]
    with pytest.raises(BuildError) as error:
        require_matches_plan(plan, labeled("deploy.gateway", "1.9.0", without_gateway))
    assert "the image contains gateway 1.9.0; the plan needs 1.13.0" in [
        problem.message for problem in error.value.problems
    ]
