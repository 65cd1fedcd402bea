"""Differences between a plan and the image built from it: the version of sglang, and the state of each patch."""

from collections.abc import Iterator
from typing import Final

from packaging.version import InvalidVersion, Version

from orchestrator.core.console import warn
from orchestrator.core.errors import BuildError
from orchestrator.images.receipt import ImageReceipt
from orchestrator.patches.ledger import read_ledger
from orchestrator.plan.patches import detected_patches
from orchestrator.plan.plan import DetectedPatches, Engine, Plan

# States from the applier (images/apply_patches.py).
_NOT_NEEDED: Final = frozenset({"upstream", "not applicable"})
_AT_START: Final = "applied at startup"
_NEEDED: Final = frozenset({"applied", _AT_START})
_CONFLICT: Final = "conflict"


def require_version(receipt: ImageReceipt, engine: Engine) -> None:
    """Raise BuildError if an image contains another sglang release than the engine names.

    The flags, warnings and known issues of the plan are valid for the engine's release only. A development version
    between two releases is accepted with a warning; sources without a version are accepted.
    """
    source = receipt.sources.get("sglang")
    actual = source.version if source else None
    try:
        version, expected = Version(actual or ""), Version(engine.version)
    except InvalidVersion:
        return
    if (version.release, version.post) == (expected.release, expected.post):
        return
    if not version.is_devrelease:
        raise BuildError(
            f"`{engine.image}` contains sglang {actual}; the engine names {engine.version}",
            hint=f"`--set engine.version={actual}`, or an image of {engine.version}: `--set engine.image=…`",
        )
    warn(f"`{engine.image}` contains sglang {actual}, between two releases; flags are checked for {engine.version}")


def unexpected_patches(plan: Plan, receipt: ImageReceipt) -> Iterator[str]:
    """Yield a message for each patch whose state in the image differs from the plan's expectation."""
    for use in plan.patches:
        state = receipt.state(use.id)
        if use.expected and use.kind != "file" and state in _NOT_NEEDED:
            yield f"patch `{use.id}` was expected to be needed, but its state is {state}: {use.reason}"
        elif not use.expected and state in _NEEDED:
            yield f"patch `{use.id}` was not expected, but the sources need it ({state}): {use.reason}"
        elif not use.expected and state == _CONFLICT:
            yield f"cannot determine whether the sources need patch `{use.id}`: {use.reason}"


def startup_patches(plan: Plan, receipt: ImageReceipt) -> DetectedPatches:
    """Return the unexpected patches that act at startup.

    The plan itself does not change: a later start detects the same patches in the same sources.
    """
    at_start = {record.id for record in receipt.patches if record.state == _AT_START}
    return detected_patches(read_ledger(), plan.patches, at_start)
