"""What a build found, beside what its plan expected: the version of the sources, and each patch."""

from collections.abc import Iterator
from typing import Final

from packaging.version import InvalidVersion, Version

from orchestrator.core.console import warn
from orchestrator.core.errors import BuildError
from orchestrator.images.receipt import ImageReceipt
from orchestrator.patches.ledger import read_ledger
from orchestrator.plan.patches import detected_patches
from orchestrator.plan.plan import DetectedPatches, Engine, Plan

_WITHOUT: Final = frozenset({"present upstream", "not applicable"})  # the applier's words, as below
_AT_START: Final = "acts at start"
_NEEDED: Final = frozenset({"applied", _AT_START})
_OPEN: Final = "conflict"


def require_version(receipt: ImageReceipt, engine: Engine) -> None:
    """The package in the image calls itself what the engine does; a build between two releases is told and taken.

    Sources that do not say are taken too. Raises BuildError for another release: flags, warnings and reports were all
    looked up for the engine's.
    """
    found = next((source.version for name, source in receipt.sources if name == "sglang" and source), None)
    try:
        version, wanted = Version(found or ""), Version(engine.version)
    except InvalidVersion:
        return
    if (version.release, version.post) == (wanted.release, wanted.post):
        return
    if not version.is_devrelease:
        raise BuildError(
            f"`{engine.image}` holds sglang {found}, the engine says {engine.version}",
            hint=f"`--set engine.version={found}`, or an image of {engine.version}: `--set engine.image=…`",
        )
    warn(f"`{engine.image}` holds sglang {found}, between two releases; options are checked as of {engine.version}")


def unexpected_patches(plan: Plan, receipt: ImageReceipt) -> Iterator[str]:
    """Each patch whose state in the image is not what the plan's version let expect."""
    for use in plan.patches:
        state = receipt.state(use.id)
        if use.expected and use.kind != "file" and state in _WITHOUT:
            yield f"patch `{use.id}` was expected to be needed, and is {state}: {use.reason}"
        elif not use.expected and state in _NEEDED:
            yield f"patch `{use.id}` was not expected, and the sources need it ({state}): {use.reason}"
        elif not use.expected and state == _OPEN:
            yield f"whether the sources need patch `{use.id}` cannot be told: {use.reason}"


def found_at_start(plan: Plan, receipt: ImageReceipt) -> DetectedPatches:
    """Tell which unexpected patches act at a start. The plan stays as it is: the same sources are found again."""
    at_start = {record.id for record in receipt.patches if record.state == _AT_START}
    return detected_patches(read_ledger(), plan.patches, at_start)
