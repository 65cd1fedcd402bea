"""What a server says of fixed texts, and the file that keeps it as a reference for others."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import FailFast, Field, TypeAdapter, ValidationError

from orchestrator.core.errors import BenchError
from orchestrator.core.validation import validation_problems
from orchestrator.engine.logprobs import TokenLogprobs

REFERENCE_SCHEMA: Final = 1
# What a file may hold, so that reading it takes little memory: a list or an object takes up to 250 bytes meanwhile,
# another value 60. A reference of 10,816 tokens, the longest there is, has 1.2 MB, 64,900 lists and 130,000 commas.
MOST_REFERENCE_BYTES: Final = 3 << 19
_MOST_LISTS: Final = 80_000
_MOST_VALUES: Final = 200_000
_MOST_TOKENS: Final = 1 << 17
_DIGITS: Final = 6  # of a log-probability in a file: float32 holds seven

Id = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]
Nats = Annotated[float, Field(ge=-1e6, le=0.01, allow_inf_nan=False)]
Word = Annotated[str, Field(max_length=400)]
_Ranked = Annotated[tuple[tuple[Id, Nats], ...], Field(max_length=64), FailFast()]


@dataclass(frozen=True, kw_only=True)
class TextScores:
    """One text as token ids, and what a server says of each of them but the first."""

    ids: Annotated[tuple[Id, ...], Field(min_length=2, max_length=_MOST_TOKENS), FailFast()]
    own: Annotated[tuple[Nats, ...], Field(max_length=_MOST_TOKENS), FailFast()]
    top: Annotated[tuple[_Ranked, ...], Field(max_length=_MOST_TOKENS), FailFast()]

    @property
    def likelihoods(self) -> TokenLogprobs:
        """The same as a server gives it."""
        return TokenLogprobs(own=self.own, top=self.top)


@dataclass(frozen=True, kw_only=True)
class LogprobReference:
    """A server's scores of every text. `source` is where its checkpoint is from, None where nobody knows."""

    schema_version: int
    model: Word  # what its server calls the folder of its checkpoint
    source: Word | None
    numerics: Annotated[Mapping[Word, Word], Field(max_length=64)]  # the settings that decide how numbers are rounded
    ids_sha256: Word
    noise: Annotated[
        float, Field(ge=0, le=1e6, allow_inf_nan=False)
    ]  # mean difference between its own ways of saying it
    top: Annotated[int, Field(ge=1, le=64)]
    texts: Annotated[tuple[TextScores, ...], Field(min_length=1, max_length=16), FailFast()]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each text."""
        return tuple(len(text.ids) for text in self.texts)


_REFERENCE: Final = TypeAdapter(LogprobReference)


def ids_digest(texts: tuple[tuple[int, ...], ...]) -> str:
    """One digest of all token ids: the same text by another tokenizer has another."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def reference_to_json(reference: LogprobReference) -> str:
    """The reference as JSON text, log-probabilities to a millionth."""
    data = _REFERENCE.dump_python(reference, mode="json")
    for text in data["texts"]:
        text["own"] = [round(score, _DIGITS) for score in text["own"]]
        text["top"] = [[[token, round(score, _DIGITS)] for token, score in ranked] for ranked in text["top"]]
    return json.dumps(data, separators=(",", ":")) + "\n"


def reference_from_json(text: str, *, where: str) -> LogprobReference:
    """Read a reference; `where` names its origin. Raises BenchError for another version or a damaged file."""
    if text.count("[") + text.count("{") > _MOST_LISTS or text.count(",") > _MOST_VALUES:
        raise BenchError("not a reference of `deploy logprobs`: it holds more than one can", where=where)
    try:
        reference = _REFERENCE.validate_json(text, strict=True)
    except ValidationError as error:
        problems = validation_problems(error)[:10]
        raise BenchError(
            "not a reference of `deploy logprobs`, or a damaged one", where=where, problems=problems
        ) from None
    if reference.schema_version != REFERENCE_SCHEMA:
        raise BenchError("a reference of another version", where=where, hint="make it again with `--save`")
    whole = all(len(each.own) == len(each.top) == len(each.ids) - 1 for each in reference.texts)
    ranked = {len(ranked) for each in reference.texts for ranked in each.top}
    if not whole or ranked != {reference.top} or reference.ids_sha256 != ids_digest(_ids(reference)):
        raise BenchError("a damaged reference: its parts do not fit each other", where=where)
    return reference


def _ids(reference: LogprobReference) -> tuple[tuple[int, ...], ...]:
    return tuple(text.ids for text in reference.texts)
