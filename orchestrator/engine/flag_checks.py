"""Checks for option values that sglang accepts, but that fail at startup or have another effect than expected.

`up` lets sglang itself check its arguments (`server_args.py`). The checks here cover the rest: values that depend on
the GPU or other keys of the profile, values that sglang changes silently, and values that make no sense for a profile's
server. Sources are in sglang's wheel 0.5.14 below `sglang/srt/`, unless a check names another source.
tests/integration/test_server_args.py compares the checks with the real `ServerArgs` of three versions.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from orchestrator.core.errors import Problem
from orchestrator.engine.flags import FlagTable, FlagValue, flag_words, read_number
from orchestrator.engine.memory import DSA_PAGE
from orchestrator.engine.versions import is_since

_EAGLE: Final = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
_GRPC_OFFSET: Final = 10_000  # server_args.py:2762: a second port, checked even if gRPC is off
_LAST_PORT: Final = 65535


@dataclass(frozen=True, kw_only=True)
class FlagRange:
    """A range of valid numbers; `min` and `max` are inclusive bounds."""

    min: float = -math.inf
    exclusive_min: float = -math.inf
    max: float = math.inf
    exclusive_max: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.min <= value <= self.max and self.exclusive_min < value < self.exclusive_max

    def __str__(self) -> str:
        ends = {
            "of at least": self.min,
            "above": self.exclusive_min,
            "of at most": self.max,
            "below": self.exclusive_max,
        }
        return " and ".join(f"{words} {end:g}" for words, end in ends.items() if math.isfinite(end))


_COUNT: Final = FlagRange(min=1)
_NONE_OR_MORE: Final = FlagRange(min=0)
_SECONDS: Final = FlagRange(exclusive_min=0)
_PORT: Final = FlagRange(min=1, max=65535)

# Valid ranges of options that sglang itself does not check before a start.
RANGES: Final[Mapping[str, FlagRange]] = {
    # model_executor/model_runner_kv_cache_mixin.py:97: sglang keeps (1 - fraction) * GPU memory free
    "mem-fraction-static": FlagRange(exclusive_min=0, exclusive_max=1),
    "max-running-requests": _COUNT,  # model_runner_kv_cache_mixin.py:988: divided among dp replicas, not checked
    "max-total-tokens": _COUNT,
    "max-prefill-tokens": _COUNT,
    "context-length": _COUNT,
    "page-size": _COUNT,
    "cuda-graph-max-bs": _COUNT,
    "cuda-graph-max-bs-decode": _COUNT,
    "watchdog-timeout": _SECONDS,  # utils/watchdog.py: seconds; 0 or less fires immediately
    # server_args.py:5953: sglang checks it too, but the capacity of a plan needs it earlier
    "swa-full-tokens-ratio": FlagRange(exclusive_min=0, max=1),
    "nccl-port": _PORT,
    "disaggregation-bootstrap-port": _PORT,
    "hicache-size": _NONE_OR_MORE,
    "max-mamba-cache-size": _COUNT,
    "mamba-full-memory-ratio": FlagRange(exclusive_min=0),
    "pp-size": _COUNT,
    "speculative-num-steps": _COUNT,
    "speculative-eagle-topk": _COUNT,
    "speculative-num-draft-tokens": _COUNT,
    "hicache-ratio": FlagRange(exclusive_min=0),
}


@dataclass(frozen=True, kw_only=True)
class ServerFlags:
    """The options of one server, and the facts from its profile that the checks need."""

    table: FlagTable
    flags: Mapping[str, FlagValue]  # without flags set to `false`
    context_length: int
    sparse_attention: bool  # DSA
    platform: str = "rocm"  # rocm | cuda | cpu
    mtp_layer: bool  # whether the checkpoint has one

    def number(self, name: str) -> float | None:
        """Return the value of a numeric option, like `read_number`."""
        return read_number(self.text(name))

    def text(self, name: str) -> str | None:
        """Return the first value of an option under any of its names; `""` for a switch, None if unset."""
        for flag, value in self.flags.items():
            if self.table.first_name(flag) == name:
                return next(iter(flag_words(value)), "")
        return None


Check: TypeAlias = Callable[[ServerFlags], Iterator[Problem]]


def argument_problems(server: ServerFlags) -> Iterator[Problem]:
    """Yield every problem of a server's options, with an option's name as the location."""
    for check in _CHECKS:
        yield from check(server)


def _in_range(server: ServerFlags) -> Iterator[Problem]:
    for name, value in server.flags.items():
        allowed = RANGES.get(server.table.first_name(name))
        for word in flag_words(value) if allowed else ():
            if (number := read_number(word)) is not None and allowed is not None and number not in allowed:
                yield Problem(f"`--{name}` takes a number {allowed}, found `{word}`", name)


def _sparse_attention(server: ServerFlags) -> Iterator[Problem]:
    """Reject other page sizes with sparse attention (DSA), which requires a fixed size (server_args.py:3622)."""
    page = server.number("page-size")
    if server.sparse_attention and page is not None and page != DSA_PAGE:
        message = f"sparse attention (DSA) uses pages of {DSA_PAGE} tokens and ignores `--page-size`"
        yield Problem(message, "page-size", "remove `page-size`")


def _context(server: ServerFlags) -> Iterator[Problem]:
    """Reject a context longer than the model's (configs/model_config.py:690).

    The capacity of a plan needs this limit. An environment variable of sglang lifts it, at the cost of worse answers.
    """
    length = server.number("context-length")
    if length is not None and length > server.context_length:
        message = f"a context of {length:.0f} tokens is longer than the model's {server.context_length}"
        yield Problem(message, "context-length")


def _drafts(server: ServerFlags) -> Iterator[Problem]:
    """Require draft tokens = steps + 1 for EAGLE with top-k 1, else sglang changes them (speculative_hook.py:404)."""
    if server.text("speculative-algorithm") not in _EAGLE:
        return
    steps, topk, drafts = (
        server.number(f"speculative-{name}") for name in ("num-steps", "eagle-topk", "num-draft-tokens")
    )
    if steps is not None and topk == 1 and drafts is not None and drafts != steps + 1:
        message = f"with top-k 1 sglang verifies steps + 1 = {steps + 1:g} tokens, not {drafts:g}"
        yield Problem(message, "speculative-num-draft-tokens", f"set it to {steps + 1:g}")


def _draft_model(server: ServerFlags) -> Iterator[Problem]:
    """Require a draft model, or for EAGLE the checkpoint's MTP layer; n-grams need neither, DSpark may be built in.

    Source: arg_groups/speculative_hook.py:304; the drafts of DeepSeek-V4.1 are in its checkpoint (0.5.23 cookbook).
    """
    algorithm = server.text("speculative-algorithm")
    if algorithm is None or server.text("speculative-draft-model-path") is not None:
        return
    if algorithm in {"EAGLE3", "STANDALONE", "DFLASH"}:
        message = f"`{algorithm}` needs a draft model, and none is set"
        hint = "set `speculative-draft-model-path`; with the checkpoint's MTP layer the algorithm is `EAGLE`"
        yield Problem(message, "speculative-algorithm", hint)
    elif not server.mtp_layer and algorithm not in {"NGRAM", "DSPARK"}:
        message = "speculation needs a draft: this model has no MTP layer"
        hint = "remove the `speculative-…` flags, or set `speculative-draft-model-path`"
        yield Problem(message, "speculative-algorithm", hint)


def _server_is_usable(server: ServerFlags) -> Iterator[Problem]:
    """Reject valid options that defeat the purpose of a profile's server."""
    for name, (value, reason) in _UNUSABLE.items():
        if server.text(name) == value:
            written = f"--{name} {value}".rstrip()
            yield Problem(f"`{written}`: {reason}", _written(server, name), f"remove `{name}`")


