"""Which patches a plan carries, and which of them its version lets it expect.

Platform, model and speculation decide what is carried; whether the sources need it their content does, inside the image
(images/apply_patches.py).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from orchestrator.patches.schema import AddedFile, Applies, EnvironmentPatch, Patch
from orchestrator.plan.plan import EnvVar, FoundPatches, PlannedPatch


@dataclass(frozen=True, kw_only=True)
class PatchFacts:
    """What is known of a server before any source is read."""

    engine_version: str
    platform: str  # rocm | cuda | cpu
    quantization: str
    mtp_layer: int | None
    speculative_steps: int | None  # None without speculative decoding
    inputs: Mapping[str, str]  # files a user gave, name -> sha256 in hex


def select_patches(ledger: Sequence[Patch], facts: PatchFacts) -> tuple[PlannedPatch, ...]:
    """The patches for this platform and model, sorted by id; each with whether the version calls for it, and why."""
    chosen = [patch for patch in ledger if _applies(patch.applies, facts)]
    return tuple(_use(patch, facts) for patch in sorted(chosen, key=lambda patch: patch.id))


def patch_env(ledger: Sequence[Patch], uses: Iterable[PlannedPatch]) -> tuple[EnvVar, ...]:
    """The variables of expected patches of kind environment, and those of a file patch whose file was given."""
    return _variables(ledger, (use for use in uses if use.expected))


def found_patches(ledger: Sequence[Patch], uses: Iterable[PlannedPatch], at_start: Collection[str]) -> FoundPatches:
    """Those of the unexpected patches that a receipt says to act at a start, with their variables."""
    found = [use for use in uses if not use.expected and use.id in at_start]
    return FoundPatches(ids=frozenset(use.id for use in found), env=_variables(ledger, found))


def _variables(ledger: Sequence[Patch], uses: Iterable[PlannedPatch]) -> tuple[EnvVar, ...]:
    by_id = {patch.id: patch.apply for patch in ledger}
    found: list[EnvVar] = []
    for use in uses:
        apply = by_id[use.id]
        if isinstance(apply, EnvironmentPatch) or (isinstance(apply, AddedFile) and use.input_sha256 is not None):
            found += [EnvVar(name=v.name, value=v.value, origin=v.origin, source=v.source) for v in apply.env]
    return tuple(sorted(found, key=lambda variable: variable.name))


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
    given = facts.inputs.get(patch.apply.input) if isinstance(patch.apply, AddedFile) else None
    return PlannedPatch(
        id=patch.id,
        kind=patch.apply.kind,
        expected=_expected(patch, facts),
        reason=_reason(patch, facts, given),
        input_sha256=given,
    )


def _expected(patch: Patch, facts: PatchFacts) -> bool:
    return SpecifierSet(patch.applies.engine or "").contains(facts.engine_version, prereleases=True)


def _reason(patch: Patch, facts: PatchFacts, given: str | None) -> str:
    if isinstance(patch.apply, AddedFile) and given is None:
        return f"no `{patch.apply.input}` is given: {patch.symptom.effect}"
    if patch.applies.engine is None:
        return patch.title
    stands = "is" if _expected(patch, facts) else "is not"
    return f"sglang {facts.engine_version} {stands} in `{patch.applies.engine}` ({patch.upstream.reference})"
