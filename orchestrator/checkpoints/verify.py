"""Verification of a checkpoint, for `stage` after a download and for `up` before every start."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.checkpoint import Checkpoint
from orchestrator.checkpoints.config import CONFIG
from orchestrator.checkpoints.config_check import find_mismatches
from orchestrator.checkpoints.describe import contradictions
from orchestrator.checkpoints.files import file_stamps
from orchestrator.checkpoints.mismatch import Mismatch, require_loadable
from orchestrator.checkpoints.profile_match import require_profile_match
from orchestrator.checkpoints.receipt import CheckpointReceipt, Stamps, read_receipt, write_receipt
from orchestrator.checkpoints.summary import CheckpointSummary, local_summary, missing_tensors, summarize
from orchestrator.core.errors import CheckpointError, CheckpointNotFoundError, Problem
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import CheckpointFile, CommitHash, FileName
from orchestrator.core.text import gb, parse_json
from orchestrator.engine.architectures import ARCHITECTURES
from orchestrator.plan.plan import Model, Plan

FROM_RECEIPT: Final = ", as in its receipt"  # suffix for a checkpoint verified by its receipt
_TOKENIZERS: Final = tuple(
    tuple(map(CheckpointFile, names))
    for names in (("tokenizer.json",), ("tokenizer.model",), ("tiktoken.model",), ("vocab.json", "merges.txt"))
)
_SIZE_TOLERANCE: Final = 0.02  # share of a model's `weights_size`, which may be rounded


@dataclass(frozen=True, kw_only=True)
class VerifiedCheckpoint:
    """A verified checkpoint. Sizes are bytes; `from_receipt` means unchanged since the last verification.

    `mismatches` between its tensors, its config and the profile do not stop a server.
    """

    directory: Path
    revision: str | None
    files: int
    size: int
    shards: int
    tensors: int
    from_receipt: bool
    mismatches: tuple[Mismatch, ...]

    def __str__(self) -> str:
        suffix = FROM_RECEIPT if self.from_receipt else ""
        return f"{self.shards} shard{'s' * (self.shards != 1)}, {self.tensors} tensors, {gb(self.size)}{suffix}"


def checkpoint_directory(model: Model, home: Home) -> Path:
    """Return the directory of a model's checkpoint: its own, or a directory in `deploy`'s home."""
    return Path(model.checkpoint.path) if model.checkpoint.source == "local" else home.models / FileName(model.name)


def needs_mtp(plan: Plan) -> bool:
    """Return whether the server uses the checkpoint's MTP layer for speculative decoding."""
    return plan.serving.drafts is not None and plan.serving.drafts.by_checkpoint


