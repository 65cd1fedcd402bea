"""Known issues of configurations, from profiles/known_issues/*.yaml, and their matching against plans."""

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatch
from types import MappingProxyType
from typing import Final, Literal

from packaging.specifiers import SpecifierSet
from pydantic import Field

from orchestrator.core.errors import Problem
from orchestrator.core.validation import StrictModel, Text
from orchestrator.core.yaml_document import KeyPath
from orchestrator.engine.memory import default_chunk
from orchestrator.patches.schema import VersionRange
from orchestrator.plan.plan import Plan, PlanWarning

_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}
_COMPARISON: Final = re.compile(r"(>=|<=|>|<|==) *([0-9.]+)\Z")
_CHECKED: Final = r"^20\d\d-\d\d(, sources of 20\d\d-\d\d-\d\d)?$"


class IssueConditions(StrictModel):
    """The conditions of a known issue; a plan matches if it meets all conditions that are set."""

    engine: VersionRange | None = Field(default=None, description="PEP 440 range of sglang versions")
    platforms: tuple[str, ...] = ()
    archs: tuple[str, ...] = Field(default=(), description="gfx950, sm100")
    architectures: tuple[str, ...] = Field(default=(), description="shell patterns of `model.architecture`")
    sparse_attention: bool | None = Field(default=None, description="whether the model has DeepSeek's (DSA)")
    checkpoints: tuple[str, ...] = Field(default=(), description="shell patterns of checkpoint paths")
    quantizations: tuple[str, ...] = Field(default=(), description="shell patterns")
    images: tuple[str, ...] = Field(default=(), description="shell patterns of the base image")
    image_older_than: int | None = Field(default=None, description="YYYYMMDD at the end of the image's tag, exclusive")
    dp_attention: bool | None = None
    experts: bool | None = Field(default=None, description="whether the model has routed experts")
    min_prefill_logits: int = Field(
        default=0, description="the least product of a chunk's tokens and the longest prompt's"
    )
    min_tp: int = Field(default=1, description="the smallest tensor parallelism of a replica")
    without_patches: tuple[str, ...] = Field(default=(), description="patches that repair it, none of them applied")
    flags: Mapping[str, str] = Field(
        default={},
        description="pattern of a flag -> its value: shell patterns separated by `|`, or comparisons such as `>4,<=8`",
    )
    without_flags: Mapping[str, str] = Field(default={}, description="flags that are absent or have another value")
    env: Mapping[str, str] = Field(default={}, description="variables, written like `flags`")
    without_env: Mapping[str, str] = Field(default={}, description="variables that are absent or have another value")

    def key(self, plan: Plan) -> KeyPath:
        """Return the most specific profile key behind the issue."""
        if self.checkpoints:
            return "model", "checkpoint"
        for section, names, settings in (("env", self.env, plan.env), ("flags", self.flags, plan.flags)):
            if settings_set := [setting.name for setting in settings for name in names if fnmatch(setting.name, name)]:
                return section, settings_set[0]
        return ("engine",) if self.dp_attention is None else ("layout", "dp_attention")


