"""Sizes as people write them: `288GiB`, `1.5TB`, Kubernetes' `512Gi`, or a number of bytes."""

import re
from decimal import Decimal
from typing import Annotated, Final, TypeAlias

from pydantic import BeforeValidator, Field

_SIZE: Final = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(?P<unit>(?:[kMGT]|[KMGT]i)?)B?\Z")
_UNITS: Final = {
    "": 1,
    **{prefix: 1000**power for power, prefix in enumerate(("k", "M", "G", "T"), 1)},
    **{f"{prefix}i": 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), 1)},
}


def _bytes(value: object) -> object:
    if isinstance(value, int):
        return value
    match = _match(value)
    return int(Decimal(match["number"]) * _UNITS[match["unit"]])


def _quantity(value: object) -> str:
    match = _match(str(value) if isinstance(value, int) else value)
    return match["number"] + match["unit"]


def _match(value: object) -> re.Match[str]:
    match = _SIZE.match(value) if isinstance(value, str) else None
    if not match:
        raise ValueError("expected a size such as `288GiB`, `1.5TB` or a number of bytes")
    return match


Size: TypeAlias = Annotated[int, BeforeValidator(_bytes, json_schema_input_type=int | str), Field(ge=0)]

# The size as it is written, in the syntax of Kubernetes (apimachinery, resource.Quantity), which has no `B`.
Quantity: TypeAlias = Annotated[str, BeforeValidator(_quantity, json_schema_input_type=int | str)]
