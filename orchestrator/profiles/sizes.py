"""Sizes as people write them: `288GiB`, `1.5TB`, or a number of bytes."""

import re
from decimal import Decimal
from typing import Annotated, Final, TypeAlias

from pydantic import BeforeValidator, Field

_SIZE: Final = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(?P<unit>B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)?\Z")
_UNITS: Final = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate(("k", "M", "G", "T"), 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), 1)},
}


def _bytes(value: object) -> object:
    if isinstance(value, int):
        return value
    match = _SIZE.match(value) if isinstance(value, str) else None
    if not match:
        raise ValueError("expected a size such as `288GiB`, `1.5TB` or a number of bytes")
    return int(Decimal(match["number"]) * _UNITS[match["unit"] or "B"])


Size: TypeAlias = Annotated[int, BeforeValidator(_bytes, json_schema_input_type=int | str), Field(ge=0)]