_UNUSABLE: Final[Mapping[str, tuple[str, str]]] = {  # option: (value, reason); the value "" stands for a switch
    "load-format": ("dummy", "sglang uses random weights instead of the checkpoint"),
    "speculative-draft-load-format": ("dummy", "sglang uses random weights for the draft model"),
    "grpc-mode": ("", "the server has no HTTP API, which health checks, smoke test and benchmarks need"),
    "smg-grpc-mode": ("", "the server has no HTTP API, which health checks, smoke test and benchmarks need"),
    "is-embedding": ("", "the server generates no text"),
    "encoder-only": ("", "the server generates no text"),
    "skip-tokenizer-init": ("", "the server accepts and returns only token ids"),
    "delete-ckpt-after-loading": ("", "sglang deletes the checkpoint, so a restart fails"),
}


def _backend_has_kernels(server: ServerFlags) -> Iterator[Problem]:
    """Reject backends without kernels for the platform; their import fails only after the weights are loaded.

    The parser lists the backends of all platforms (0.5.14, server_args.py:120-260, `ATTENTION_BACKEND_CHOICES` and the
    lists next to it; layers/attention/attention_registry.py imports the backends).
    """
    unsupported = _OTHER_VENDOR_BACKENDS.get(server.platform)
    for name in server.flags if unsupported else ():
        first = server.table.first_name(name)
        value = server.text(first) or ""
        if unsupported and first.endswith("-backend") and unsupported.match(value):
            message = f"`--{name} {value}` has no kernels for {server.platform}"
            yield Problem(message, name, f"remove `{name}`: sglang then chooses a backend with kernels")


_OTHER_VENDOR_BACKENDS: Final[Mapping[str, re.Pattern[str]]] = {
    "rocm": re.compile(r"flashinfer|fa[34]|flashmla|cutlass|trtllm|cutedsl|tokenspeed|deep_gemm|marlin|ascend|intel_"),
    "cuda": re.compile(r"aiter|wave|ascend|intel_"),
}


def port_problem(port: int, version: str) -> str:
    """Return the problem with a port, or ""; up to 0.5.15 sglang also checks a gRPC port derived from it."""
    if is_since(version, "0.5.16") or port + _GRPC_OFFSET <= _LAST_PORT:
        return ""
    return f"port {port} is too high: sglang {version} checks {port + _GRPC_OFFSET} too, which is above 65535"


def _written(server: ServerFlags, name: str) -> str:
    return next((flag for flag in server.flags if server.table.first_name(flag) == name), name)


_CHECKS: Final[Sequence[Check]] = (
    _in_range, _sparse_attention, _context, _drafts, _server_is_usable, _backend_has_kernels, _draft_model,
)  # fmt: skip
