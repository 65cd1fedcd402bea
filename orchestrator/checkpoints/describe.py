"""Description of a checkpoint for a model's file: each fact with its source, and the missing facts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.checkpoints.checkpoint import INDEX
from orchestrator.checkpoints.config import (
    CONFIG,
    DRAFTS,
    LAYER_TYPES,
    LAYERS,
    NAMES,
    QUANT_CONFIG,
    SPARSE,
    ConfigFact,
    modelopt_label,
)
from orchestrator.checkpoints.hybrid import MissingKeyError, read_hybrid
from orchestrator.checkpoints.summary import EXPERT_ROWS, HEAD_ROWS, INDEXER_ROWS, LATENT_ROWS, CheckpointSummary
from orchestrator.core.errors import CheckpointError, Problem
from orchestrator.core.suggest import closest_match
from orchestrator.engine.architectures import ARCHITECTURES, PARSERS, Architecture, parsers_of
from orchestrator.engine.options import Meaning

_MAY_BE_ZERO: Final = ("moe.shared_experts", "kv_cache.qk_rope_head_dim")
_HEADERS: Final = "the headers of the safetensors files"


@dataclass(frozen=True, kw_only=True)
class Description:
    """Facts by the key of a model's file, in its order; missing keys; notes."""

    facts: dict[str, ConfigFact]
    missing: dict[str, Problem]  # by key, with the option that sets it
    notes: tuple[str, ...]


def describe(summary: CheckpointSummary, overridden: Sequence[str]) -> Description:
    """Read the facts of a checkpoint, except `overridden` keys.

    Raises CheckpointError with every contradiction between its config and its tensors.
    """
    reader = _FactReader(summary, tuple(overridden))
    if not summary.has_shards:
        reader.notes.append("no file with weights is present: only the config and the index were read")
    facts = reader.facts()
    if problems := list(_contradictions(reader, facts)):
        raise CheckpointError(
            "the config and the tensors of the checkpoint disagree", location=summary.location, problems=problems
        )
    return Description(facts=facts, missing=reader.missing, notes=tuple(reader.notes))


def contradictions(summary: CheckpointSummary) -> tuple[Problem, ...]:
    """Return every contradiction between a checkpoint's config and its tensors."""
    reader = _FactReader(summary, ())
    return tuple(_contradictions(reader, reader.facts()))