def verify_checkpoint(directory: Path, model: Model, *, speculative: bool, sglang: str = "") -> VerifiedCheckpoint:
    """Verify a checkpoint; trust its receipt if no file has changed.

    Reads the tokenizer, the index and every shard's header, but no tensors: only the mtime shows a modified tensor.
    Raises CheckpointError with all problems, CheckpointNotFoundError if it is missing, CheckpointMismatchError if it
    does not match the profile, or if a mismatch of tensors and config is fatal in this version of `sglang`.
    """
    require_profile_match(directory, model)
    layer = model.mtp_layer if speculative else None
    receipt = read_receipt(directory)
    if receipt is None or not receipt.is_for(model):
        return verify_fresh(directory, model, VerifyOptions(layer=layer, revision=None, sizes={}, sglang=sglang))
    if layer in {None, receipt.mtp_layer} and _stamps(directory, model) == receipt.files:
        _require_loadable(directory, model, receipt, sglang)
        return _verified(directory, model, receipt, from_receipt=True)
    sizes = {CheckpointFile(name): size for name, (size, _) in receipt.files.items()}
    options = VerifyOptions(layer=layer, revision=receipt.revision, sizes=sizes, sglang=sglang)
    return verify_fresh(directory, model, options)


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Requirements for a verification: the MTP layer, known sizes in bytes, the version of sglang."""

    layer: int | None
    revision: CommitHash | None
    sizes: Mapping[CheckpointFile, int]
    sglang: str = ""  # empty: unknown
    allow_mismatch: bool = False  # accept tensors that do not match the config


def verify_fresh(directory: Path, model: Model, options: VerifyOptions) -> VerifiedCheckpoint:
    """Verify a checkpoint without its receipt, and write a new receipt.

    Raises CheckpointError with all problems, CheckpointMismatchError if its tensors do not match its config.
    """
    files = _stamps(directory, model)
    require_profile_match(directory, model)
    receipt, problems = _inspect(directory, options, location=model.checkpoint.path, files=files)
    if problems:
        message = f"the checkpoint of `{model.name}` is incomplete or modified"
        raise CheckpointError(message, location=str(directory), hint=_repair_hint(model), problems=problems)
    _require_loadable(directory, model, receipt, options.sglang)
    write_receipt(directory, receipt)
    return _verified(directory, model, receipt, from_receipt=False)


def verify_created(directory: Path, target: Path, *, layer: int | None) -> CheckpointReceipt:
    """Verify a new checkpoint before it is moved to `target`; return the receipt for that directory.

    Raises CheckpointError with all problems, CheckpointMismatchError if no version of sglang loads it correctly.
    """
    options = VerifyOptions(layer=layer, revision=None, sizes={})
    receipt, problems = _inspect(directory, options, location=str(target), files=file_stamps(directory))
    if problems:
        raise CheckpointError("the created checkpoint is incomplete", location=str(directory), problems=problems)
    require_loadable(receipt.mismatches, "the created tensors do not match their config", location=str(directory))
    return receipt


def _inspect(
    directory: Path, options: VerifyOptions, *, location: str, files: Stamps
) -> tuple[CheckpointReceipt, tuple[Problem, ...]]:
    """Check the files of a checkpoint and, if they are complete, its tensors; return its receipt and problems."""
    checkpoint = Checkpoint.local(directory)
    tensors, problems = _check_files(checkpoint, options)
    mismatches: tuple[Mismatch, ...] = ()
    if not problems:
        mismatches = compare_with_config(summarize(checkpoint), drafts=options.layer is not None)
    receipt = CheckpointReceipt(
        location=location,
        revision=options.revision,
        mtp_layer=options.layer,
        shards=len(checkpoint.index.shards),
        tensors=tensors,
        files=files,
        mismatches=mismatches,
        allow_mismatch=options.allow_mismatch,
    )
    return receipt, problems


def _check_files(checkpoint: Checkpoint, options: VerifyOptions) -> tuple[int, tuple[Problem, ...]]:
    """Check config, tokenizer, index and every header, and that a required MTP layer is present.

    Return the number of tensors and the problems, including unreadable files.
    """
    problems = list(_sizes(checkpoint, options.sizes))
    reported = {problem.location for problem in problems}  # one problem per file
    file_problems = [*_readable(checkpoint, CONFIG), *_tokenizer(checkpoint)]
    problems += [problem for problem in file_problems if problem.location not in reported]
    index, layer = checkpoint.index, options.layer
    problems += index.problems
    has_mtp = any(_is_of_mtp(name, layer) for names in index.shards.values() for name in names)
    tensors = 0
    for shard, names in sorted(index.shards.items()):
        try:
            header = checkpoint.header(shard)
        except CheckpointError as error:
            problems += [problem for problem in error.problems_or_self() if problem.location not in reported]
            continue
        tensors += len(header)
        has_mtp = has_mtp or any(_is_of_mtp(name, layer) for name in header)
        problems += missing_tensors(checkpoint, shard, names)
    if layer is not None and index.shards and not has_mtp:
        message = f"no tensor of the MTP layer (`model.layers.{layer}.`) found, which speculative decoding needs"
        hint = "use a revision of the checkpoint with the MTP layer, or serve without the `speculative-…` flags"
        problems.append(Problem(message, checkpoint.location, hint))
    return tensors, tuple(problems)


def _is_of_mtp(name: str, layer: int | None) -> bool:
    """Return whether a tensor belongs to the MTP layer; DeepSeek-V4 and Qwen3.5 name it `mtp`, not by index."""
    return name.startswith("mtp.") or f".layers.{layer}." in name


def _sizes(checkpoint: Checkpoint, sizes: Mapping[CheckpointFile, int]) -> Iterator[Problem]:
    for name, size in sorted(sizes.items()):
        location, actual = f"{checkpoint.location}/{name}", checkpoint.files.sizes.get(name)
        if actual is None:
            yield Problem(f"`{name}` is missing ({size} bytes)", location)
        elif actual != size:
            yield Problem(f"`{name}` has {actual} bytes instead of {size}", location)


def _tokenizer(checkpoint: Checkpoint) -> Iterator[Problem]:
    sizes = checkpoint.files.sizes
    tokenizer = next((names for names in _TOKENIZERS if all(name in sizes for name in names)), ())
    if not tokenizer:
        choices = ", ".join(" with ".join(f"`{name}`" for name in names) for names in _TOKENIZERS)
        yield Problem(f"no tokenizer found: none of {choices}", checkpoint.location)
    for name in tokenizer:
        if name.endswith(".json"):
            yield from _readable(checkpoint, name)
        elif sizes[name] == 0:
            yield Problem(f"`{name}` is empty", f"{checkpoint.location}/{name}")


def _readable(checkpoint: Checkpoint, name: CheckpointFile) -> Iterator[Problem]:
    location = f"{checkpoint.location}/{name}"
    if name not in checkpoint.files.sizes:
        yield Problem(f"`{name}` is missing", location)
        return
    try:
        parse_json(checkpoint.read(name))
    except ValueError:
        yield Problem(f"`{name}` is not JSON: the file is truncated or modified", location)
    except CheckpointError as error:
        yield from error.problems_or_self()


def compare_with_config(summary: CheckpointSummary, *, drafts: bool) -> tuple[Mismatch, ...]:
    """Find all mismatches between tensors and config in a summary with every header.

    A wrong number of rows is fatal if the architecture is known.
    """
    summary.layers.clear()
    summary.count_layers(summary.tensors)
    is_known = any(name in ARCHITECTURES for name in summary.config.architectures)
    rows = (Mismatch(message=problem.message, fatal=is_known) for problem in contradictions(summary))
    return (*rows, *find_mismatches(summary, drafts=drafts))


def known_mismatches(directory: Path) -> tuple[Mismatch, ...]:
    """Return the mismatches of a checkpoint from its receipt, else from its headers; empty if incomplete."""
    receipt = read_receipt(directory)
    with suppress(OSError):
        if receipt is not None and file_stamps(directory) == receipt.files:
            return receipt.mismatches
    try:
        summary = local_summary(directory)
    except CheckpointError:
        return ()
    return compare_with_config(summary, drafts=bool(summary.config.mtp_layers))


def _require_loadable(directory: Path, model: Model, receipt: CheckpointReceipt, sglang: str) -> None:
    if not receipt.allow_mismatch:
        require_loadable(
            receipt.mismatches,
            f"the tensors of `{model.name}` do not match its `{CONFIG}`",
            location=str(directory / CONFIG),
            sglang=sglang,
            hint="to serve it anyway: `deploy stage PROFILE --allow-mismatch`",
        )


def _wrong_size(model: Model, files: Stamps) -> Iterator[Mismatch]:
    """Compare the bytes of the weights with the profile's, which the capacity estimate uses."""
    total = sum(size for name, (size, _) in files.items() if name.endswith(".safetensors"))
    if abs(total - model.weight_bytes) > _SIZE_TOLERANCE * total:
        yield Mismatch(
            message=f"`model.weights_size` is {gb(model.weight_bytes)}, the checkpoint {gb(total)}",
            hint=f"`--set model.weights_size={total}`: the capacity estimate uses it",
        )


