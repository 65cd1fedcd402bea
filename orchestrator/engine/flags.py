"""Flag tables: the options and metrics of one version of sglang, and the problems of an option's value."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import Problem, ProfileError
from orchestrator.core.suggest import closest_match
from orchestrator.core.text import parse_json

# Options derived from other keys of a profile, so that each fact is written once.
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
    "attn-dp-size": "layout.dp",
    "ep-size": "layout.ep",
    "expert-parallel-size": "layout.ep",
    "ep": "layout.ep",
    "enable-dp-attention": "layout.dp_attention",
    "nnodes": "layout.nodes",
    "node-rank": "layout.nodes",
    "disaggregation-mode": "layout.prefill` and `layout.decode",
    "disaggregation-transfer-backend": "layout.transfer.backend",
    "disaggregation-bootstrap-port": "server.port",
    "api-key": "server.api_key_env",
    "admin-api-key": "server.api_key_env",
    "config": "flags",  # a file of further options, which would bypass the checks
}

DP_SIZE: Final = "dp-size"
_MAX_INTEGER: Final = 2**63
DP_ATTENTION: Final = "enable-dp-attention"

# Options renamed between versions that a search by spelling would miss
# (argparse of the wheels: --nsa-* until 0.5.19, --dsa-* from 0.5.13; --cuda-graph-max-bs until 0.5.19).
RENAMED: Mapping[str, str] = {
    "nsa-prefill-backend": "dsa-prefill-backend",
    "nsa-decode-backend": "dsa-decode-backend",
    "dsa-prefill-backend": "nsa-prefill-backend",
    "dsa-decode-backend": "nsa-decode-backend",
    "cuda-graph-max-bs": "cuda-graph-max-bs-decode",
    "cuda-graph-max-bs-decode": "cuda-graph-max-bs",
}


# Options with a secret value, which argv, plan and scripts would show. (`ssl-keyfile` only names a file.)
_SECRET_FLAG: Final = re.compile(
    r"(^|-)(password|passphrase|passwd|secret|credentials?|(api|access|private|auth|encryption|signing)-key"
    r"|(auth|access|api|bearer|hf|hub)-token)\Z"
)


@dataclass(frozen=True, kw_only=True)
class FlagSpec:
    """One option of the argparse parser of an sglang version."""

    takes_value: bool = True
    multiple: bool = False  # takes a list
    optional: bool = False  # the value may be left out
    type: Literal["int", "float", "json"] | None = None  # the type of each value, None for any text
    choices: tuple[str, ...] = ()
    deprecated: bool = False
    successor: str = ""  # from the deprecation warning, as text; may name several options, some with `--`
    alias_of: str | None = None  # the first name of an option with several names
    help: str | None = None  # the parser's help, at the first name only; None: hidden, or an older table


@dataclass(frozen=True, kw_only=True)
class FlagTable:
    """The options of one sglang version, by long name without dashes, and the names of its metrics."""

    version: str
    flags: Mapping[str, FlagSpec]
    metrics: frozenset[str] | None = None  # names that the version may export; None: an older table without metrics
    removed: Mapping[str, str] = field(default_factory=dict)  # option without a successor → last version with it

    def deprecated(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return the deprecated options among `names`, each with its successor, empty if there is none.

        An option is deprecated if the version hides it from its help or warns about it.
        """
        specs = {name: self.flags[name] for name in names if name in self.flags}
        return {name: spec.successor for name, spec in specs.items() if spec.deprecated}

    def dp_option(self, *, attention: bool) -> str:
        """Return the option that counts data-parallel workers; 0.5.22 has a separate one for data-parallel attention.

        sglang's warning about the old pair is `use --attn-dp-size <dp-size>`. After 2026-12-31 `--dp-size` counts whole
        replicas (0.5.22, srt/arg_groups/parallel_hook.py, handle_deprecated_dp_attention).
        """
        spec = self.flags.get(DP_ATTENTION)
        return spec.successor.split()[0] if attention and spec is not None and spec.successor else DP_SIZE

    def dp_note(self, *, attention: bool) -> str:
        """Return a note if this version renames the options of data-parallel attention; else ""."""
        option = self.dp_option(attention=attention)
        return "" if option == DP_SIZE else f"`--{DP_SIZE} --{DP_ATTENTION}` is `--{option}` in sglang {self.version}"

    def first_name(self, name: str) -> str:
        """Return the first name of an option; return an unknown name unchanged."""
        spec = self.flags.get(name)
        return name if spec is None or spec.alias_of is None else spec.alias_of

    def help_of(self, name: str) -> str:
        """Return an option's help from sglang's parser, or the reason why there is none."""
        spec = self.flags.get(self.first_name(name))
        if spec is not None and spec.help:
            return spec.help
        if any(flag.help for flag in self.flags.values()):
            return f"the parser of sglang {self.version} prints no help for it"
        return f"the flag table has no help; `deploy add engine {self.version} --flags-only` rewrites it"


