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

from orchestrator.engine.flag_ranges import RANGES
from orchestrator.engine.flags import FlagTable, FlagValue, flag_words
from orchestrator.engine.memory import DSA_PAGE

_EAGLE: Final = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
_LEVELS: Final = ("critical", "error", "warning", "info", "debug")  # known to both Python's logging and uvicorn
_BUCKETS: Final = ("bucket-time-to-first-token", "bucket-inter-token-latency", "bucket-e2e-request-latency")
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
    port: int  # of the server
    ranks: int  # of all data-parallel replicas, not multiplied by pipeline stages

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

    def has(self, *names: str) -> bool:
        """Return whether all of these options are set."""
        return all(self.text(name) is not None for name in names)


@dataclass(frozen=True, kw_only=True)
class ArgumentProblem:
    """A problem with the option `name`."""

    name: str
    message: str
    hint: str = ""


Check: TypeAlias = Callable[[GivenFlags], Iterator[ArgumentProblem]]


def argument_problems(given: GivenFlags) -> Iterator[ArgumentProblem]:
    """Yield every problem of a server's options."""
    for check in _CHECKS:
        yield from check(given)


def _names_differ(given: GivenFlags) -> Iterator[ArgumentProblem]:
    """Reject two names of one option: the parser would take the last one silently."""
    seen: dict[str, str] = {}
    for name in given.flags:
        first = seen.setdefault(given.table.first_name(name), name)
        if first != name:
            yield ArgumentProblem(name=name, message=f"`--{name}` and `--{first}` are one option", hint="set one")


def _in_range(given: GivenFlags) -> Iterator[ArgumentProblem]:
    for name, value in given.flags.items():
        allowed = RANGES.get(given.table.first_name(name))
        for word in flag_words(value) if allowed else ():
            if (number := _number(word)) is not None and allowed is not None and number not in allowed:
                yield ArgumentProblem(name=name, message=f"`--{name}` takes a number {allowed}, found `{word}`")


def _chunks(given: GivenFlags) -> Iterator[ArgumentProblem]:
    """Require -1 to turn chunking off: other values <= 0 do so too (server_args.py:6692)."""
    size = given.number("chunked-prefill-size")
    if size is not None and size <= 0 and size != -1:
        message = f"`--chunked-prefill-size {size:.0f}` turns chunks off, as -1 does"
        yield ArgumentProblem(name="chunked-prefill-size", message=message, hint="write -1 if that is meant")


def _sparse_attention(given: GivenFlags) -> Iterator[ArgumentProblem]:
    """Reject another page size with sparse attention (DSA), whose pages are fixed (server_args.py:3622)."""
    page = given.number("page-size")
    if given.sparse_attention and page is not None and page != DSA_PAGE:
        message = f"sparse attention (DSA) has pages of {DSA_PAGE} tokens, whatever `--page-size` says"
        yield ArgumentProblem(name="page-size", message=message, hint="leave it out")


def _context(given: GivenFlags) -> Iterator[ArgumentProblem]:
    """Reject a context longer than the model's (configs/model_config.py:690).

    The plan's own capacity needs this limit. An environment variable of sglang lifts it, at the cost of worse answers.
    """
    length = given.number("context-length")
    if length is not None and length > given.context_length:
        message = f"a context of {length:.0f} tokens is longer than the model's {given.context_length}"
        yield ArgumentProblem(name="context-length", message=message)


def _drafts(given: GivenFlags) -> Iterator[ArgumentProblem]:
    """Require draft tokens = steps + 1 for EAGLE with top-k 1, else sglang changes them (speculative_hook.py:404)."""
    if given.text("speculative-algorithm") not in _EAGLE:
        return
    steps, topk, drafts = (
        given.number(f"speculative-{name}") for name in ("num-steps", "eagle-topk", "num-draft-tokens")
    )
    if steps is not None and topk == 1 and drafts is not None and drafts != steps + 1:
        message = f"with top-k 1 sglang verifies steps + 1 = {steps + 1:g} tokens, not {drafts:g}"
        yield ArgumentProblem(name="speculative-num-draft-tokens", message=message, hint=f"set it to {steps + 1:g}")


def _has_a_draft(given: GivenFlags) -> Iterator[ArgumentProblem]:
    """Require a draft model, or for EAGLE the checkpoint's MTP layer; n-grams need neither, DSpark may be inside.

    Source: arg_groups/speculative_hook.py:304; the drafts of DeepSeek-V4.1 are in its checkpoint (0.5.23 cookbook).
    """
    algorithm = given.text("speculative-algorithm")
    if algorithm is None or given.has("speculative-draft-model-path"):
        return
    if algorithm in {"EAGLE3", "STANDALONE", "DFLASH"}:
        message = f"`{algorithm}` drafts with a model of its own, and none is named"
        hint = "set `speculative-draft-model-path`; with the checkpoint's MTP layer the algorithm is `EAGLE`"
        yield ArgumentProblem(name="speculative-algorithm", message=message, hint=hint)
    elif not given.mtp_layer and algorithm not in {"NGRAM", "DSPARK"}:
        message = "speculation needs a draft: this model has no MTP layer"
        hint = "remove the `speculative-…` flags, or set `speculative-draft-model-path`"
        yield ArgumentProblem(name="speculative-algorithm", message=message, hint=hint)


