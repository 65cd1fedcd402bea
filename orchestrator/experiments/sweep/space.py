"""The search space of a sweep: its file format, and the finite set of configurations. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Final, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from orchestrator.core.validation import StrictModel, Text, VariableName
from orchestrator.engine.options import Meaning
from orchestrator.engine.serving import coupled_flags
from orchestrator.experiments.sweep.objective import Objective
from orchestrator.profiles.schema import Profile
from orchestrator.profiles.settings import Scalar

LAYOUT: Final = "layout"  # key of the parameter for layouts
_MAX_VALUES: Final = 1000  # of a range


class NumberRange(StrictModel):
    """An arithmetic sequence of numbers."""

    from_: int | float = Field(alias="from", description="the first value")
    to: int | float = Field(description="the maximum")
    step: int | float = Field(gt=0, description="difference of two values")

    @model_validator(mode="after")
    def _is_finite(self) -> "NumberRange":
        if self.to <= self.from_:
            raise ValueError("expected `from` below `to`")
        if (self.to - self.from_) / self.step >= _MAX_VALUES:
            raise ValueError(f"more than {_MAX_VALUES} values")
        return self

    def values(self) -> Iterator[int | float]:
        """Yield all values of the range."""
        is_integer = isinstance(self.from_, int) and isinstance(self.step, int)
        for index in range(math.floor((self.to - self.from_) / self.step + 1e-9) + 1):
            value = self.from_ + index * self.step
            yield int(value) if is_integer else round(float(value), 10)


def _form(value: object) -> str:
    return "range" if isinstance(value, dict | NumberRange) else "list"


Value: TypeAlias = Scalar | None  # null: as if not set in the profile
Choices: TypeAlias = Annotated[tuple[Value, ...], Field(min_length=1)]
Values: TypeAlias = Annotated[
    Annotated[NumberRange, Tag("range")] | Annotated[Choices, Tag("list")], Discriminator(_form)
]


class LayoutChoice(StrictModel):
    """A layout; missing keys are 1, or off."""

    tp: int = Field(ge=1, description="GPUs that share one replica's weights")
    dp: int = Field(default=1, ge=1, description="replicas")
    ep: int = Field(default=1, ge=1, description="expert-parallel ranks")
    dp_attention: bool = Field(default=False, description="dp splits the same GPUs")

    def __str__(self) -> str:
        """Return the layout in the usual notation, such as `TP4×DP2`."""
        parts = [f"DP{self.dp}"] if self.dp > 1 else []
        parts += [f"EP{self.ep}"] if self.ep > 1 else []
        return "×".join([f"TP{self.tp}", *parts]) + (" dp-attention" if self.dp_attention else "")


class SpaceFile(StrictModel):
    """A search space and its objective; options of the command line take precedence."""

    description: Text = Field(default="", description="the purpose, one line")
    objective: Objective | None = Field(
        default=None,
        description="knee, tok-s, tok-s-per-watt, usd-per-million or pareto; default: knee, tok-s of a closed load",
    )
    ttft_p95_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="maximum TTFT p95 of a sustained rate; default: the workload's"
    )
    at_rps: Annotated[float, Field(gt=0, le=10_000)] | None = Field(
        default=None, description="the rate at which the objective is measured; default: the knee of each configuration"
    )
    workload: Text | None = Field(default=None, description="a workload's name, or a file; default: the profile's")
    request_rates: Annotated[tuple[Annotated[float, Field(gt=0, le=10_000)], ...], Field(min_length=1)] | None = Field(
        default=None, description="the rates to measure, ascending; default: the workload's"
    )
    confirm: Annotated[int, Field(ge=0, le=10)] | None = Field(
        default=None, description="number of repeated runs of the best configuration; default: 2"
    )
    layouts: tuple[LayoutChoice, ...] = Field(default=(), description="layouts to choose from")
    flags: dict[Text, Values] = Field(
        default={}, description="sglang's options, each a list of values or a range: {from, to, step}"
    )
    env: dict[VariableName, Values] = Field(default={}, description="variables of the server, likewise")

    @model_validator(mode="after")
    def _varies(self) -> "SpaceFile":
        if not (self.layouts or self.flags or self.env):
            raise ValueError("expected `layouts`, `flags` or `env`")
        if self.request_rates is not None and list(self.request_rates) != sorted(set(self.request_rates)):
            raise ValueError("`request_rates` must be ascending")
        return self


@dataclass(frozen=True, kw_only=True)
class SweepParameter:
    """One parameter: `layout`, or the key of a setting, with its values."""

    key: str
    values: tuple[Value | LayoutChoice, ...]

    @property
    def ordered(self) -> bool:
        """Whether the values are increasing numbers, which a search may treat as an integer range."""
        numbers = [value for value in self.values if isinstance(value, int | float) and not isinstance(value, bool)]
        return len(numbers) == len(self.values) and numbers == sorted(set(numbers))

    def settings(self, index: int) -> Iterator[tuple[tuple[str, str], Value]]:
        """Yield the settings of a value, as ((section, key), value)."""
        value = self.values[index]
        if isinstance(value, LayoutChoice):
            yield from (((LAYOUT, key), item) for key, item in value.model_dump().items())
        else:
            section, _, key = self.key.partition(".")
            yield (section, key), value

    def display(self, index: int) -> str:
        """Format a value for display."""
        return show_value(self.values[index]) or '""'


Point: TypeAlias = Mapping[str, int]  # index of a value, by key of the parameter


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """All configurations, each with one value per parameter."""

    parameters: tuple[SweepParameter, ...]
    flags: Mapping[str, object] = field(default_factory=dict)  # of the profile

    @property
    def size(self) -> int:
        """The number of points."""
        return math.prod(len(parameter.values) for parameter in self.parameters)

    def points(self) -> Iterator[Point]:
        """Yield all points."""
        keys = [parameter.key for parameter in self.parameters]
        for chosen in product(*(range(len(parameter.values)) for parameter in self.parameters)):
            yield dict(zip(keys, chosen, strict=True))

    def settings(self, point: Point) -> dict[tuple[str, str], Value]:
        """Return a point's settings by section and key, with the options that depend on them."""
        settings = dict(pair for parameter in self.parameters for pair in parameter.settings(point[parameter.key]))
        varied = {key: value for (section, key), value in settings.items() if section == "flags"}
        return settings | {("flags", key): value for key, value in coupled_flags(varied, self.flags).items()}

    @property
    def coupled(self) -> tuple[str, ...]:
        """The options that change with the options of the space."""
        first = {parameter.key: 0 for parameter in self.parameters}
        return tuple(key for section, key in self.settings(first) if section == "flags" and f"flags.{key}" not in first)

    def overrides(self, point: Point) -> tuple[str, ...]:
        """Return the settings of a point as values of `--set`."""
        settings = self.settings(point).items()
        return tuple(f"{section}.{key}={show_value(value)}" for (section, key), value in settings)

    def display(self, point: Point) -> dict[str, str]:
        """Return the value of each parameter at a point, for display."""
        return {parameter.key: parameter.display(point[parameter.key]) for parameter in self.parameters}

    def display_profile(self, profile: Profile) -> dict[str, str]:
        """Return the values of a profile for display, including values outside the space."""
        return {
            parameter.key: show_value(_profile_value(profile, parameter.key)) or '""' for parameter in self.parameters
        }

    def point_of_profile(self, profile: Profile) -> Point | None:
        """Return the point of a profile; None if one of its values is not in the space."""
        point = {}
        for parameter in self.parameters:
            current = _profile_value(profile, parameter.key)
            same = [
                index
                for index, value in enumerate(parameter.values)
                if _same(value, current, text=parameter.key[:4] == "env.")
            ]
            if not same:
                return None
            point[parameter.key] = same[0]
        return point


