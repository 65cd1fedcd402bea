"""Checks for option values that sglang accepts, but that fail at startup or do not mean what they say.

`up` asks sglang itself what it rejects (`server_args.py`). The checks here cover the rest: values that depend on the
GPU or other keys of the profile, values that sglang changes silently, and values that make no sense for the server of a
profile. Sources are in sglang's wheel 0.5.14 below `sglang/srt/`, unless a check names another one.
tests/integration/test_server_args.py compares the checks with the real `ServerArgs` of three versions.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from packaging.version import Version

from orchestrator.core.errors import Problem
from orchestrator.engine.flag_ranges import RANGES
from orchestrator.engine.flags import FlagTable, FlagValue, flag_words
from orchestrator.engine.memory import DSA_PAGE

_EAGLE: Final = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
_GRPC_OFFSET: Final = 10_000  # server_args.py:2762: a second port, checked even if gRPC is off
_LAST_PORT: Final = 65535
_LARGEST: Final = 2**63


@dataclass(frozen=True, kw_only=True)
class GivenFlags:
    """The options of one server, with the facts of its profile that the checks need."""

    table: FlagTable
    flags: Mapping[str, FlagValue]  # without flags set to `false`
    context_length: int
    sparse_attention: bool  # DSA
    platform: str = "rocm"  # rocm | cuda | cpu
    mtp_layer: bool  # whether the checkpoint has one

    def number(self, name: str) -> float | None:
        """Return the value of a numeric option; None if it is unset, not a number, `nan` or too large for 64 bits."""
        number = _number(self.text(name) or "")
        return number if number is not None and abs(number) < _LARGEST else None

    def text(self, name: str) -> str | None:
        """Return the first value of an option, set under any of its names; `""` for a switch, None if unset."""
        for flag, value in self.flags.items():
            if self.table.first_name(flag) == name:
                return next(iter(flag_words(value)), "")
        return None


Check: TypeAlias = Callable[[GivenFlags], Iterator[Problem]]


def argument_problems(given: GivenFlags) -> Iterator[Problem]:
    """Yield every problem of a server's options; the location of each is the name of an option."""
    for check in _CHECKS:
        yield from check(given)


def _in_range(given: GivenFlags) -> Iterator[Problem]:
    for name, value in given.flags.items():
        allowed = RANGES.get(given.table.first_name(name))
        for word in flag_words(value) if allowed else ():
            if (number := _number(word)) is not None and allowed is not None and number not in allowed:
                yield Problem(f"`--{name}` takes a number {allowed}, found `{word}`", name)


def _sparse_attention(given: GivenFlags) -> Iterator[Problem]:
    """Reject another page size with sparse attention (DSA), whose pages are fixed (server_args.py:3622)."""
    page = given.number("page-size")
    if given.sparse_attention and page is not None and page != DSA_PAGE:
        message = f"sparse attention (DSA) has pages of {DSA_PAGE} tokens, whatever `--page-size` says"
        yield Problem(message, "page-size", "leave it out")


def _context(given: GivenFlags) -> Iterator[Problem]:
    """Reject a context longer than the model's (configs/model_config.py:690).

    The plan's own capacity needs this limit. An environment variable of sglang lifts it, at the cost of worse answers.
    """
    length = given.number("context-length")
    if length is not None and length > given.context_length:
        message = f"a context of {length:.0f} tokens is longer than the model's {given.context_length}"
        yield Problem(message, "context-length")


def _drafts(given: GivenFlags) -> Iterator[Problem]:
    """Require draft tokens = steps + 1 for EAGLE with top-k 1, else sglang changes them (speculative_hook.py:404)."""
    if given.text("speculative-algorithm") not in _EAGLE:
        return
    steps, topk, drafts = (
        given.number(f"speculative-{name}") for name in ("num-steps", "eagle-topk", "num-draft-tokens")
    )
    if steps is not None and topk == 1 and drafts is not None and drafts != steps + 1:
        message = f"with top-k 1 sglang verifies steps + 1 = {steps + 1:g} tokens, not {drafts:g}"
        yield Problem(message, "speculative-num-draft-tokens", f"set it to {steps + 1:g}")


