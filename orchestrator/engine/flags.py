"""The options one version of sglang knows, what is wrong with a setting of one, and the metrics it has.

What the version refuses of options after parsing them is in its table as conditions; `refusals.py` judges by them.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import Problem, ProfileError
from orchestrator.core.suggest import closest_match
from orchestrator.core.text import parse_json

# Decided by other parts of a profile, so that one fact is written once.
RESERVED: Mapping[str, str] = {
    "model-path": "model.checkpoint",
    "model": "model.checkpoint",
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
    "config": "flags",  # a file of further options, which nobody here would have looked at
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


# Options whose value is a secret: argv, plan and scripts would show it. (`ssl-keyfile` names a file, which is fine.)
_SECRET_FLAG: Final = re.compile(
    r"(^|-)(password|passphrase|passwd|secret|credentials?|(api|access|private|auth|encryption|signing)-key"
    r"|(auth|access|api|bearer|hf|hub)-token)\Z"
)


FlagDefault: TypeAlias = bool | int | float | str | None


@dataclass(frozen=True, kw_only=True)
class FlagSpec:
    """One option as that version's own argparse defines it."""

    takes_value: bool
    several: bool  # takes a list
    optional: bool  # takes a value, or none
    type: Literal["int", "float", "json"] | None  # what each value must be read as, None for any text
    choices: tuple[str, ...]
    deprecated: bool
    successor: str  # what a deprecated option's warning names, as text: `--` may stand before one of several
    same_as: str | None  # the first name of an option that has several
    help: str | None = None  # what its parser says of it, at the first name; None: hidden, or an older table


@dataclass(frozen=True, kw_only=True)
class FlagTable:
    """The options of one sglang version, by long name without dashes, and the names of its metrics."""

    version: str
    flags: Mapping[str, FlagSpec]
    metrics: frozenset[str] | None = None  # that it may export; None: the table was made before it told them
    refusals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by condition: message, place, as_written
    changes: Mapping[str, Sequence[str]] = field(default_factory=dict)  # conditions by option; "" for always
    defaults: Mapping[str, FlagDefault] = field(default_factory=dict)  # of the options in conditions

    def deprecated(self, names: Iterable[str]) -> Mapping[str, str]:
        """Those of `names` that this version hides from its help, or warns about; each with its successor, or none."""
        known = {name: self.flags[name] for name in names if name in self.flags}
        return {name: spec.successor for name, spec in known.items() if spec.deprecated}

    def first_name(self, name: str) -> str:
        """The first name of an option that may be written under several."""
        spec = self.flags.get(name)
        return name if spec is None or spec.same_as is None else spec.same_as

    def help_of(self, name: str) -> str:
        """What the engine's own parser says of an option; why nothing is known where it says nothing."""
        spec = self.flags.get(self.first_name(name))
        if spec is not None and spec.help:
            return spec.help
        if any(each.help for each in self.flags.values()):
            return f"the parser of sglang {self.version} prints no help for it"
        return f"its table has no help: `deploy add engine {self.version} --flags-only` makes it anew"


