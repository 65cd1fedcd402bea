"""Values and combinations of options that sglang's parser takes, and that end the start or mean something else.

What `ServerArgs` itself refuses is in the version's table, read from its sources (`refusals.py`). The checks here are
for what no source says before a start: what depends on the checkpoint, the GPU or the rest of a profile, what sglang
changes in silence, and what makes no sense of a server that a profile describes. Each has its source in sglang's wheel
0.5.14 (below `sglang/srt/`), unless it says otherwise. tests/integration/test_server_args.py asks the real `ServerArgs`
of three versions.
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
_DSA_KV_TYPES: Final = (
    "auto",
    "bf16",
    "bfloat16",
    "fp8_e4m3",
)  # server_args.py:3426; 0.5.23 overrides.py:541
_PAGED_TREE: Final = ("flashinfer", "fa3", "triton")  # arg_groups/speculative_hook.py:395
_EAGLE: Final = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
_LEVELS: Final = ("critical", "error", "warning", "info", "debug")  # that Python's logging and uvicorn both know
_BUCKETS: Final = ("bucket-time-to-first-token", "bucket-inter-token-latency", "bucket-e2e-request-latency")
_GRPC_OFFSET: Final = 10_000  # server_args.py:2762: a second port, checked even where nobody listens on it
_LAST_PORT: Final = 65535
_LARGEST: Final = 2**63


@dataclass(frozen=True, kw_only=True)
class ServerArgs:
    """What a start is given, as far as its options are judged by it."""

    table: FlagTable
    flags: Mapping[str, FlagValue]  # without those that are `false`
    tp: int
    context_length: int
    sparse_attention: bool  # DSA
    platform: str = "rocm"  # rocm | cuda | cpu
    decided: Mapping[str, FlagValue] = field(default_factory=dict)  # by other parts of a profile, as refusals name them
    quantization: str  # of the checkpoint, as a model file calls it
    mtp_layer: bool  # of the checkpoint
    port: int  # of the server
    ranks: int  # of all replicas, without the stages of a pipeline

    def number(self, name: str) -> float | None:
        """The value of a numeric option, None where it is not set, or is no number that one can reckon with.

        `nan` is none, nor is what does not fit into 64 bits.
        """
        number = _number(self.text(name) or "")
        return number if number is not None and abs(number) < _LARGEST else None

    def text(self, name: str) -> str | None:
        """The first value of an option, under whichever of its names, `""` for a switch; None where it is not set."""
        for given, value in self.flags.items():
            if self.table.first_name(given) == name:
                return next(iter(flag_words(value)), "")
        return None

    def has(self, *names: str) -> bool:
        """Whether all of these options are set."""
        return all(self.text(name) is not None for name in names)


@dataclass(frozen=True, kw_only=True)
class ArgumentProblem:
    """What is wrong with the option of that name."""

    name: str
    message: str
    hint: str = ""


Check: TypeAlias = Callable[[ServerArgs], Iterator[ArgumentProblem]]


def argument_problems(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Everything that is wrong with options that each version's parser takes."""
    for found in refused(given.table, given.flags, given.decided, given.platform):
        message = f"sglang {given.table.version} refuses `--{found.name}`: {found.message} ({found.place})"
        yield ArgumentProblem(name=found.name, message=message)
    for check in _CHECKS:
        yield from check(given)


