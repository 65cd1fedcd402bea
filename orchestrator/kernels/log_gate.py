"""Log gate: hits and misses of the tuned table in a server's log.

The lines come from `aiter/fused_moe.py` (`get_2stage_cfgs`), unchanged from June to August 2026; each process logs a
key once. `AITER_LOG_LEVEL=WARNING` hides hits and the `default` line, but not the fallback warning. Only complete lines
count: any text may precede `[fused_moe]`, only blanks may follow the key, and the number of tokens must be one of
aiter's buckets. Other lines are ignored, as concurrent writes of two processes may mix.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from orchestrator.kernels.keys import BLOCK_SCALED, Key, bucket
from orchestrator.kernels.rows import write_untuned

_MAX_FAMILIES: Final = 200

_KEY: Final = (
    r"\((?:'(?P<gfx>gfx\w+)', )?(?P<cu_num>\d+), (?P<token>\d+), (?P<model_dim>\d+), (?P<inter_dim>\d+), "
    r"(?P<expert>\d+), (?P<topk>\d+), <?ActivationType\.\w+(?:: \d+)?>?, '(?P<dtype>torch\.\w+)', "
    r"'(?P<q_dtype_a>torch\.\w+)', '(?P<q_dtype_w>torch\.\w+)', '(?P<q_type>QuantType\.\w+)', "
    r"(?P<use_g1u1>True|False|0|1), (?P<doweight_stage1>True|False|0|1)\)"
)
_NAME: Final = r"(?:'[\w.\-]*'|nan)"  # an empty cell prints as nan
_LINE: Final = re.compile(
    rf"\[fused_moe\] (?:"
    rf"using (?:1stage|2stage)(?: xbf16)? "
    rf"(?:(?P<default>default)|\(kernelName1=(?P<first>{_NAME}), kernelName2=(?P<second>{_NAME})\)) for "
    rf"|(?P<fallback>no tuned FlyDSL config for )"
    rf"|(?P<unavailable>flydsl unavailable and no fallback for )"
    rf"){_KEY}(?P<tail>, using heuristic FlyDSL fallback \(kn1={_NAME}, kn2={_NAME}\)|, using default heuristics)?\s*"
)
_FAMILY: Final = re.compile(r"not found tuned config in (?P<path>[^\s,]+)")


@dataclass(frozen=True, kw_only=True)
class GateReport:
    """Keys in a log. Hits and misses are those of block-scaled fp4/fp8 experts (`per_1x32`).

    A key in both was found by one process and missed by another: some ranks lack the table. `other_quantizations` are
    keys of, for example, a bf16 MTP layer; `families` counts the lines of other kernels without a tuned row, by table.
    """

    hits: tuple[Key, ...]
    misses: tuple[Key, ...]
    other_quantizations: tuple[Key, ...]
    families: dict[str, int]

    @property
    def has_lookups(self) -> bool:
        """Whether the log has any hit or miss."""
        return bool(self.hits or self.misses)

    @property
    def inconsistent(self) -> tuple[Key, ...]:
        """The keys found by one process and missed by another."""
        return tuple(sorted(set(self.hits) & set(self.misses)))

    @property
    def tuner_input(self) -> str:
        """The misses as CSV input for aiter's tuner; empty without misses."""
        return write_untuned(self.misses) if self.misses else ""

    @property
    def summary(self) -> str:
        """The counts, then one line for each miss and family."""
        if not self.has_lookups:
            lines = ["fused MoE keys: no lookup found in the log (aiter logs each key once, at its first use)"]
        else:
            lines = [f"fused MoE keys: {len(self.hits)} found in the tuned table, {len(self.misses)} missed"]
        lines += [f"  miss: {describe(key)}" for key in self.misses]
        lines += [f"  found by one process, missed by another: {describe(key)}" for key in self.inconsistent]
        if self.other_quantizations:
            count = len(self.other_quantizations)
            lines.append(f"  keys of other quantizations, e.g. of a bf16 MTP layer: {count}")
        lines += [
            f"  other kernels without a tuned row: {count} lines for `{name}`" for name, count in self.families.items()
        ]
        return "\n".join(lines)


def describe(key: Key) -> str:
    """Format a key in one line."""
    gpu = f"{key.gfx}, {key.cu_num} CUs" if key.gfx else f"{key.cu_num} CUs"
    return f"{key.token} tokens, {key.shape} ({gpu})"


@dataclass(kw_only=True)
class GateReader:
    """Incremental reader of a log; memory grows only with the number of distinct keys."""

    _hits: set[Key] = field(default_factory=set)
    _misses: set[Key] = field(default_factory=set)
    _other_quantizations: set[Key] = field(default_factory=set)
    _families: Counter[str] = field(default_factory=Counter)

    def feed(self, line: str) -> None:
        """Read one complete line."""
        if "[fused_moe]" in line:
            self._lookup(line)
        elif "not found tuned config" in line:
            self._other(line)

    def report(self) -> GateReport:
        """Return the report on the lines read so far."""
        return GateReport(
            hits=tuple(sorted(self._hits)),
            misses=tuple(sorted(self._misses)),
            other_quantizations=tuple(sorted(self._other_quantizations)),
            families=dict(sorted(self._families.items())),
        )

    def _lookup(self, line: str) -> None:
        match = _LINE.fullmatch(line, line.rindex("[fused_moe]"))
        if match is None or not _consistent(match):
            return
        key = Key.read(
            match["gfx"] or "",
            number=lambda name: int(match[name]),
            text=lambda name: match[name],
            switch=lambda name: match[name] in {"True", "1"},
        )
        if key.q_type != BLOCK_SCALED:
            self._other_quantizations.add(key)
        elif match["first"] and (match["first"], match["second"]) != ("''", "''"):
            self._hits.add(key)
        else:  # empty names: AITER_BYPASS_TUNE_CONFIG
            self._misses.add(key)

    def _other(self, line: str) -> None:
        match = _FAMILY.search(line)
        name = match["path"].rpartition("/")[2] if match else "an unnamed table"
        if name in self._families or len(self._families) < _MAX_FAMILIES:
            self._families[name] += 1


def gate_report(lines: Iterable[str]) -> GateReport:
    """Return the report on the lines of a log."""
    reader = GateReader()
    for line in lines:
        reader.feed(line)
    return reader.report()


def _consistent(match: re.Match[str]) -> bool:
    """Return whether the tail belongs to the head and the tokens are a bucket; False for two mixed lines."""
    ends = {"fallback": ", using heuristic", "unavailable": ", using default"}
    kind = next((name for name in ends if match[name]), None)
    tail = match["tail"] or ""
    matches = tail.startswith(ends[kind]) if kind else not tail
    token = int(match["token"])
    return matches and token == bucket(token)
