"""Selection of the patches of a plan.

Platform, model and speculative decoding select a patch. images/apply_patches.py decides inside the image, from the
content of the sources, whether they need it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from orchestrator.patches.schema import AddedFile, Applies, EnvironmentPatch, Patch
from orchestrator.plan.plan import DetectedPatches, EnvVar, PlannedPatch
from orchestrator.plan.serving import profile_serving

if TYPE_CHECKING:  # as in `plan/replicas.py`
    from orchestrator.profiles.schema import Profile


def profile_patches(profile: "Profile", ledger: Sequence[Patch], inputs: Mapping[str, str]) -> tuple[PlannedPatch, ...]:
    """Select the patches for a profile's platform and model, sorted by id; its version determines the expected ones.

    `inputs` are the `--input` files: name -> sha256 in hex.
    """
    chosen = [patch for patch in ledger if patch.id not in profile.skip_patches and _applies(patch.applies, profile)]
    return tuple(_use(patch, profile.engine.version, inputs) for patch in sorted(chosen, key=lambda patch: patch.id))


def patch_env(ledger: Sequence[Patch], uses: Iterable[PlannedPatch]) -> tuple[EnvVar, ...]:
    """Return the variables of expected environment patches, and of file patches with an input."""
    return _variables(ledger, (use for use in uses if use.expected))


def detected_patches(
    ledger: Sequence[Patch], uses: Iterable[PlannedPatch], at_start: Collection[str]
) -> DetectedPatches:
    """Return the unexpected patches that take effect at startup according to the image's receipt."""
    detected = [use for use in uses if not use.expected and use.id in at_start]
    return DetectedPatches(ids=frozenset(use.id for use in detected), env=_variables(ledger, detected))


def _variables(ledger: Sequence[Patch], uses: Iterable[PlannedPatch]) -> tuple[EnvVar, ...]:
    by_id = {patch.id: patch.apply for patch in ledger}
    variables: list[EnvVar] = []
    for use in uses:
        apply = by_id[use.id]
        if isinstance(apply, EnvironmentPatch) or (isinstance(apply, AddedFile) and use.input_sha256 is not None):
            variables += [EnvVar(name=v.name, value=v.value, origin=v.origin, source=v.source) for v in apply.env]
    return tuple(sorted(variables, key=lambda variable: variable.name))


def _applies(conditions: Applies, profile: "Profile") -> bool:
    drafts = profile_serving(profile).drafts
    speculative = profile.model.mtp_layer is not None and drafts is not None
    return (
        profile.engine.platform in conditions.platforms
        and (conditions.quantization is None or profile.model.quantization in conditions.quantization)
        and (conditions.mtp is None or conditions.mtp == speculative)
        and (conditions.min_speculative_steps or 0) <= (drafts.steps if drafts else 0)
    )


def _use(patch: Patch, version: str, inputs: Mapping[str, str]) -> PlannedPatch:
    sha256 = inputs.get(patch.apply.input) if isinstance(patch.apply, AddedFile) else None
    expected = SpecifierSet(patch.applies.engine or "").contains(version, prereleases=True)
    if isinstance(patch.apply, AddedFile) and sha256 is None:
        reason = f"no input `{patch.apply.input}`: {patch.symptom.effect}"
    elif patch.applies.engine is None:
        reason = patch.title
    else:
        verb = "is" if expected else "is not"
        reason = f"sglang {version} {verb} in `{patch.applies.engine}` ({patch.upstream.reference})"
    return PlannedPatch(id=patch.id, kind=patch.apply.kind, expected=expected, reason=reason, input_sha256=sha256)
