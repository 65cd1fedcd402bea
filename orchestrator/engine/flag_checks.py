"""Checks for option values that sglang's parser accepts, but that fail at startup or do not mean what they say.

The rejections of `ServerArgs` itself are in the version's flag table, extracted from its sources (`refusals.py`). The
checks here cover the rest: values that depend on the checkpoint, the GPU or other keys of the profile, values that
sglang changes silently, and values that make no sense for the server of a profile. Sources are in sglang's wheel 0.5.14
below `sglang/srt/`, unless a check names another one. tests/integration/test_server_args.py compares the checks with
the real `ServerArgs` of three versions.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from packaging.version import Version

from orchestrator.core.text import parse_json
from orchestrator.engine.flag_ranges import RANGES
from orchestrator.engine.flags import FlagTable, FlagValue, flag_words
from orchestrator.engine.refusals import refused

_DSA_PAGE: Final = 64  # tokens; server_args.py:3622
_DSA_KV_TYPES: Final = ("auto", "bf16", "bfloat16", "fp8_e4m3")  # server_args.py:3426; 0.5.23 overrides.py:541
_PAGED_TREE: Final = ("flashinfer", "fa3", "triton")  # arg_groups/speculative_hook.py:395
_EAGLE: Final = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
_LEVELS: Final = ("critical", "error", "warning", "info", "debug")  # known to both Python's logging and uvicorn
_BUCKETS: Final = ("bucket-time-to-first-token", "bucket-inter-token-latency", "bucket-e2e-request-latency")
_GRPC_OFFSET: Final = 10_000  # server_args.py:2762: a second port, checked even if gRPC is off
_LAST_PORT: Final = 65535
_LARGEST: Final = 2**63


@dataclass(frozen=True, kw_only=True)
class ServerArgs:
    """The options of one server, with the facts of its profile that the checks need."""

    table: FlagTable
    flags: Mapping[str, FlagValue]  # without flags set to `false`
    tp: int
    context_length: int
    sparse_attention: bool  # DSA
    platform: str = "rocm"  # rocm | cuda | cpu
    decided: Mapping[str, FlagValue] = field(default_factory=dict)  # set by other profile keys; names as in conditions
    quantization: str  # of the checkpoint, as written in the model's catalog entry
    mtp_layer: bool  # whether the checkpoint has one
    port: int  # of the server
    ranks: int  # of all data-parallel replicas, not multiplied by pipeline stages

    def number(self, name: str) -> float | None:
        """Return the value of a numeric option; None if it is unset, not a number, `nan` or too large for 64 bits."""
        number = _number(self.text(name) or "")
        return number if number is not None and abs(number) < _LARGEST else None

    def text(self, name: str) -> str | None:
        """Return the first value of an option, set under any of its names; `""` for a switch, None if unset."""
        for given, value in self.flags.items():
            if self.table.first_name(given) == name:
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


Check: TypeAlias = Callable[[ServerArgs], Iterator[ArgumentProblem]]


def argument_problems(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Yield every problem of a server's options: rejections of its sglang version, then the checks of this module."""
    for found in refused(given.table, given.flags, given.decided, given.platform):
        message = f"sglang {given.table.version} refuses `--{found.name}`: {found.message} ({found.place})"
        yield ArgumentProblem(name=found.name, message=message)
    for check in _CHECKS:
        yield from check(given)


