"""Known issues of configurations: data (profiles/known_issues/*.yaml) that is matched against a plan."""

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatch
from types import MappingProxyType
from typing import Final

from packaging.specifiers import SpecifierSet
from pydantic import Field

from orchestrator.core.errors import Problem
from orchestrator.core.validation import StrictModel, Text
from orchestrator.core.yaml_document import KeyPath
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


class IssueConditions(StrictModel):
    """The conditions of a known issue; a plan matches if all that are given hold."""

    engine: VersionRange | None = Field(default=None, description="PEP 440 range of sglang versions")
    platforms: tuple[str, ...] = ()
    archs: tuple[str, ...] = Field(default=(), description="gfx950, sm100")
    models: tuple[str, ...] = Field(default=(), description="shell patterns of model names")
    checkpoints: tuple[str, ...] = Field(default=(), description="shell patterns of checkpoint paths")
    quantizations: tuple[str, ...] = Field(default=(), description="shell patterns")
    image_older_than: int | None = Field(default=None, description="YYYYMMDD at the end of the image's tag, exclusive")
    dp_attention: bool | None = None
    experts: bool | None = Field(default=None, description="whether the model has routed experts")
    flags: Mapping[str, str] = Field(
        default={}, description="flag -> shell pattern of its value, `*` for any; or a comparison such as `>=131072`"
    )
    without_flags: tuple[str, ...] = Field(default=(), description="flags that must not be set")
    env: Mapping[str, str] = Field(default={}, description="variable -> shell pattern of its value")
    without_env: Mapping[str, str] = Field(default={}, description="variable -> value that avoids the issue")

    @property
    def key(self) -> KeyPath:
        """The most specific profile key behind the issue."""
        if self.checkpoints:
            return "model", "checkpoint"
        if self.flags:
            return "flags", next(iter(self.flags))
        return ("engine",) if self.dp_attention is None else ("layout", "dp_attention")


class KnownIssue(StrictModel):
    """One known issue, with its source and its workaround."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    summary: Text = Field(description="what happens, as a user sees it")
    source: Text = Field(description="repository and number, or the public file that says so")
    hint: Text = Field(description="what to do instead")
    match: IssueConditions


class KnownIssues(StrictModel):
    """A file of known issues: `blocked` ones prevent a start, `warnings` are shown, the others explain smoke tests."""

    blocked: tuple[KnownIssue, ...] = ()
    warnings: tuple[KnownIssue, ...] = ()
    wrong_answers: tuple[KnownIssue, ...] = Field(default=(), description="what makes answers wrong")
    nondeterministic: tuple[KnownIssue, ...] = Field(
        default=(), description="why two greedy answers may rightly differ"
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
) -> tuple[Problem, ...]:
    """Return the known issues that block a plan, except the `allowed` ids; `location` maps a key to `file:line`."""
    return tuple(
        Problem(
            f"known issue: {entry.summary} ({entry.source})",
            location(entry.match.key),
            f"{entry.hint}; to start regardless: `--set allow_known_issues=[{entry.id}]`",
        )
        for entry in entries
        if entry.id not in allowed and matches(entry.match, plan)
    )


def matching_issues(
    entries: Sequence[KnownIssue], plan: Plan, *, image_env: Mapping[str, str] = MappingProxyType({})
) -> tuple[PlanWarning, ...]:
    """Return the known issues that match a plan; `image_env` is the environment of its image."""
    return tuple(
        PlanWarning(id=entry.id, summary=entry.summary, source=entry.source, hint=entry.hint)
        for entry in entries
        if matches(entry.match, plan, image_env=image_env)
    )


def matches(when: IssueConditions, plan: Plan, *, image_env: Mapping[str, str] = MappingProxyType({})) -> bool:
    """Return whether every given condition holds for the plan."""
    engine, values = plan.engine, {**image_env, **{variable.name: variable.value for variable in plan.env}}
    return (
        SpecifierSet(when.engine or "").contains(engine.version, prereleases=True)
        and (not when.platforms or engine.platform in when.platforms)
        and (not when.archs or plan.hardware.arch in when.archs)
        and _any(when.models, plan.model.name)
        and _any(when.checkpoints, plan.model.checkpoint.path)
        and _any(when.quantizations, plan.model.quantization)
        and (when.image_older_than is None or 0 < image_date(engine.image) < when.image_older_than)
        and (when.dp_attention is None or when.dp_attention == plan.layout.dp_attention)
        and (when.experts is None or when.experts == (plan.model.moe is not None))
        and all((value := plan.flag(name)) is not None and _fits(value, good) for name, good in when.flags.items())
        and all(plan.flag(name) is None for name in when.without_flags)
        and all(name in values and fnmatch(values[name], good) for name, good in when.env.items())
        and all(values.get(name, "").lower() != good.lower() for name, good in when.without_env.items())
    )


def image_date(image: str | None) -> int:
    """Return the YYYYMMDD at the end of an image's tag, or 0 if it has none."""
    date = re.search(r"-(20\d{6})$", image or "")
    return int(date[1]) if date else 0


def _fits(value: str, wanted: str) -> bool:
    """Return whether an option's value matches a shell pattern or a numeric comparison."""
    comparison = _COMPARISON.match(wanted)
    if comparison is None:
        return fnmatch(value, wanted)
    try:
        return _COMPARE[comparison[1]](float(value), float(comparison[2]))
    except ValueError:
        return False


def _any(patterns: Collection[str], value: str) -> bool:
    return not patterns or any(fnmatch(value, pattern) for pattern in patterns)
