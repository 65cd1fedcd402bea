"""The log-probabilities of fixed texts from one server, saved in a file as a reference."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import FailFast, Field

from orchestrator.bench.result import parse_strict
from orchestrator.bench.result_files import read_result_text
from orchestrator.core.errors import BenchError
from orchestrator.core.validation import type_adapter
from orchestrator.engine.logprobs import TokenLogprobs

REFERENCE_SCHEMA: Final = 2
# Limits of a file, to bound the memory of parsing: a list or an object takes up to 250 bytes, another value 60. The
# longest reference has 10,816 tokens: 1.2 MB, 64,900 lists and 130,000 commas.
MAX_REFERENCE_BYTES: Final = 3 << 19
_MAX_LISTS: Final = 80_000
_MAX_VALUES: Final = 200_000
_MAX_TOKENS: Final = 1 << 17
_DIGITS: Final = 6  # decimals of a log-probability in a file; float32 has seven digits

Id = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]
Nats = Annotated[float, Field(ge=-1e6, le=0.01, allow_inf_nan=False)]
Word = Annotated[str, Field(max_length=400)]
_Ranked = Annotated[tuple[tuple[Id, Nats], ...], Field(max_length=64), FailFast()]


@dataclass(frozen=True, kw_only=True)
class TextScores:
    """One text as token ids, with the scores of all tokens except the first."""

    ids: Annotated[tuple[Id, ...], Field(min_length=2, max_length=_MAX_TOKENS), FailFast()]
    actual: Annotated[tuple[Nats, ...], Field(max_length=_MAX_TOKENS), FailFast()]
    top: Annotated[tuple[_Ranked, ...], Field(max_length=_MAX_TOKENS), FailFast()]

    @property
    def logprobs(self) -> TokenLogprobs:
        """The scores in the form of a server response."""
        return TokenLogprobs(actual=self.actual, top=self.top)


@dataclass(frozen=True, kw_only=True)
class LogprobReference:
    """The scores of all texts from one server; `source` is the source of its checkpoint, None if unknown."""

    schema_version: int
    model: Word  # directory name of the checkpoint, as reported by the server
    source: Word | None
    numerics: Annotated[Mapping[Word, Word], Field(max_length=64)]  # settings that affect rounding
    ids_sha256: Word
    noise: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]  # nats; see `_measure_noise` in run.py
    top: Annotated[int, Field(ge=1, le=64)]
    texts: Annotated[tuple[TextScores, ...], Field(min_length=1, max_length=16), FailFast()]


_DESCRIPTION: Final = "reference of `deploy logprobs`"


def ids_digest(texts: tuple[tuple[int, ...], ...]) -> str:
    """Return a digest of all token ids; it depends on text and tokenizer."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def reference_to_json(reference: LogprobReference) -> str:
    """Return a reference as JSON text, with log-probabilities rounded to six decimals."""
    data = type_adapter(LogprobReference).dump_python(reference, mode="json")
    for text in data["texts"]:
        text["actual"] = [round(score, _DIGITS) for score in text["actual"]]
        text["top"] = [[[token, round(score, _DIGITS)] for token, score in ranked] for ranked in text["top"]]
    return json.dumps(data, separators=(",", ":")) + "\n"


def load_reference(file: Path) -> LogprobReference:
    """Read a reference written by `--save`. Raises BenchError for another schema version or damaged data."""
    text, location = read_result_text(file, "reference", max_bytes=MAX_REFERENCE_BYTES), str(file)
    if text.count("[") + text.count("{") > _MAX_LISTS or text.count(",") > _MAX_VALUES:
        hint = "`deploy logprobs NAME --save FILE` writes one"
        raise BenchError("not a valid reference of `deploy logprobs`: too large", location=location, hint=hint)
    data = parse_strict(dict[str, object], text, description=_DESCRIPTION, location=location)
    if data.get("schema_version") != REFERENCE_SCHEMA:
        raise BenchError(
            "another version of `deploy` wrote the reference", location=location, hint="write a new one with `--save`"
        )
    reference = parse_strict(LogprobReference, text, description=_DESCRIPTION, location=location)
    consistent = all(len(text.actual) == len(text.top) == len(text.ids) - 1 for text in reference.texts)
    tops = {len(ranked) for text in reference.texts for ranked in text.top}
    digest = ids_digest(tuple(text.ids for text in reference.texts))
    if not consistent or tops != {reference.top} or reference.ids_sha256 != digest:
        raise BenchError("the reference file is corrupt", location=location, hint="write a new one with `--save`")
    return reference
