"""Is this checkpoint whole? Asked by `stage` after a download and by `up` before every start."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.specifiers import SpecifierSet

from orchestrator.checkpoints.checkpoint import Checkpoint
from orchestrator.checkpoints.config import CONFIG
from orchestrator.checkpoints.config_check import Mismatch, find_mismatches
from orchestrator.checkpoints.describe import contradictions
from orchestrator.checkpoints.files import file_stamps
from orchestrator.checkpoints.integrity import IntegrityReport, IntegritySpec, check_integrity
from orchestrator.checkpoints.profile_match import require_profile_match
from orchestrator.checkpoints.receipt import CheckpointReceipt, Stamps, read_receipt, write_receipt
from orchestrator.checkpoints.summary import CheckpointSummary, local_summary, summarize
from orchestrator.core.errors import CheckpointError, CheckpointMismatchError, CheckpointNotFoundError, Problem
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import CheckpointFile, CommitHash, FileName
from orchestrator.engine.architectures import ARCHITECTURES
from orchestrator.plan.plan import Model, Plan

FROM_RECEIPT: Final = ", as in its receipt"  # what is said of a checkpoint that was not read again
_SIZE_TOLERANCE: Final = 0.02  # of a model's `weights_size`, which a person may have rounded


@dataclass(frozen=True, kw_only=True)
class VerifiedCheckpoint:
    """A checkpoint that is whole. Sizes are bytes; `from_receipt` says that nothing had changed since the last time.

    `differences` are those between its tensors, its config and the profile that do not stop a server.
    """

    directory: Path
    revision: CommitHash | None
    files: int
    size: int
    shards: int
    tensors: int
    from_receipt: bool
    mismatches: tuple[Mismatch, ...]

    def __str__(self) -> str:
        known = FROM_RECEIPT if self.from_receipt else ""
        return f"{self.shards} shards, {self.tensors} tensors, {self.size / 1e9:.1f} GB{known}"


def checkpoint_directory(model: Model, home: Home) -> Path:
    """Where a model's checkpoint lies: its own directory, or its place in the tool's home."""
    return Path(model.checkpoint.path) if model.checkpoint.source == "local" else home.models / FileName(model.name)


def needs_mtp(plan: Plan) -> bool:
    """Whether the server drafts with the checkpoint's own MTP layer."""
    return plan.serving.drafts is not None and plan.serving.drafts.by_checkpoint


def verify_checkpoint(directory: Path, model: Model, *, speculative: bool, sglang: str = "") -> VerifiedCheckpoint:
    """Verify a checkpoint, fast where its receipt says that nothing has changed since the last time.

    Tokenizer, index and every shard's header are read, not the weights themselves: a byte that was changed inside a
    tensor shows only in the file's time. Raises WeightsError with everything that is wrong, and NoWeightsError where
    there is no checkpoint at all, FactsError where it is not the one that the profile speaks of, or its tensors are not
    what its config says and this version of `sglang` would not load them, or load them wrongly.
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
    asked = VerifyOptions(layer=layer, revision=receipt.revision, sizes=sizes, sglang=sglang)
    return verify_fresh(directory, model, asked)


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """What a checkpoint is held against: the layer that drafts, sizes where they are known, a version of sglang."""

    layer: int | None
    revision: CommitHash | None
    sizes: Mapping[CheckpointFile, int]
    sglang: str = ""  # empty where it does not matter yet
    allow_mismatch: bool = False  # take it although its tensors differ from its config


def verify_fresh(directory: Path, model: Model, options: VerifyOptions) -> VerifiedCheckpoint:
    """Verify a checkpoint without its receipt, and write a new one.

    Raises WeightsError with everything that is wrong, FactsError where its tensors are not what its config says; the
    receipt that was there is left as it is then.
    """
    files = _stamps(directory, model)
    require_profile_match(directory, model)
    found, differ = _inspect(directory, options.sizes, options.layer)
    if found.problems:
        raise CheckpointError(
            f"the checkpoint of `{model.name}` is incomplete or altered",
            where=str(directory),
            hint=_repair_hint(model),
            problems=found.problems,
        )
    receipt = CheckpointReceipt(
        location=model.checkpoint.path,
        revision=options.revision,
        mtp_layer=options.layer,
        shards=found.shards,
        tensors=found.tensors,
        files=files,
        mismatches=differ,
        allow_mismatch=options.allow_mismatch,
    )
    _require_loadable(directory, model, receipt, options.sglang)
    write_receipt(directory, receipt)
    return _verified(directory, model, receipt, from_receipt=False)


def verify_created(directory: Path, target: Path, *, layer: int | None) -> CheckpointReceipt:
    """Verify a checkpoint that was made here, before it becomes `target`; the receipt is for a model of that directory.

    Raises WeightsError with everything that is wrong, FactsError where no sglang would load what it holds, or rightly.
    """
    found, differ = _inspect(directory, {}, layer)
    if found.problems:
        raise CheckpointError("what was made is not whole", where=str(directory), problems=found.problems)
    if fatal := [each for each in differ if is_fatal(each, "")]:
        problems = tuple(Problem(each.message, str(directory), each.hint) for each in fatal)
        raise CheckpointMismatchError("the tensors that were made are not what their config says", problems=problems)
    return CheckpointReceipt(
        location=str(target),
        revision=None,
        mtp_layer=layer,
        shards=found.shards,
        tensors=found.tensors,
        files=file_stamps(directory),
        mismatches=differ,
        allow_mismatch=False,
    )


def _inspect(
    directory: Path, sizes: Mapping[CheckpointFile, int], layer: int | None
) -> tuple[IntegrityReport, tuple[Mismatch, ...]]:
    """What is wrong with a checkpoint's files, and in what its tensors differ from its config."""
    checkpoint = Checkpoint.local(directory)
    found = check_integrity(checkpoint, IntegritySpec(sizes=sizes, mtp_layer=layer))
    return found, () if found.problems else compare_with_config(summarize(checkpoint), drafts=layer is not None)


