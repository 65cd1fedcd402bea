"""Selection of the patches of a plan.

Platform, model and speculative decoding select a patch. images/apply_patches.py decides inside the image, from the
content of the sources, whether they need it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from orchestrator.patches.schema import AddedFile, Applies, EnvironmentPatch, Patch
from orchestrator.plan.plan import DetectedPatches, EnvVar, PlannedPatch
from orchestrator.plan.serving import profile_serving

if TYPE_CHECKING:  # as in `plan/replicas.py`
    from orchestrator.profiles.schema import Profile


@dataclass(frozen=True, kw_only=True)
class PatchFacts:
    """The facts by which patches are selected."""

    engine_version: str
    platform: str  # rocm | cuda | cpu
    quantization: str
    mtp_layer: int | None
    speculative_steps: int | None  # None without speculative decoding
    inputs: Mapping[str, str]  # `--input` files: name -> sha256 in hex


def select_patches(ledger: Sequence[Patch], facts: PatchFacts) -> tuple[PlannedPatch, ...]:
    """Select the patches for this platform and model, sorted by id; the version determines the expected ones."""
    chosen = [patch for patch in ledger if _applies(patch.applies, facts)]
    return tuple(_use(patch, facts) for patch in sorted(chosen, key=lambda patch: patch.id))


def profile_patches(profile: "Profile", ledger: Sequence[Patch], inputs: Mapping[str, str]) -> tuple[PlannedPatch, ...]:
    """Select the patches of a profile; `inputs` as in `PatchFacts`."""
    drafts = profile_serving(profile).drafts
    facts = PatchFacts(
        engine_version=profile.engine.version,
        platform=profile.engine.platform,
        quantization=profile.model.quantization,
        mtp_layer=profile.model.mtp_layer,
        speculative_steps=drafts.steps if drafts else None,
        inputs=inputs,
    )
    return tuple(use for use in select_patches(ledger, facts) if use.id not in profile.skip_patches)


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


def _applies(conditions: Applies, facts: PatchFacts) -> bool:
    speculative = facts.mtp_layer is not None and facts.speculative_steps is not None
    return (
        facts.platform in conditions.platforms
        and (conditions.quantization is None or facts.quantization in conditions.quantization)
        and (conditions.mtp is None or conditions.mtp == speculative)
        and (
            conditions.min_speculative_steps is None
            or (facts.speculative_steps or 0) >= conditions.min_speculative_steps
        )
    )


def _use(patch: Patch, facts: PatchFacts) -> PlannedPatch:
    sha256 = facts.inputs.get(patch.apply.input) if isinstance(patch.apply, AddedFile) else None
    return PlannedPatch(
        id=patch.id,
        kind=patch.apply.kind,
        expected=_expected(patch, facts),
        reason=_reason(patch, facts, sha256),
        input_sha256=sha256,
    )


def _expected(patch: Patch, facts: PatchFacts) -> bool:
    return SpecifierSet(patch.applies.engine or "").contains(facts.engine_version, prereleases=True)


def _reason(patch: Patch, facts: PatchFacts, input_sha256: str | None) -> str:
    if isinstance(patch.apply, AddedFile) and input_sha256 is None:
        return f"no input `{patch.apply.input}`: {patch.symptom.effect}"
    if patch.applies.engine is None:
        return patch.title
    verb = "is" if _expected(patch, facts) else "is not"
    return f"sglang {facts.engine_version} {verb} in `{patch.applies.engine}` ({patch.upstream.reference})"