class _FactReader:
    """Reader of the facts; collects missing keys and notes."""

    def __init__(self, summary: CheckpointSummary, overridden: tuple[str, ...]) -> None:
        self.summary, self.config, self._overridden = summary, summary.config, overridden
        self.missing: dict[str, Problem] = {}
        self.notes: list[str] = []
        self.name = next(iter(self.config.architectures), "")
        self.known = ARCHITECTURES.get(self.name)
        self.kind = self.known or Architecture(attention="other")

    def is_overridden(self, key: str) -> bool:
        """Return whether the user sets the key, or a section that contains it."""
        return any(f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for name in self._overridden)

    def facts(self) -> dict[str, ConfigFact]:
        """Read every fact that is not overridden."""
        readers = self._readers().items()
        return {key: fact for key, read in readers if not self.is_overridden(key) and (fact := read())}

    def _readers(self) -> dict[str, Callable[[], ConfigFact | None]]:
        """Return the reader of each fact, in the order of a model's file."""
        experts, cache = self.config.count("moe.routed_experts"), "kv_cache"
        readers: dict[str, Callable[[], ConfigFact | None]] = {
            "weights_size": self._weights,
            "architecture": self._architecture,
            "quantization": self._quantization,
            "context_length": lambda: self._required("context_length", self.config.context()),
            "layers": lambda: self._count("layers"),
            "attention_heads": lambda: self._count("attention_heads"),
            "kv_heads": self._kv_heads,
            "sparse_attention": self._sparse,
            "mtp_layer": self._mtp_layer,
            "mtp_weights_size": self._mtp_weights,
        }
        if experts is not None and experts.number > 0:
            readers |= {
                "moe.hidden_size": lambda: self._count("moe.hidden_size"),
                "moe.intermediate_size": lambda: self._count("moe.intermediate_size", self.kind.expert_size),
                "moe.routed_experts": lambda: self._count("moe.routed_experts"),
                "moe.shared_experts": self._shared_experts,
                "moe.experts_per_token": lambda: self._count("moe.experts_per_token"),
            }
        hybrid = self._hybrid()
        if hybrid is None or self.kind.attention == "other":
            readers |= {cache: self._no_cache}
        elif self.kind.attention == "latent":
            latent = [f"{cache}.kv_lora_rank", f"{cache}.qk_rope_head_dim"]
            latent += [f"{cache}.index_head_dim"] if self._is_sparse else []
            readers |= {key: (lambda key=key: self._count(key)) for key in latent}  # type: ignore[misc]
            if self._is_sparse:
                readers |= {f"{cache}.index_layers": lambda: self.config.index_layers}
        else:
            readers |= {
                f"{cache}.head_dim": lambda: self._required(f"{cache}.head_dim", self.head_dim()),
                f"{cache}.v_head_dim": self._v_head_dim,
            }
            if self.kind.windows:
                window = f"{cache}.sliding_window"
                readers |= {window: lambda: self._count(window), f"{cache}.sliding_layers": self._sliding_layers}
        readers |= {key: (lambda fact=fact: fact) for key, fact in (hybrid or {}).items()}  # type: ignore[misc]
        return readers | {f"{cache}.counts_draft": self._counts_draft} | self._parsers()

    def _hybrid(self) -> dict[str, ConfigFact] | None:
        """Read the layers that are not plain attention; None, with a note, if config.json lacks a key for them."""
        if self.kind.hybrid is None:
            return {}
        try:
            return read_hybrid(self.kind.hybrid, self.config)
        except MissingKeyError as error:
            self.kind = replace(
                self.kind, attention="other", reason=f"layers that {CONFIG} does not describe: no `{error}`"
            )
            return None

    def _counts_draft(self) -> ConfigFact | None:
        """Return that sglang omits the draft layer from the cache if the config does not count it; else None."""
        if not self.summary.separate_mtp or self.config.mtp_layers or self.kind.attention == "other":
            return None
        source = f"{CONFIG} has no {DRAFTS} (sglang 0.5.23, spec_aux_hidden_state.py:172)"
        return ConfigFact(value=False, source=source)

    def _count(self, key: str, *names: str) -> ConfigFact | None:
        return self._required(key, self.config.count(key, *names), *names)

    def _required(self, key: str, fact: ConfigFact | None, *names: str) -> ConfigFact | None:
        if fact is not None:
            return replace(fact, source=f"{CONFIG}: {fact.source}")
        keys = " and no ".join(f"`{name}`" for name in names or NAMES.get(key, ()))
        self._report_missing(key, f"cannot read `{key}`: {CONFIG} has no {keys}")
        return None

    def _report_missing(self, key: str, message: str, example: str = "N") -> None:
        self.missing[key] = Problem(message, self.summary.location, f"`--set {key}={example}`")

    def _weights(self) -> ConfigFact | None:
        shards = self.summary.shards
        if not self.summary.has_shards:
            if not self.summary.weight_bytes:
                reason = f"{INDEX} has no `metadata.total_size`, and no file with weights is present"
                self._report_missing("weights_size", f"cannot read `weights_size`: {reason}", "BYTES")
                return None
            return ConfigFact(value=self.summary.weight_bytes, source=f"{INDEX}: metadata.total_size")
        files = f"{shards} files that {INDEX} names" if shards > 1 else "one file"
        return ConfigFact(value=self.summary.weight_bytes, source=f"bytes of {files}")

    def _architecture(self) -> ConfigFact | None:
        if self.name:
            return ConfigFact(value=self.name, source=f"{CONFIG}: architectures")
        self._report_missing("architecture", f"cannot read `architecture`: {CONFIG} has no `architectures`", "CLASS")
        return None

    def _quantization(self) -> ConfigFact | None:
        if (fact := self.config.quantization()) is not None:
            return replace(fact, source=f"{CONFIG}: {fact.source}")
        modelopt = self.summary.quantized
        inner = modelopt.data.get("quantization") if modelopt is not None else None
        if isinstance(inner, dict) and (algorithm := inner.get("quant_algo")):
            return ConfigFact(value=modelopt_label(algorithm), source=f"{QUANT_CONFIG}: quantization.quant_algo")
        self._report_missing("quantization", f"cannot read `quantization`: unknown format in {CONFIG}", "NAME")
        return None

    def _kv_heads(self) -> ConfigFact | None:
        count = self.config.count("kv_heads")
        latent = self.kind.attention == "latent"  # has no KV heads
        return None if latent or count is None else replace(count, source=f"{CONFIG}: {count.source}")

    @property
    def _is_sparse(self) -> bool:
        return self.kind.sparse and self.config.text.get(SPARSE) is not None

    def _sparse(self) -> ConfigFact | None:
        return ConfigFact(value=True, source=f"{CONFIG}: {SPARSE}") if self._is_sparse else None

    @property
    def _mtp_index(self) -> int:
        """The index of the MTP layer, after the last layer."""
        layers = self.config.count("layers")
        return layers.number if layers is not None else -1

    def _mtp_layer(self) -> ConfigFact | None:
        drafts, index = self.config.mtp_layers or 0, self._mtp_index
        if self.summary.separate_mtp and index > 0:
            return ConfigFact(value=index, source="tensors named `mtp.`")
        if drafts and self.summary.layers[index]:
            return ConfigFact(value=index, source=f"{CONFIG}: {DRAFTS}; tensors found")
        if drafts:
            self.notes.append(f"the checkpoint has no tensor of the {drafts} MTP layer in {CONFIG}")
        return None

    def _mtp_weights(self) -> ConfigFact | None:
        if size := self.summary.mtp_bytes:
            return ConfigFact(value=size, source=f"tensors named `mtp.`, by {_HEADERS}")
        size = self.summary.layer_bytes[self._mtp_index]
        if self.config.mtp_layers != 1 or not size:
            return None
        return ConfigFact(value=size, source=f"tensors of `layers.{self._mtp_index}.`, by {_HEADERS}")

    def _shared_experts(self) -> ConfigFact:
        count = self.config.count("moe.shared_experts")
        if count is None and (width := self.config.count("", "shared_expert_intermediate_size")) and width.number:
            return ConfigFact(value=1, source=f"{CONFIG}: shared_expert_intermediate_size")  # Qwen2-MoE, Qwen3-Next
        if count is None:
            return ConfigFact(value=0, source=f"{CONFIG} has no {NAMES['moe.shared_experts'][0]}")
        return replace(count, source=f"{CONFIG}: {count.source}")

    def head_dim(self) -> ConfigFact | None:
        """Return the width of a key head as computed by sglang 0.5.16 (model_config.py:765)."""
        if (count := self.config.count("kv_cache.head_dim")) is not None:
            return count
        hidden, heads = self.config.count("moe.hidden_size"), self.config.count("attention_heads")
        if hidden is None or heads is None or heads.number < 1:
            return None
        return ConfigFact(value=hidden.number // heads.number, source=f"{hidden.source} / {heads.source}")

    def _v_head_dim(self) -> ConfigFact | None:
        values, keys = self.config.count("kv_cache.v_head_dim"), self.head_dim()
        if values is None or values.number == 0 or keys is None or values.value == keys.value:
            return None
        return replace(values, source=f"{CONFIG}: {values.source}")

    def _sliding_layers(self) -> ConfigFact | None:
        """Count sliding layers as sglang 0.5.16 does (configs/model_config.py, `get_hybrid_layer_ids`)."""
        windows = self.config.windows
        fact = ConfigFact(value=sum(windows), source=f"`sliding_attention` in {LAYER_TYPES}") if windows else None
        return self._required("kv_cache.sliding_layers", fact, LAYER_TYPES)

    def _no_cache(self) -> None:
        """Note an architecture without a supported KV cache, or report an unknown one as missing."""
        if self.known is not None:
            self.notes.append(f"`{self.name}` has {self.kind.reason}: the size of its KV cache is not estimated")
            return
        suggestion = closest_match(self.name, ARCHITECTURES)
        message = f"unknown architecture `{self.name}`" if self.name else f"{CONFIG} names no architecture"
        message += ": the size of its KV cache per token is unknown"
        message += f"; the most similar known name is `{suggestion}`" if suggestion else ""
        hint = (
            "`--set kv_cache.head_dim=N` for MHA or GQA, `--set kv_cache.kv_lora_rank=N --set "
            "kv_cache.qk_rope_head_dim=N` for MLA, `--set kv_cache=null` for no capacity estimate"
        )
        self.missing["kv_cache"] = Problem(message, self.summary.location, hint)

    def _parsers(self) -> dict[str, Callable[[], ConfigFact | None]]:
        parsers = parsers_of(self.name, self.config.model_type, self.summary.chat_template)
        for flag, use in PARSERS.items():
            if flag not in {parser.flag for parser in parsers} and not self.is_overridden(f"flags.{flag}"):
                self.notes.append(f"no default `{flag}` is known; if this model {use}: `--set flags.{flag}=NAME`")
        if "auto_map" in self.config.data and not self.is_overridden(f"flags.{Meaning.CHECKPOINT_CODE}"):
            self.notes.append(
                f"{CONFIG} names code of the checkpoint (`auto_map`); if sglang does not support the architecture, "
                f"`--set flags.{Meaning.CHECKPOINT_CODE}=true` runs that code"
            )
        return {
            f"flags.{parser.flag}": (lambda item=parser: ConfigFact(value=item.value, source=item.source))  # type: ignore[misc]
            for parser in parsers
        }


def _contradictions(reader: _FactReader, facts: dict[str, ConfigFact]) -> Iterator[Problem]:
    location = f"{reader.summary.location}/{CONFIG}"
    for message in (*_impossible_counts(facts), *_layers_differ(reader.summary), *_windows_differ(reader)):
        yield Problem(message, location)
    for ending, expected, source in _expected_rows(reader):
        name, rows = reader.summary.rows.get(ending, ("", expected))
        if rows != expected:
            yield Problem(f"`{name}` has {rows} rows, {source} is {expected}", location)


def _windows_differ(reader: _FactReader) -> Iterator[str]:
    """Compare the number of layers with the number of layer types."""
    layers, windows = reader.config.count("layers"), reader.config.windows
    if reader.kind.windows and layers is not None and windows and len(windows) != layers.number:
        yield f"`{layers.source}` is {layers.number}, but `{LAYER_TYPES}` has {len(windows)} entries"


def _impossible_counts(facts: dict[str, ConfigFact]) -> Iterator[str]:
    """Find contradictory numbers in config.json."""
    for whole, part, divides in (
        ("attention_heads", "kv_heads", True),
        ("moe.routed_experts", "moe.experts_per_token", False),
    ):
        if whole in facts and part in facts:
            many, few = facts[whole], facts[part]
            if few.number < 1 or few.number > many.number or (divides and many.number % few.number):
                relation = "does not divide" if divides else "is more than"
                few_name, many_name = (fact.source.removeprefix(f"{CONFIG}: ") for fact in (few, many))
                yield f"`{few_name}` {few.value} {relation} `{many_name}` {many.value}"
    for key, fact in facts.items():
        if type(fact.value) is int and fact.value < (0 if key in _MAY_BE_ZERO else 1):
            yield f"`{fact.source.removeprefix(f'{CONFIG}: ')}` is {fact.value}"


def _layers_differ(summary: CheckpointSummary) -> Iterator[str]:
    """Compare the number of layers with the layers of tensors."""
    layers = summary.config.count("layers")
    if layers is None or not summary.layers:
        return
    drafts = summary.config.mtp_layers or 0
    empty = next((number for number in range(layers.number) if not summary.layers[number]), None)
    if empty is not None:
        yield f"`{LAYERS}` is {layers.number}, but layer {empty} has no tensor"
    if beyond := [number for number in summary.layers if number >= layers.number + drafts]:
        yield (
            f"`{LAYERS}` is {layers.number}{f' and `{DRAFTS}` {drafts}' if drafts else ''}, but layer "
            f"{min(beyond)} has tensors"
        )


def _expected_rows(reader: _FactReader) -> Iterator[tuple[str, int, str]]:
    """Yield endings of tensor names with the number of rows according to config.json, and its source."""
    config, kind = reader.config, reader.kind
    if kind.attention == "heads":
        heads = config.count("kv_heads") or config.count("attention_heads")
        if heads is not None and (width := reader.head_dim()) is not None:
            yield HEAD_ROWS, heads.number * width.number, f"`{heads.source}` x `head_dim`"
    if kind.attention == "latent":
        rank, rope = config.count("kv_cache.kv_lora_rank"), config.count("kv_cache.qk_rope_head_dim")
        if rank is not None and rope is not None:
            yield LATENT_ROWS, rank.number + rope.number, f"`{rank.source}` + `{rope.source}`"
        if (width := config.count("kv_cache.index_head_dim")) is not None:
            yield INDEXER_ROWS, width.number, f"`{width.source}`"
    if (experts := config.count("moe.routed_experts")) is not None and experts.number:
        for ending in EXPERT_ROWS:
            yield ending, experts.number, f"`{experts.source}`"