def _has_a_draft(given: GivenFlags) -> Iterator[Problem]:
    """Require a draft model, or for EAGLE the checkpoint's MTP layer; n-grams need neither, DSpark may be inside.

    Source: arg_groups/speculative_hook.py:304; the drafts of DeepSeek-V4.1 are in its checkpoint (0.5.23 cookbook).
    """
    algorithm = given.text("speculative-algorithm")
    if algorithm is None or given.text("speculative-draft-model-path") is not None:
        return
    if algorithm in {"EAGLE3", "STANDALONE", "DFLASH"}:
        message = f"`{algorithm}` drafts with a model of its own, and none is named"
        hint = "set `speculative-draft-model-path`; with the checkpoint's MTP layer the algorithm is `EAGLE`"
        yield Problem(message, "speculative-algorithm", hint)
    elif not given.mtp_layer and algorithm not in {"NGRAM", "DSPARK"}:
        message = "speculation needs a draft: this model has no MTP layer"
        hint = "remove the `speculative-…` flags, or set `speculative-draft-model-path`"
        yield Problem(message, "speculative-algorithm", hint)


def _senseless(given: GivenFlags) -> Iterator[Problem]:
    """Reject options that sglang obeys, but that defeat the purpose of a profile's server."""
    for name, (value, reason) in _SENSELESS.items():
        if given.text(name) == value:
            written = f"--{name} {value}".rstrip()
            yield Problem(f"`{written}`: {reason}", _written(given, name), "leave it out")


_SENSELESS: Final[Mapping[str, tuple[str, str]]] = {  # option: (value, reason); the value "" stands for a switch
    "load-format": ("dummy", "the weights are random numbers, and the checkpoint is not read"),
    "speculative-draft-load-format": ("dummy", "the draft's weights are random numbers"),
    "grpc-mode": ("", "nothing answers over HTTP, by which health, smoke test and benchmarks ask"),
    "smg-grpc-mode": ("", "nothing answers over HTTP, by which health, smoke test and benchmarks ask"),
    "is-embedding": ("", "the server generates no text"),
    "encoder-only": ("", "the server generates no text"),
    "skip-tokenizer-init": ("", "the server takes and returns token ids, and no text"),
    "delete-ckpt-after-loading": ("", "the checkpoint is deleted, and no restart finds it"),
}


def _kernels_of_another_vendor(given: GivenFlags) -> Iterator[Problem]:
    """Reject backends without kernels for the platform: their import fails only after the weights are loaded.

    The parser lists the backends of all platforms (0.5.14, server_args.py:120-260, `ATTENTION_BACKEND_CHOICES` and the
    lists next to it; layers/attention/attention_registry.py imports the backends).
    """
    foreign = _FOREIGN_BACKENDS.get(given.platform)
    for name in given.flags if foreign else ():
        first = given.table.first_name(name)
        value = given.text(first) or ""
        if foreign and first.endswith("-backend") and foreign.match(value):
            message = f"`--{name} {value}` has no kernels for {given.platform}"
            yield Problem(message, name, "leave it out: sglang takes one that has")


_FOREIGN_BACKENDS: Final[Mapping[str, re.Pattern[str]]] = {
    "rocm": re.compile(r"flashinfer|fa[34]|flashmla|cutlass|trtllm|cutedsl|tokenspeed|deep_gemm|marlin|ascend|intel_"),
    "cuda": re.compile(r"aiter|wave|ascend|intel_"),
}


def port_problem(port: int, version: str) -> str:
    """Return the problem with a port, empty for none: up to 0.5.15 sglang also checks a gRPC port derived from it."""
    if Version(version) >= Version("0.5.16") or port + _GRPC_OFFSET <= _LAST_PORT:
        return ""
    return f"port {port} is too high: sglang {version} checks {port + _GRPC_OFFSET} too, which is above 65535"


def _written(given: GivenFlags, name: str) -> str:
    return next((flag for flag in given.flags if given.table.first_name(flag) == name), name)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


_CHECKS: Final[Sequence[Check]] = (
    _in_range, _sparse_attention, _context, _drafts, _senseless, _kernels_of_another_vendor, _has_a_draft,
)  # fmt: skip