def show_value(value: object) -> str:
    """Format a value for a YAML file or `--set`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.10f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _profile_value(profile: Profile, key: str) -> object:
    section, _, name = key.partition(".")
    if section == LAYOUT:
        return _layout_of(profile)
    setting = (profile.flags if section == "flags" else profile.env).get(name)
    return setting.value if setting is not None else None


def _layout_of(profile: Profile) -> LayoutChoice:
    layout = profile.layout
    return LayoutChoice(
        tp=layout.tp.value, dp=layout.dp.value, ep=layout.ep.value, dp_attention=layout.dp_attention.value
    )


def _same(value: object, baseline: object, *, text: bool) -> bool:
    if text and value is not None and baseline is not None:
        return str(value) == str(baseline)
    if not text and _is_left_out(value):
        return _is_left_out(baseline)
    return value == baseline and isinstance(value, bool) == isinstance(baseline, bool)


def _is_left_out(value: object) -> bool:
    """Return whether an option is unset: `false` and null mean the same."""
    return value is None or value is False


def search_space_from_file(file: SpaceFile, flags: Mapping[str, object] | None = None) -> SearchSpace:
    """Return the search space of a space file for a profile with these flags."""
    parameters = [SweepParameter(key=LAYOUT, values=file.layouts)] if file.layouts else []
    for section, settings in (("flags", file.flags), ("env", file.env)):
        parameters += [
            SweepParameter(key=f"{section}.{key}", values=_listed(values)) for key, values in settings.items()
        ]
    return SearchSpace(parameters=tuple(parameters), flags=flags or {})


def _listed(values: NumberRange | tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(values.values()) if isinstance(values, NumberRange) else tuple(dict.fromkeys(values))


def default_space(profile: Profile, options: Sequence[str]) -> SearchSpace:
    """Return the default space: layouts with the same number of GPUs, and two scheduler options times 0.5, 1 and 2.

    `options` are the options of the engine. The two options, maximum running requests and prefill chunk size, come from
    the tuning guide of sglang (docs.sglang.io, advanced_features/hyperparameter_tuning). The guide also lists the
    memory fraction, which `deploy` computes.
    """
    parameters = []
    if choices := _layouts(profile):
        parameters.append(SweepParameter(key=LAYOUT, values=choices))
    for meaning, default in ((Meaning.RUNNING_REQUESTS, 64), (Meaning.PREFILL_CHUNK, 8192)):
        name = meaning.value
        current = _profile_value(profile, f"flags.{name}")
        if name in options:
            middle = current if isinstance(current, int) and current > 1 else default
            values: tuple[Value, ...] = (middle // 2, middle, middle * 2)
            first = current if isinstance(current, int) else None
            parameters.append(
                SweepParameter(key=f"flags.{name}", values=values if current in values else (first, *values))
            )
    return SearchSpace(parameters=tuple(parameters))


def _layouts(profile: Profile) -> tuple[LayoutChoice, ...]:
    current, gpus = _layout_of(profile), profile.hardware.gpus
    gpus_used = current.tp if current.dp_attention else current.tp * current.dp
    layouts = [
        LayoutChoice(tp=tp, dp=gpus_used // tp) for tp in range(1, gpus_used + 1) if gpus and gpus_used % tp == 0
    ]
    return tuple(dict.fromkeys([current, *reversed(layouts)])) if len(layouts) > 1 else ()