def _names_differ(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Reject two names of one option: the parser would take the last one silently."""
    seen: dict[str, str] = {}
    for name in given.flags:
        first = seen.setdefault(given.table.first_name(name), name)
        if first != name:
            yield ArgumentProblem(name=name, message=f"`--{name}` and `--{first}` are one option", hint="set one")


def _in_range(given: ServerArgs) -> Iterator[ArgumentProblem]:
    for name, value in given.flags.items():
        allowed = RANGES.get(given.table.first_name(name))
        for word in flag_words(value) if allowed else ():
            if (number := _number(word)) is not None and allowed is not None and number not in allowed:
                yield ArgumentProblem(name=name, message=f"`--{name}` takes a number {allowed}, found `{word}`")


def _chunks(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Require chunks of whole pages (server_args.py:6692), and -1 to turn chunking off: other values <= 0 do so too."""
    size = given.number("chunked-prefill-size")
    page = _DSA_PAGE if given.sparse_attention else given.number("page-size") or 1
    if size is None:
        return
    if size <= 0 and size != -1:
        message = f"`--chunked-prefill-size {size:.0f}` turns chunks off, as -1 does"
        yield ArgumentProblem(name="chunked-prefill-size", message=message, hint="write -1 if that is meant")
    elif size > 0 and page > 0 and size % page:
        message = f"a chunk of {size:.0f} tokens is not a whole number of pages of {page:g}"
        yield ArgumentProblem(name="chunked-prefill-size", message=message, hint=f"a multiple of {page:g}")


def _sparse_attention(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Check the KV cache of sparse attention (DSA): bfloat16 or fp8_e4m3 (server_args.py:3426), fixed pages (:3622)."""
    if not given.sparse_attention:
        return
    if given.has("enable-deterministic-inference"):  # server_args.py:6022
        message = "sparse attention (DSA) has no deterministic backend: sglang refuses the two together"
        yield ArgumentProblem(name="enable-deterministic-inference", message=message, hint="leave it out")
    kind, page = given.text("kv-cache-dtype"), given.number("page-size")
    if kind is not None and kind not in _DSA_KV_TYPES:
        message = f"sparse attention (DSA) has no `{kind}` cache: sglang asserts bfloat16 or fp8_e4m3"
        yield ArgumentProblem(name="kv-cache-dtype", message=message, hint="`fp8_e4m3` or `bfloat16`")
    if page is not None and page != _DSA_PAGE:
        message = f"sparse attention (DSA) has pages of {_DSA_PAGE} tokens, whatever `--page-size` says"
        yield ArgumentProblem(name="page-size", message=message, hint="leave it out")


def _context(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Reject a context longer than the model's (configs/model_config.py:690).

    An environment variable of sglang lifts this limit, at the cost of worse answers.
    """
    length = given.number("context-length")
    if length is not None and length > given.context_length:
        message = f"a context of {length:.0f} tokens is longer than the model's {given.context_length}"
        yield ArgumentProblem(name="context-length", message=message)


def _drafts(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Check the three numbers of EAGLE: steps, top-k, draft tokens (arg_groups/speculative_hook.py:316-404)."""
    if given.text("speculative-algorithm") not in _EAGLE:
        return
    steps, topk, drafts = (
        given.number(f"speculative-{name}") for name in ("num-steps", "eagle-topk", "num-draft-tokens")
    )
    if given.has("speculative-num-steps") and not given.has("speculative-eagle-topk"):  # line 397 compares it
        message = "`--speculative-num-steps` is read with `--speculative-eagle-topk`, which sglang does not complete"
        yield ArgumentProblem(name="speculative-num-steps", message=message, hint="set all three, or none of them")
    if not given.has("speculative-num-steps") and not given.has("speculative-adaptive"):
        for name in ("speculative-eagle-topk", "speculative-num-draft-tokens"):
            if given.has(name):
                message = f"`--{name}` is asserted to come with `--speculative-num-steps`"
                yield ArgumentProblem(name=name, message=message, hint="set all three, or none of them")
    if steps is not None and topk == 1 and drafts is not None and drafts != steps + 1:
        message = f"with top-k 1 sglang verifies steps + 1 = {steps + 1:g} tokens, not {drafts:g}"
        yield ArgumentProblem(name="speculative-num-draft-tokens", message=message, hint=f"set it to {steps + 1:g}")
    paged = given.sparse_attention or (given.number("page-size") or 1) > 1
    if (topk or 0) > 1 and paged and given.text("attention-backend") not in _PAGED_TREE:
        message = f"a draft tree (top-k {topk:g}) over pages of several tokens has no kernel in this attention backend"
        yield ArgumentProblem(name="speculative-eagle-topk", message=message, hint="set it to 1")


def _has_a_draft(given: ServerArgs) -> Iterator[ArgumentProblem]:
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


def _device(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Require `cuda`, sglang's name for the GPUs of both vendors; with `cpu` they stay idle (server_args.py:2785)."""
    wanted, device = "cpu" if given.platform == "cpu" else "cuda", given.text("device")
    if device not in {None, wanted}:
        message = f"`--device {device}` is not this hardware's"
        yield ArgumentProblem(name="device", message=message, hint=f"leave it out, or `{wanted}`")


def _rank_port(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Reject the server's port as `nccl-port`: ranks connect at a separate port."""
    if given.number("nccl-port") == given.port:
        message = f"`--nccl-port {given.port}` is the server's own port"
        yield ArgumentProblem(name="nccl-port", message=message, hint="leave it out")


def _numa_nodes(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Require a NUMA node for each GPU (utils/numa_utils.py:104)."""
    nodes = given.flags.get("numa-node")
    told = len(flag_words(nodes)) if nodes is not None else 0
    gpus = int(given.number("base-gpu-id") or 0) + given.ranks
    if nodes is not None and told < gpus:
        message = f"`--numa-node` tells the nodes of {told} GPUs, the server takes {gpus}"
        hint = "one for each GPU of the machine, or leave it out"
        yield ArgumentProblem(name="numa-node", message=message, hint=hint)


def _ngrams(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Reject NGRAM over pages of several tokens without flashinfer.

    By default its draft tree has ten branches (arg_groups/speculative_hook.py:455).
    """
    paged = given.sparse_attention or (given.number("page-size") or 1) > 1
    if given.text("speculative-algorithm") == "NGRAM" and paged and given.text("attention-backend") != "flashinfer":
        message = "NGRAM drafts are a tree, which over pages of several tokens only flashinfer verifies"
        yield ArgumentProblem(name="speculative-algorithm", message=message, hint="`EAGLE`, with an MTP layer")


def _pipeline(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Reject speculation with pipeline stages (server_args.py:6651).

    0.5.23 accepts the two together under conditions, which are untested here.
    """
    if (given.number("pp-size") or 1) > 1 and (
        given.has("speculative-algorithm") or not given.has("disable-overlap-schedule")
    ):
        message = "pipeline stages are asserted to run without speculation and with `--disable-overlap-schedule`"
        yield ArgumentProblem(name=_written(given, "pp-size"), message=message, hint="leave `pp-size` at 1")


def _parallel(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Check `attn-cp-size` (server_args.py:5005-5015).

    Since 0.5.16 sglang may change this option, so the flag table cannot contain the rule.
    """
    ranks = given.number("attn-cp-size") or 1
    if ranks > 1 and given.tp % ranks:
        message = f"`--attn-cp-size` divides tp {given.tp}, found `{ranks:g}`"
        yield ArgumentProblem(name="attn-cp-size", message=message)
    if ranks > 1 and given.has("enable-aiter-allreduce-fusion"):
        message = "`--attn-cp-size` above 1 and `--enable-aiter-allreduce-fusion` exclude each other, as sglang asserts"
        yield ArgumentProblem(name="attn-cp-size", message=message, hint="leave one of the two out")


def _quantized_as_stored(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Require `quark` as quantization of a Quark checkpoint (configs/model_config.py:1370)."""
    named = given.text("quantization")
    if named is not None and given.quantization.startswith("quark") and named != "quark":
        message = f"the checkpoint is {given.quantization}, which sglang does not read as `{named}`"
        yield ArgumentProblem(name="quantization", message=message, hint="leave it out: config.json says it")


def _words(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Check options that the parser accepts as any text, but that sglang restricts at startup."""
    for name in ("log-level", "log-level-http"):  # utils/common.py:1371
        if (level := given.text(name)) is not None and level.lower() not in _LEVELS:
            hint = ", ".join(f"`{each}`" for each in _LEVELS)
            yield ArgumentProblem(name=name, message=f"`--{name}` does not take `{level}`", hint=f"one of {hint}")
    address = given.text("dist-init-addr")  # server_args.py:7308
    if address is not None and not re.fullmatch(r".+:\d{1,5}", address):
        yield ArgumentProblem(name="dist-init-addr", message=f"`--dist-init-addr` is HOST:PORT, found `{address}`")
    for name in _BUCKETS:  # otherwise prometheus_client raises `Buckets not in sorted order`
        bounds = [_number(word) for word in flag_words(given.flags.get(name, ()))]
        known = [bound for bound in bounds if bound is not None]
        if known != sorted(set(known)):
            yield ArgumentProblem(name=name, message=f"the bounds of `--{name}` ascend", hint="each above the last")


def _pairs(given: ServerArgs) -> Iterator[ArgumentProblem]:
    for (first, second), why in _EXCLUDED.items():
        if given.has(first, second):
            yield ArgumentProblem(name=first, message=f"`--{first}` and `--{second}` exclude each other: {why}")
    for name, (needed, why) in _NEEDED.items():
        if given.has(name) and not given.has(needed):
            yield ArgumentProblem(name=name, message=f"`--{name}` needs `--{needed}`: {why}")


_EXCLUDED: Final[Mapping[tuple[str, str], str]] = {
    (
        "enable-hierarchical-cache",
        "disable-radix-cache",
    ): "one extends what the other removes",  # server_args.py:5938
    ("enable-mixed-chunk", "speculative-algorithm"): "sglang drops the mixed chunks",  # speculative_hook.py:283
}
_NEEDED: Final[Mapping[str, tuple[str, str]]] = {
    "enable-two-batch-overlap": ("moe-a2a-backend", "there is nothing to overlap with"),  # server_args.py:6779
}


def _senseless(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Reject options that sglang obeys, but that defeat the purpose of a profile's server."""
    for name, (value, why) in _SENSELESS.items():
        if given.text(name) == value:
            written = f"--{name} {value}".rstrip()
            yield ArgumentProblem(name=_written(given, name), message=f"`{written}`: {why}", hint="leave it out")


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


def _kernels_of_another_vendor(given: ServerArgs) -> Iterator[ArgumentProblem]:
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


def _model_overrides(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Require a JSON object as model overrides: the parser accepts any text.

    Source: server_args.py, `json_model_override_args`.
    """
    text = given.text("json-model-override-args")
    if text is not None and not _is_object(text):
        message = f"`--json-model-override-args` takes a JSON object, found `{text}`"
        yield ArgumentProblem(name="json-model-override-args", message=message)


def _is_object(text: str) -> bool:
    try:
        return isinstance(parse_json(text), dict)
    except ValueError:
        return False


def name_problem(served_name: str) -> str:
    """Return the problem with the served name of a model, empty for none (server_args.py:6671)."""
    return f"`{served_name}` has a colon, which in sglang parts a model from an adapter" if ":" in served_name else ""


def port_problem(port: int, version: str) -> str:
    """Return the problem with a port, empty for none: up to 0.5.15 sglang also checks a gRPC port derived from it."""
    if Version(version) >= Version("0.5.16") or port + _GRPC_OFFSET <= _LAST_PORT:
        return ""
    return f"port {port} is too high: sglang {version} checks {port + _GRPC_OFFSET} too, which is no port"


def _written(given: ServerArgs, name: str) -> str:
    return next((each for each in given.flags if given.table.first_name(each) == name), name)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


_CHECKS: Final[Sequence[Check]] = (
    _names_differ, _in_range, _chunks, _sparse_attention, _context, _drafts, _ngrams, _pipeline, _parallel, _pairs,
    _model_overrides, _quantized_as_stored, _words, _senseless, _kernels_of_another_vendor,
    _has_a_draft, _device, _rank_port, _numa_nodes,
)  # fmt: skip