def read_flags(version: str, catalog: Catalog, *, place: str = "") -> FlagTable:
    """The options of one sglang version. Raises ProfileError for a version whose table was not generated."""
    path = catalog.find(EntryKind.FLAGS, version)
    if path is None:
        known = ", ".join(f"`{name}`" for name in catalog.names(EntryKind.FLAGS))
        raise ProfileError(
            f"there is no flag table for sglang {version}",
            where=place,
            hint=f"there are tables for {known}; `deploy add engine {version} --flags-only` makes this one",
        )
    try:
        return parse_flags(version, path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = f"`deploy add engine {version} --flags-only` writes it anew"
        raise ProfileError("this is no flag table", where=catalog.shown(path), hint=hint) from error


def parse_flags(version: str, text: str) -> FlagTable:
    """A table from what the generator printed. Raises ValueError, KeyError or TypeError for anything else."""
    table = parse_json(text)
    if table["sglang"] != version:
        raise ValueError(f"the table is for sglang {table['sglang']}")
    metrics = frozenset(table["metrics"]) if "metrics" in table else None
    flags = {name: _spec(entry) for name, entry in table["flags"].items()}
    rules = {name: table.get(name, {}) for name in ("refusals", "changes", "defaults")}
    return FlagTable(version=version, flags=flags, metrics=metrics, **rules)


def _spec(entry: Mapping[str, Any]) -> FlagSpec:
    nargs = entry.get("nargs")
    return FlagSpec(
        takes_value=entry["takes_value"],
        several=nargs in {"+", "*"},
        optional=nargs in {"?", "*"},
        type=entry.get("type"),
        choices=tuple(str(choice) for choice in entry.get("choices", ())),
        deprecated=entry.get("deprecated", False),
        successor=entry.get("successor", ""),
        same_as=entry.get("same_as"),
        help=entry.get("help"),
    )


FlagValue: TypeAlias = "bool | int | float | str | Sequence[int | float | str]"


def flag_words(value: FlagValue) -> tuple[str, ...]:
    """A value as it stands in an argv; nothing for a switch."""
    if isinstance(value, bool):
        return ()
    return (str(value),) if isinstance(value, str | int | float) else tuple(str(item) for item in value)


def flag_problems(name: str, value: FlagValue, table: FlagTable, where: str) -> Iterator[Problem]:
    """What sglang's own parser would refuse, and what another part of the profile decides."""
    if name in RESERVED:
        yield Problem(f"`{name}` is not set as a flag", where, f"it follows from `{RESERVED[name]}`: set that")
        return
    if _SECRET_FLAG.search(name):
        hint = "whatever it opens, give the server a file that only its user may read"
        yield Problem(f"`{name}` is a secret and is not written into a profile", where, hint)
        return
    spec = table.flags.get(name)
    if spec is None:
        yield Problem(f"sglang {table.version} has no option `--{name}`", where, _near(name, table))
        return
    yield from value_problems(f"`--{name}` of sglang {table.version}", value, spec, where)


def value_problems(option: str, value: FlagValue, spec: FlagSpec, where: str) -> Iterator[Problem]:
    """What a parser would refuse of the value of an option that it knows; `option` is what it is called."""
    if expected := _expected(value, spec):
        shown = str(list(flag_words(value))) if isinstance(value, list | tuple) else str(value)
        yield Problem(f"{option} takes {expected}, found `{shown}`", where)
        return
    for word in flag_words(value):
        if not _is_read(word, spec.type):
            yield Problem(f"{option} takes {_TYPES[spec.type or '']}, found `{word}`", where)
        elif word.startswith("-") and not _INTEGER.match(word) and spec.type is None:
            yield Problem(f"{option}: `{word}` begins with `-` and would be taken for an option", where)
        elif spec.choices and word not in spec.choices:
            choices = ", ".join(f"`{choice}`" for choice in spec.choices)
            yield Problem(f"{option} does not take `{word}`", where, f"one of {choices}")


_TYPES: Final[Mapping[str, str]] = {"int": "a whole number", "float": "a number", "json": "JSON"}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}\Z")


def _expected(value: FlagValue, spec: FlagSpec) -> str:
    """What the option takes, where `value` is something else."""
    if isinstance(value, bool):
        return "a value" if spec.takes_value and not spec.optional else ""
    if not spec.takes_value:
        return "no value: write `true` or `false`"
    if isinstance(value, list | tuple) and not spec.several:
        return "one value"
    return "" if flag_words(value) or spec.optional else "at least one value"


def _is_read(word: str, kind: str | None) -> bool:
    try:
        match kind:
            case "int":
                return _INTEGER.match(word) is not None
            case "float":
                return math.isfinite(float(word))
            case "json":
                parse_json(word)
    except ValueError:
        return False
    return True


def _near(name: str, table: FlagTable) -> str:
    renamed = RENAMED.get(name)
    near = renamed if renamed in table.flags else closest_match(name, table.flags)
    return f"did you mean `{near}`?" if near else "see `python3 -m sglang.launch_server --help` of that version"
