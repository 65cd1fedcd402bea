"""Settings of a profile: values with an origin."""

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from orchestrator.core.origin import Origin
from orchestrator.core.validation import StrictModel, Text


def _scalar_or_list(value: object) -> object:
    """Raise ValueError for other values, with a single message; the union would report one for each member."""
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, bool | int | float | str) for item in items):
        raise ValueError("expected a value or a list of values")
    return value


def _one_scalar(value: object) -> object:
    if not isinstance(value, bool | int | float | str):
        raise ValueError("expected one value")  # noqa: TRY004 - pydantic expects ValueError
    return value


def _setting(value: object) -> object:
    if isinstance(value, dict):
        return value
    return {"value": value, "origin": "user", "source": "the profile's author"}


Scalar: TypeAlias = bool | int | float | Text


class Setting(StrictModel):
    """A value with its origin."""

    value: Annotated[Scalar | list[Scalar], BeforeValidator(_scalar_or_list, Scalar | list[Scalar])] = Field(
        description="the value; `true` is a bare switch, `false` omits the option; a list for several values"
    )
    origin: Origin = Field(description="published, recipe, measured, inferred or user")
    source: Text = Field(default="", description="publication, recipe or measurement behind the value")
    note: Text = Field(default="", description="the reason, if it is not obvious")

    @model_validator(mode="after")
    def _has_source(self) -> "Setting":
        if self.origin in {Origin.PUBLISHED, Origin.RECIPE, Origin.MEASURED} and not self.source:
            raise ValueError(f"a value with origin `{self.origin}` names its source")
        return self


class EnvSetting(Setting):
    """A variable of the server's environment."""

    value: Annotated[Scalar, BeforeValidator(_one_scalar, Scalar)] = Field(description="the value, as text")


class CountSetting(Setting):
    """A setting that counts something."""

    value: int = Field(ge=1, description="a number of at least 1")


class SwitchSetting(Setting):
    """A setting that is on or off."""

    value: bool = Field(description="true or false")


# A bare value may replace a setting; `null` removes the value of a lower layer.
FlagField: TypeAlias = Annotated[Setting, BeforeValidator(_setting, Setting | Scalar | list[Scalar] | None)]
EnvField: TypeAlias = Annotated[EnvSetting, BeforeValidator(_setting, EnvSetting | Scalar | None)]
CountField: TypeAlias = Annotated[CountSetting, BeforeValidator(_setting, CountSetting | int)]
SwitchField: TypeAlias = Annotated[SwitchSetting, BeforeValidator(_setting, SwitchSetting | bool)]