def _device(given: GivenFlags) -> Iterator[ArgumentProblem]:
    """Require `cuda`, sglang's name for the GPUs of both vendors; with `cpu` they stay idle (server_args.py:2785)."""
    wanted, device = "cpu" if given.platform == "cpu" else "cuda", given.text("device")
    if device not in {None, wanted}:
        message = f"`--device {device}` is not this hardware's"
        yield ArgumentProblem(name="device", message=message, hint=f"leave it out, or `{wanted}`")


def _rank_port(given: GivenFlags) -> Iterator[ArgumentProblem]:
    """Reject the server's port as `nccl-port`: ranks connect at a separate port."""
    if given.number("nccl-port") == given.port:
        message = f"`--nccl-port {given.port}` is the server's own port"
        yield ArgumentProblem(name="nccl-port", message=message, hint="leave it out")


def _numa_nodes(given: GivenFlags) -> Iterator[ArgumentProblem]:
    """Require a NUMA node for each GPU (utils/numa_utils.py:104)."""
    nodes = given.flags.get("numa-node")
    count = len(flag_words(nodes)) if nodes is not None else 0
    gpus = int(given.number("base-gpu-id") or 0) + given.ranks
    if nodes is not None and count < gpus:
        message = f"`--numa-node` tells the nodes of {count} GPUs, the server takes {gpus}"
        hint = "one for each GPU of the machine, or leave it out"
        yield ArgumentProblem(name="numa-node", message=message, hint=hint)


def _words(given: GivenFlags) -> Iterator[ArgumentProblem]:
    """Check options that the parser accepts as any text, but that sglang restricts at startup."""
    for name in ("log-level", "log-level-http"):  # utils/common.py:1371
        if (level := given.text(name)) is not None and level.lower() not in _LEVELS:
            hint = ", ".join(f"`{level}`" for level in _LEVELS)
            yield ArgumentProblem(name=name, message=f"`--{name}` does not take `{level}`", hint=f"one of {hint}")
    address = given.text("dist-init-addr")  # server_args.py:7308
    if address is not None and not re.fullmatch(r".+:\d{1,5}", address):
        yield ArgumentProblem(name="dist-init-addr", message=f"`--dist-init-addr` is HOST:PORT, found `{address}`")
    for name in _BUCKETS:  # otherwise prometheus_client raises `Buckets not in sorted order`
        bounds = [_number(word) for word in flag_words(given.flags.get(name, ()))]
        known = [bound for bound in bounds if bound is not None]
        if known != sorted(set(known)):
            yield ArgumentProblem(name=name, message=f"the bounds of `--{name}` ascend", hint="each above the last")


def _mixed_chunks(given: GivenFlags) -> Iterator[ArgumentProblem]:
    """Reject mixed chunks with speculation, where sglang drops them (speculative_hook.py:283)."""
    if given.has("enable-mixed-chunk", "speculative-algorithm"):
        message = "sglang drops the mixed chunks of `--enable-mixed-chunk` with `--speculative-algorithm`"
        yield ArgumentProblem(name="enable-mixed-chunk", message=message)


def _senseless(given: GivenFlags) -> Iterator[ArgumentProblem]:
    """Reject options that sglang obeys, but that defeat the purpose of a profile's server."""
    for name, (value, reason) in _SENSELESS.items():
        if given.text(name) == value:
            written = f"--{name} {value}".rstrip()
            yield ArgumentProblem(name=_written(given, name), message=f"`{written}`: {reason}", hint="leave it out")


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


def _kernels_of_another_vendor(given: GivenFlags) -> Iterator[ArgumentProblem]:
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
            yield ArgumentProblem(name=name, message=message, hint="leave it out: sglang takes one that has")


_FOREIGN_BACKENDS: Final[Mapping[str, re.Pattern[str]]] = {
    "rocm": re.compile(r"flashinfer|fa[34]|flashmla|cutlass|trtllm|cutedsl|tokenspeed|deep_gemm|marlin|ascend|intel_"),
    "cuda": re.compile(r"aiter|wave|ascend|intel_"),
}


def name_problem(served_name: str) -> str:
    """Return the problem with the served name of a model, empty for none (server_args.py:6671)."""
    return f"`{served_name}` has a colon, which in sglang parts a model from an adapter" if ":" in served_name else ""


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
    _names_differ, _in_range, _chunks, _sparse_attention, _context, _drafts, _mixed_chunks, _words, _senseless,
    _kernels_of_another_vendor, _has_a_draft, _device, _rank_port, _numa_nodes,
)  # fmt: skip