def read_flags(version: str, catalog: Catalog, *, location: str = "") -> FlagTable:
    """Read the flag table of an sglang version. Raises ProfileError if it is missing or invalid."""
    path = catalog.find(EntryKind.FLAGS, version)
    if path is None:
        tables = ", ".join(f"`{name}`" for name in catalog.names(EntryKind.FLAGS))
        raise ProfileError(
            f"no flag table for sglang {version} found",
            location=location,
            hint=f"`deploy add engine {version} --flags-only` writes it; existing tables: {tables}",
        )
    try:
        return parse_flags(version, path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = f"`deploy add engine {version} --flags-only` rewrites it"
        raise ProfileError(
            f"invalid flag table for sglang {version}", location=catalog.display_path(path), hint=hint
        ) from error


@lru_cache(maxsize=16)  # a command plans up to a hundred profiles
def parse_flags(version: str, text: str) -> FlagTable:
    """Parse the flag table printed by the generator. Raises ValueError, KeyError or TypeError for other text."""
    table = parse_json(text)
    if table["sglang"] != version:
        raise ValueError(f"the table is for sglang {table['sglang']}")
    metrics = frozenset(table["metrics"]) if "metrics" in table else None
    flags = {name: _spec(entry) for name, entry in table["flags"].items()}
    return FlagTable(version=version, flags=flags, metrics=metrics)


def _spec(entry: Mapping[str, Any]) -> FlagSpec:
    nargs = entry.get("nargs")
    return FlagSpec(
        takes_value=entry["takes_value"],
        multiple=nargs in {"+", "*"},
        optional=nargs in {"?", "*"},
        type=entry.get("type"),
        choices=tuple(str(choice) for choice in entry.get("choices", ())),
        deprecated=entry.get("deprecated", False),
        successor=entry.get("successor", ""),
        alias_of=entry.get("same_as"),
        help=entry.get("help"),
    )


FlagValue: TypeAlias = "bool | int | float | str | Sequence[int | float | str]"


def read_number(word: str | None) -> float | None:
    """Return the value of a numeric option; None if it is unset, not a number, `nan` or too large for 64 bits."""
    try:
        number = float(word or "")
    except ValueError:
        return None
    return number if abs(number) < _MAX_INTEGER else None


def flag_words(value: FlagValue) -> tuple[str, ...]:
    """Return a value as words of an argv; empty for a switch."""
    if isinstance(value, bool):
        return ()
    return (str(value),) if isinstance(value, str | int | float) else tuple(str(item) for item in value)


def flag_problems(name: str, value: FlagValue, table: FlagTable, location: str) -> Iterator[Problem]:
    """Yield the problems of a flag: set by another key of the profile, secret, unknown, or an invalid value."""
    if name in RESERVED:
        yield Problem(f"`{name}` cannot be set as a flag", location, f"set `{RESERVED[name]}` instead")
        return
    if _SECRET_FLAG.search(name):
        hint = "give the server a file that only its user can read"
        yield Problem(f"`{name}` is a secret and cannot be set in a profile", location, hint)
        return
    spec = table.flags.get(name)
    if spec is None:
        yield Problem(f"sglang {table.version} has no option `--{name}`", location, _near(name, table))
        return
    yield from value_problems(f"`--{name}` of sglang {table.version}", value, spec, location)


def value_problems(option: str, value: FlagValue, spec: FlagSpec, location: str) -> Iterator[Problem]:
    """Yield a parser's problems with the value of a known option, which messages call `option`."""
    if expected := _expected(value, spec):
        text = str(list(flag_words(value))) if isinstance(value, list | tuple) else str(value)
        yield Problem(f"{option} takes {expected}, found `{text}`", location)
        return
    for word in flag_words(value):
        if not _is_read(word, spec.type):
            yield Problem(f"{option} takes {_TYPES[spec.type or '']}, found `{word}`", location)
        elif word.startswith("-") and not _INTEGER.match(word) and spec.type is None:
            yield Problem(f"{option}: `{word}` begins with `-`, so that sglang would parse it as an option", location)
        elif spec.choices and word not in spec.choices:
            choices = ", ".join(f"`{choice}`" for choice in spec.choices)
            yield Problem(f"{option} does not take `{word}`", location, f"one of {choices}")


_TYPES: Final[Mapping[str, str]] = {"int": "a whole number", "float": "a number", "json": "JSON"}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}\Z")


def _expected(value: FlagValue, spec: FlagSpec) -> str:
    """Return the kind of value that the option takes; "" if `value` is valid."""
    if isinstance(value, bool):
        return "a value" if spec.takes_value and not spec.optional else ""
    if not spec.takes_value:
        return "no value: write `true` or `false`"
    if isinstance(value, list | tuple) and not spec.multiple:
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
    if last := table.removed.get(name):
        return f"remove it: sglang {last} has it, newer versions neither have nor replace it"
    renamed = RENAMED.get(name)
    closest = renamed if renamed in table.flags else closest_match(name, table.flags)
    return f"did you mean `{closest}`?" if closest else "see `python3 -m sglang.launch_server --help` of that version"