def _verified(directory: Path, model: Model, receipt: CheckpointReceipt, *, from_receipt: bool) -> VerifiedCheckpoint:
    return VerifiedCheckpoint(
        directory=directory,
        revision=receipt.revision,
        files=len(receipt.files),
        size=sum(size for size, _ in receipt.files.values()),
        shards=receipt.shards,
        tensors=receipt.tensors,
        from_receipt=from_receipt,
        mismatches=(*_wrong_size(model, receipt.files), *receipt.mismatches),
    )


def _stamps(directory: Path, model: Model) -> Stamps:
    try:
        return file_stamps(directory)
    except OSError as error:
        if not directory.exists():
            message = f"no checkpoint of `{model.name}` found"
            hint = _repair_hint(model)
            if model.checkpoint.source == "local":
                hint = "correct `model.checkpoint.path`, or copy the checkpoint to this directory"
                if model.quantization.startswith("quark"):
                    hint += f"; `deploy quantize SOURCE {directory} --recipe RECIPE` makes one"
            raise CheckpointNotFoundError(message, location=str(directory), hint=hint) from error
        message = f"cannot read the checkpoint of `{model.name}`: {error.strerror}"
        raise CheckpointError(message, location=str(error.filename)) from error


def _repair_hint(model: Model) -> str:
    if model.checkpoint.source == "generated":
        return "`deploy up PROFILE` makes it"
    if model.checkpoint.source == "local":
        return "copy the files again; after an intended change run `deploy stage PROFILE`"
    return "`deploy stage PROFILE` downloads missing files"