def compare_with_config(summary: CheckpointSummary, *, drafts: bool) -> tuple[Mismatch, ...]:
    """Everything in which the tensors of an outline, with every header, differ from its config.

    What a config and the rows of a tensor contradict each other in is fatal where the architecture is known.
    """
    summary.layers.clear()
    summary.count_layers(summary.tensors)
    sure = any(name in ARCHITECTURES for name in summary.config.architectures)
    against = (Mismatch(message=problem.message, fatal=sure) for problem in contradictions(summary))
    return (*against, *find_mismatches(summary, drafts=drafts))


def known_mismatches(directory: Path) -> tuple[Mismatch, ...]:
    """What is known of a checkpoint by its receipt, else by its headers; nothing where its weights are not all here."""
    receipt = read_receipt(directory)
    with suppress(OSError):
        if receipt is not None and file_stamps(directory) == receipt.files:
            return receipt.mismatches
    try:
        outline = local_summary(directory)
    except CheckpointError:
        return ()
    return compare_with_config(outline, drafts=bool(outline.config.mtp_layers))


def _require_loadable(directory: Path, model: Model, receipt: CheckpointReceipt, sglang: str) -> None:
    """Raise FactsError with every difference that is fatal to this version, unless they are accepted."""
    fatal = [difference for difference in receipt.mismatches if is_fatal(difference, sglang)]
    if fatal and not receipt.allow_mismatch:
        where = str(directory / CONFIG)
        raise CheckpointMismatchError(
            f"the tensors of `{model.name}` are not what its config says",
            hint="to serve it all the same: `deploy stage PROFILE --allow-mismatch`",
            problems=tuple(Problem(difference.message, where, difference.hint) for difference in fatal),
        )


def is_fatal(mismatch: Mismatch, sglang: str) -> bool:
    """Whether a difference is fatal to this version of sglang; one that is to some is not to an empty version."""
    if not mismatch.sglang:
        return mismatch.fatal
    return mismatch.fatal and bool(sglang) and SpecifierSet(mismatch.sglang).contains(sglang, prereleases=True)


def _size_differs(model: Model, files: Stamps) -> Iterator[Mismatch]:
    """The bytes of its weights against the profile's, by which it is reckoned what fits."""
    found = sum(size for name, (size, _) in files.items() if name.endswith(".safetensors"))
    if abs(found - model.weight_bytes) > _SIZE_TOLERANCE * found:
        yield Mismatch(
            message=f"`model.weights_size` is {model.weight_bytes / 1e9:.1f} GB, the checkpoint {found / 1e9:.1f} GB",
            hint=f"`--set model.weights_size={found}`: capacity is reckoned with it",
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
        mismatches=(*_size_differs(model, receipt.files), *receipt.mismatches),
    )


def _stamps(directory: Path, model: Model) -> Stamps:
    try:
        return file_stamps(directory)
    except OSError as error:
        if not directory.exists():
            message = f"there is no checkpoint of `{model.name}`"
            elsewhere = "correct `model.checkpoint.path`, or put the checkpoint there"
            hint = elsewhere if model.checkpoint.source == "local" else _repair_hint(model)
            raise CheckpointNotFoundError(message, where=str(directory), hint=hint) from error
        message = f"the checkpoint of `{model.name}` cannot be read: {error.strerror}"
        raise CheckpointError(message, where=str(error.filename)) from error


def _repair_hint(model: Model) -> str:
    if model.checkpoint.source == "generated":
        return "`deploy up PROFILE` makes it"
    if model.checkpoint.source == "local":
        return "copy the files again; if the change was meant, `deploy stage PROFILE` takes note of it"
    return "`deploy stage PROFILE` fetches what is missing"
