"""The options one version of sglang knows, and what is wrong with a setting of one."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.core.errors import Problem, ProfileError
from orchestrator.core.nearest import did_you_mean, nearest

GENERATOR: Final = "profiles/engines/flags/generate.py"

# Decided by other parts of a profile, so that one fact is written once.
RESERVED: Mapping[str, str] = {
    "model-path": "model.origin",
    "model": "model.origin",
    "served-model-name": "model.served_name",
    "host": "server.host",
    "port": "server.port",
    "tp-size": "layout.tp",
    "tensor-parallel-size": "layout.tp",
    "tp": "layout.tp",
    "dp-size": "layout.dp",
    "data-parallel-size": "layout.dp",
    "dp": "layout.dp",
    "ep-size": "layout.ep",
    "expert-parallel-size": "layout.ep",
    "ep": "layout.ep",
    "enable-dp-attention": "layout.dp_attention",
    "api-key": "server.api_key_env",
    "admin-api-key": "server.api_key_env",
}

# Renamed between versions, where spelling alone does not lead to the new name
# (argparse of the wheels: --nsa-* until 0.5.19, --dsa-* from 0.5.13; --cuda-graph-max-bs until 0.5.19).
RENAMED: Mapping[str, str] = {
    "nsa-prefill-backend": "dsa-prefill-backend",
    "nsa-decode-backend": "dsa-decode-backend",
    "dsa-prefill-backend": "nsa-prefill-backend",
    "dsa-decode-backend": "nsa-decode-backend",
    "cuda-graph-max-bs": "cuda-graph-max-bs-decode",
    "cuda-graph-max-bs-decode": "cuda-graph-max-bs",
}


@dataclass(frozen=True, kw_only=True)
class FlagSpec:
    """One option as that version's own argparse defines it."""

    takes_value: bool
    choices: tuple[str, ...]
    deprecated: bool


@dataclass(frozen=True, kw_only=True)
class FlagTable:
    """The options of one sglang version, by long name without dashes."""

    version: str
    flags: Mapping[str, FlagSpec]


def read_flags(version: str, root: Path, *, place: str = "") -> FlagTable:
    """The options of one sglang version. Raises ProfileError for a version whose table was not generated."""
    folder = root / "profiles" / "engines" / "flags"
    path = folder / f"{version}.json"
    if not path.is_file():
        known = [table.stem for table in folder.glob("*.json")]
        raise ProfileError(
            f"there is no flag table for sglang {version}",
            where=place,
            hint=f"{did_you_mean(version, known)}; generate it with `python {GENERATOR} {version}`",
        )
    table = json.loads(path.read_text())
    flags = {
        name: FlagSpec(
            takes_value=spec["takes_value"],
            choices=tuple(str(choice) for choice in spec.get("choices", ())),
            deprecated=spec.get("deprecated", False),
        )
        for name, spec in table["flags"].items()
    }
    return FlagTable(version=version, flags=flags)


def flag_problems(name: str, value: object, table: FlagTable, where: str) -> Iterator[Problem]:
    """What sglang's own parser would refuse, and what another part of the profile decides."""
    if name in RESERVED:
        yield Problem(f"`{name}` is not set as a flag", where, f"it follows from `{RESERVED[name]}`: set that")
        return
    spec = table.flags.get(name)
    if spec is None:
        yield Problem(f"sglang {table.version} has no option `--{name}`", where, _near(name, table))
        return
    if isinstance(value, bool) == spec.takes_value:
        expected = "a value" if spec.takes_value else "no value: write `true` or `false`"
        yield Problem(f"`--{name}` of sglang {table.version} takes {expected}, found `{value}`", where)
    elif spec.choices and str(value) not in spec.choices:
        yield Problem(
            f"`--{name}` of sglang {table.version} does not take `{value}`",
            where,
            f"one of {', '.join(f'`{choice}`' for choice in spec.choices)}",
        )


def _near(name: str, table: FlagTable) -> str:
    renamed = RENAMED.get(name)
    near = renamed if renamed in table.flags else nearest(name, table.flags)
    return f"did you mean `{near}`?" if near else "see `python3 -m sglang.launch_server --help` of that version"