def _names_differ(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """An option is written once: of two names the parser takes the later."""
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
    """A chunk is whole pages (server_args.py:6692); -1 turns chunks off, and 0 and less do so too, untold."""
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
    """With DSA the cache is bfloat16 or fp8_e4m3 (server_args.py:3426), and its pages are set (:3622)."""
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
    """Not longer than the model's (configs/model_config.py:690; a variable lifts that, and answers get worse)."""
    length = given.number("context-length")
    if length is not None and length > given.context_length:
        message = f"a context of {length:.0f} tokens is longer than the model's {given.context_length}"
        yield ArgumentProblem(name="context-length", message=message)


def _drafts(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """EAGLE's three numbers (arg_groups/speculative_hook.py:316-404)."""
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
    """EAGLE without a draft model takes the checkpoint's MTP layer; others have to have one of their own.

    arg_groups/speculative_hook.py:304; n-grams are drafts without a model.
    """
    algorithm = given.text("speculative-algorithm")
    if algorithm is None or given.has("speculative-draft-model-path"):
        return
    if algorithm in {"EAGLE3", "STANDALONE", "DFLASH"}:
        message = f"`{algorithm}` drafts with a model of its own, and none is named"
        hint = "set `speculative-draft-model-path`; with the checkpoint's MTP layer the algorithm is `EAGLE`"
        yield ArgumentProblem(name="speculative-algorithm", message=message, hint=hint)
    elif not given.mtp_layer and algorithm != "NGRAM":
        message = "speculation needs a draft: this model has no MTP layer"
        hint = "remove the `speculative-…` flags, or set `speculative-draft-model-path`"
        yield ArgumentProblem(name="speculative-algorithm", message=message, hint=hint)


def _device(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """sglang calls both vendors' GPUs `cuda`; with `cpu` it would leave them idle (server_args.py:2785)."""
    wanted, device = "cpu" if given.platform == "cpu" else "cuda", given.text("device")
    if device not in {None, wanted}:
        message = f"`--device {device}` is not this hardware's"
        yield ArgumentProblem(name="device", message=message, hint=f"leave it out, or `{wanted}`")


def _rank_port(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Ranks meet at a port of their own."""
    if given.number("nccl-port") == given.port:
        message = f"`--nccl-port {given.port}` is the server's own port"
        yield ArgumentProblem(name="nccl-port", message=message, hint="leave it out")


def _numa_nodes(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Each GPU has its NUMA node (utils/numa_utils.py:104)."""
    nodes = given.flags.get("numa-node")
    told = len(flag_words(nodes)) if nodes is not None else 0
    gpus = int(given.number("base-gpu-id") or 0) + given.ranks
    if nodes is not None and told < gpus:
        message = f"`--numa-node` tells the nodes of {told} GPUs, the server takes {gpus}"
        hint = "one for each GPU of the machine, or leave it out"
        yield ArgumentProblem(name="numa-node", message=message, hint=hint)


def _ngrams(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Its tree has ten branches unless told otherwise (arg_groups/speculative_hook.py:455)."""
    paged = given.sparse_attention or (given.number("page-size") or 1) > 1
    if given.text("speculative-algorithm") == "NGRAM" and paged and given.text("attention-backend") != "flashinfer":
        message = "NGRAM drafts are a tree, which over pages of several tokens only flashinfer verifies"
        yield ArgumentProblem(name="speculative-algorithm", message=message, hint="`EAGLE`, with an MTP layer")


def _pipeline(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """No speculation over pipeline stages (server_args.py:6651); 0.5.23 takes it under conditions, untried."""
    if (given.number("pp-size") or 1) > 1 and (
        given.has("speculative-algorithm") or not given.has("disable-overlap-schedule")
    ):
        message = "pipeline stages are asserted to run without speculation and with `--disable-overlap-schedule`"
        yield ArgumentProblem(name=_written(given, "pp-size"), message=message, hint="leave `pp-size` at 1")


def _parallel(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """server_args.py:5005-5015; since 0.5.16 sglang may change the option, so that the table cannot say it."""
    ranks = given.number("attn-cp-size") or 1
    if ranks > 1 and given.tp % ranks:
        message = f"`--attn-cp-size` divides tp {given.tp}, found `{ranks:g}`"
        yield ArgumentProblem(name="attn-cp-size", message=message)
    if ranks > 1 and given.has("enable-aiter-allreduce-fusion"):
        message = "`--attn-cp-size` above 1 and `--enable-aiter-allreduce-fusion` exclude each other, as sglang asserts"
        yield ArgumentProblem(name="attn-cp-size", message=message, hint="leave one of the two out")


def _quantized_as_stored(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """What Quark stored is read as Quark's (configs/model_config.py:1370)."""
    named = given.text("quantization")
    if named is not None and given.quantization.startswith("quark") and named != "quark":
        message = f"the checkpoint is {given.quantization}, which sglang does not read as `{named}`"
        yield ArgumentProblem(name="quantization", message=message, hint="leave it out: config.json says it")


def _words(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """What the parser takes as any text, and the start reads more narrowly."""
    for name in ("log-level", "log-level-http"):  # utils/common.py:1371
        if (level := given.text(name)) is not None and level.lower() not in _LEVELS:
            hint = ", ".join(f"`{each}`" for each in _LEVELS)
            yield ArgumentProblem(name=name, message=f"`--{name}` does not take `{level}`", hint=f"one of {hint}")
    address = given.text("dist-init-addr")  # server_args.py:7308
    if address is not None and not re.fullmatch(r".+:\d{1,5}", address):
        yield ArgumentProblem(name="dist-init-addr", message=f"`--dist-init-addr` is HOST:PORT, found `{address}`")
    for name in _BUCKETS:  # prometheus_client refuses others: `Buckets not in sorted order`
        bounds = [_number(word) for word in flag_words(given.flags.get(name, ()))]
        known = [bound for bound in bounds if bound is not None]
        if known != sorted(set(known)):
            yield ArgumentProblem(name=name, message=f"the bounds of `--{name}` ascend", hint="each above the last")


def _serves_alone(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """Half of a disaggregated server answers nothing (server_args.py, `disaggregation_mode`)."""
    if (mode := given.text("disaggregation-mode")) not in {None, "null"}:
        message = f"a server with `--disaggregation-mode {mode}` answers nobody without its other half and a router"
        yield ArgumentProblem(name="disaggregation-mode", message=message, hint="leave it out: a profile is one server")


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
    """What sglang does as it is told, and no server of a profile is for."""
    for name, (value, why) in _SENSELESS.items():
        if given.text(name) == value:
            written = f"--{name} {value}".rstrip()
            yield ArgumentProblem(name=_written(given, name), message=f"`{written}`: {why}", hint="leave it out")


_SENSELESS: Final[Mapping[str, tuple[str, str]]] = {  # "" is a switch
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
    """Backends whose kernels are not compiled for the platform: their import fails after the weights are loaded.

    The parser lists the backends of all platforms (0.5.14, server_args.py:120-260, `ATTENTION_BACKEND_CHOICES` and the
    lists beside it; layers/attention/attention_registry.py imports them).
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


def _one_node(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """The other nodes would be waited for; and server_args.py:6632 divides by their number."""
    for name, only in (("nnodes", 1), ("node-rank", 0)):
        if given.number(name) not in {None, only}:
            message = f"`--{name}` is {only}: a profile is one node's, and none joins it"
            yield ArgumentProblem(name=name, message=message, hint="leave it out")


def _model_overrides(given: ServerArgs) -> Iterator[ArgumentProblem]:
    """The parser takes any text; the start reads a JSON object (server_args.py, `json_model_override_args`)."""
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
    """What is wrong with the name of a model (server_args.py:6671), empty for nothing."""
    return f"`{served_name}` has a colon, which in sglang parts a model from an adapter" if ":" in served_name else ""


def port_problem(port: int, version: str) -> str:
    """What is wrong with a port, empty for nothing: until 0.5.15 a second one is derived from it, and checked."""
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
    _one_node, _model_overrides, _quantized_as_stored, _words, _serves_alone, _senseless, _kernels_of_another_vendor,
    _has_a_draft, _device, _rank_port, _numa_nodes,
)  # fmt: skip
