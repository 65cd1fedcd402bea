"""Is this checkpoint whole? Asked by `stage` after a download and by `up` before every start."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.core.errors import NoWeightsError, WeightsError
from orchestrator.core.paths import Home
from orchestrator.plan import Model, Plan
from orchestrator.weights.facts import require_facts
from orchestrator.weights.inspect import Wanted, inspect
from orchestrator.weights.receipt import CheckpointReceipt, Stamps, read_receipt, stamps, write_receipt

FROM_RECEIPT: Final = ", as in its receipt"  # what is said of a checkpoint that was not read again


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A checkpoint that is whole. Sizes are bytes; `from_receipt` says that nothing had changed since the last time."""

    directory: Path
    revision: str | None
    files: int
    size: int
    shards: int
    tensors: int
    from_receipt: bool

    def __str__(self) -> str:
        known = FROM_RECEIPT if self.from_receipt else ""
        return f"{self.shards} shards, {self.tensors} tensors, {self.size / 1e9:.1f} GB{known}"


def checkpoint_directory(model: Model, home: Home) -> Path:
    """Where a model's checkpoint lies: its own directory, or its place in the tool's home."""
    return Path(model.source.location) if model.source.kind == "directory" else home.models / model.name


def needs_mtp(plan: Plan) -> bool:
    """Whether the server drafts with the checkpoint's own MTP layer."""
    return plan.flag("speculative-algorithm") is not None and plan.flag("speculative-draft-model-path") is None


def verify_checkpoint(directory: Path, model: Model, *, speculative: bool) -> Verified:
    """Verify a checkpoint, fast where its receipt says that nothing has changed since the last time.

    Tokenizer, index and every shard's header are read, not the weights themselves: a byte that was changed inside a
    tensor shows only in the file's time. Raises WeightsError with everything that is wrong, and NoWeightsError where
    there is no checkpoint at all, FactsError where it is not the one that the profile speaks of.
    """
    require_facts(directory, model)
    layer = model.mtp_layer if speculative else None
    receipt = read_receipt(directory)
    if receipt is None or not receipt.is_for(model):
        return examine(directory, model, layer=layer, revision=None, sizes={})
    if layer in {None, receipt.mtp_layer} and _stamps(directory, model) == receipt.files:
        return _verified(directory, receipt, from_receipt=True)
    sizes = {name: size for name, (size, _) in receipt.files.items()}
    return examine(directory, model, layer=layer, revision=receipt.revision, sizes=sizes)


def examine(
    directory: Path, model: Model, *, layer: int | None, revision: str | None, sizes: Mapping[str, int]
) -> Verified:
    """Verify a checkpoint without its receipt, against `sizes` where they are known, and write a new receipt.

    Raises WeightsError with everything that is wrong; the receipt that was there is left as it is then.
    """
    files = _stamps(directory, model)
    require_facts(directory, model)
    found = inspect(directory, Wanted(sizes=sizes, mtp_layer=layer))
    if found.problems:
        raise WeightsError(
            f"the checkpoint of `{model.name}` is incomplete or altered",
            where=str(directory),
            hint=_stage(model),
            problems=found.problems,
        )
    receipt = CheckpointReceipt(
        location=model.source.location,
        revision=revision,
        mtp_layer=layer,
        shards=found.shards,
        tensors=found.tensors,
        files=files,
    )
    write_receipt(directory, receipt)
    return _verified(directory, receipt, from_receipt=False)


def _verified(directory: Path, receipt: CheckpointReceipt, *, from_receipt: bool) -> Verified:
    return Verified(
        directory=directory,
        revision=receipt.revision,
        files=len(receipt.files),
        size=sum(size for size, _ in receipt.files.values()),
        shards=receipt.shards,
        tensors=receipt.tensors,
        from_receipt=from_receipt,
    )


def _stamps(directory: Path, model: Model) -> Stamps:
    try:
        return stamps(directory)
    except OSError as error:
        if not directory.exists():
            message = f"there is no checkpoint of `{model.name}`"
            elsewhere = "correct `model.origin.location`, or put the checkpoint there"
            hint = elsewhere if model.source.kind == "directory" else _stage(model)
            raise NoWeightsError(message, where=str(directory), hint=hint) from error
        message = f"the checkpoint of `{model.name}` cannot be read: {error.strerror}"
        raise WeightsError(message, where=str(error.filename)) from error


def _stage(model: Model) -> str:
    if model.source.kind == "generated":
        return "`deploy up PROFILE` makes it"
    if model.source.kind == "directory":
        return "copy the files again; if the change was meant, `deploy stage PROFILE` takes note of it"
    return "`deploy stage PROFILE` fetches what is missing"