class KnownIssue(StrictModel):
    """One known issue, with its source and its workaround."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    summary: Text = Field(description="the effect that a user sees")
    source: Text = Field(description="repository and number, or public file, that reports the issue")
    hint: Text = Field(description="workaround, and its price")
    confidence: Literal["high", "medium", "low"] = Field(description="high: the mechanism is shown, or reports agree")
    checked: str = Field(pattern=_CHECKED, description="month of the check; date of the sources read")
    match: IssueConditions


class KnownIssues(StrictModel):
    """A file of known issues: `blocked` issues prevent a start, `warnings` are shown, others explain smoke tests."""

    blocked: tuple[KnownIssue, ...] = ()
    warnings: tuple[KnownIssue, ...] = ()
    wrong_answers: tuple[KnownIssue, ...] = Field(default=(), description="issues that make answers wrong")
    nondeterministic: tuple[KnownIssue, ...] = Field(
        default=(), description="reasons why two greedy answers may differ"
    )

    def __add__(self, other: "KnownIssues") -> "KnownIssues":
        """Concatenate both."""
        return KnownIssues(**{name: getattr(self, name) + getattr(other, name) for name in KnownIssues.model_fields})


def blocking_issues(
    entries: Sequence[KnownIssue],
    plan: Plan,
    *,
    allowed: Collection[str] = (),
    location: Callable[[KeyPath], str] = lambda _: "",
    image_env: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Problem, ...]:
    """Return the known issues that block a plan, except the `allowed` ids; `location` maps a key to `file:line`.

    `image_env` is the environment of the plan's image.
    """
    return tuple(
        Problem(
            f"known issue: {entry.summary} ({entry.source}; confidence {entry.confidence}, checked {entry.checked})",
            location(entry.match.key(plan)),
            f"{entry.hint}; to start regardless: `--set allow_known_issues=[{entry.id}]`",
        )
        for entry in entries
        if entry.id not in allowed and matches(entry.match, plan, image_env=image_env)
    )


def matching_issues(
    entries: Sequence[KnownIssue], plan: Plan, *, image_env: Mapping[str, str] = MappingProxyType({})
) -> tuple[PlanWarning, ...]:
    """Return the known issues that match a plan; `image_env` is the environment of its image."""
    return tuple(
        PlanWarning(**entry.model_dump(exclude={"match"}))
        for entry in entries
        if matches(entry.match, plan, image_env=image_env)
    )


def matches(conditions: IssueConditions, plan: Plan, *, image_env: Mapping[str, str] = MappingProxyType({})) -> bool:
    """Return whether the plan meets every condition that is set."""
    engine = plan.engine
    if not (
        (not conditions.platforms or engine.platform in conditions.platforms)
        and (not conditions.archs or plan.hardware.arch in conditions.archs)
        and _any(conditions.architectures, plan.model.architecture)
        and (conditions.sparse_attention is None or conditions.sparse_attention == plan.model.sparse_attention)
        and _any(conditions.checkpoints, plan.model.checkpoint.path)
        and _any(conditions.quantizations, plan.model.quantization)
        and _any(conditions.images, engine.image or "")
        and (conditions.image_older_than is None or 0 < image_date(engine.image) < conditions.image_older_than)
        and (conditions.dp_attention is None or conditions.dp_attention == plan.layout.dp_attention)
        and (conditions.experts is None or conditions.experts == (plan.model.moe is not None))
        and plan.layout.tp >= conditions.min_tp
        and _prefill_logits(plan) >= conditions.min_prefill_logits
        and SpecifierSet(conditions.engine or "").contains(engine.version, prereleases=True)
    ):
        return False
    applied = {patch.id for patch in plan.patches if patch.expected}
    flags = {flag.name: " ".join(flag.values) for flag in plan.flags}
    env = {**image_env, **{variable.name: variable.value for variable in plan.env}}
    return (
        applied.isdisjoint(conditions.without_patches)
        and all(_has(flags, *condition) for condition in conditions.flags.items())
        and not any(_has(flags, *condition) for condition in conditions.without_flags.items())
        and all(_has(env, *condition) for condition in conditions.env.items())
        and not any(_has(env, *condition) for condition in conditions.without_env.items())
    )


def _prefill_logits(plan: Plan) -> int:
    """Return the maximum query-key pairs of a prefill step, with sglang's default chunk if the plan sets none."""
    context, chunk = plan.serving.context, plan.serving.prefill_chunk
    if plan.serving.prefill_batch is None:  # None: not set; known if chunks are off
        chunk = default_chunk(plan.hardware.vram_bytes)
    return min(chunk or context, context) * context


def image_date(image: str | None) -> int:
    """Return the date YYYYMMDD at the end of an image's tag; 0 if there is none."""
    date = re.search(r"-(20\d{6})$", image or "")
    return int(date[1]) if date else 0


def _has(settings: Mapping[str, str], name: str, pattern: str) -> bool:
    """Return whether any setting matches the patterns of name and value."""
    return any(fnmatch(setting, name) and _fits(value, pattern) for setting, value in settings.items())


def _fits(value: str, pattern: str) -> bool:
    """Return whether a value matches any of the shell patterns, or all comparisons."""
    comparisons = [_COMPARISON.match(text) for text in pattern.split(",")]
    if not all(comparisons):
        return _any(pattern.lower().split("|"), value.lower())
    try:
        return all(_COMPARE[match[1]](float(value), float(match[2])) for match in comparisons if match)
    except ValueError:
        return False


def _any(patterns: Collection[str], value: str) -> bool:
    return not patterns or any(fnmatch(value, pattern) for pattern in patterns)
