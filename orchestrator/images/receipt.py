"""The receipt of an image: its sources and the state of each patch, recorded by the build in a label."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.core.console import table
from orchestrator.core.errors import BuildError
from orchestrator.core.text import parse_json
from orchestrator.core.validation import type_adapter
from orchestrator.images.client import DockerCli
from orchestrator.plan.plan import PlannedPatch

RECEIPT_LABEL: Final = "deploy.receipt"
_AT_START: Final = "applied at startup"  # the applier's state for a needed patch that changes no file of the image
BASE_LABEL: Final = "deploy.base"  # id of the base image
BASE_NAME: Final = "org.opencontainers.image.base.name"
BASE_DIGEST: Final = "org.opencontainers.image.base.digest"


@dataclass(frozen=True, kw_only=True)
class PatchedFile:
    """A file that a patch wrote. Hashes are SHA-256 in hex; `before` is None for an added file."""

    path: str
    before: str | None
    after: str


@dataclass(frozen=True, kw_only=True)
class PatchRecord:
    """The state of one patch in an image, as the applier reports it: applied, upstream, needed, …"""

    id: str
    title: str
    kind: str
    state: str
    upstream: str
    evidence: tuple[str, ...]
    files: tuple[PatchedFile, ...]
    digest: str = ""  # of the patch's ledger entry; empty in older receipts


@dataclass(frozen=True, kw_only=True)
class SourceRecord:
    """The sources of one package in an image; `version` and `commit` are None if unknown."""

    root: str
    version: str | None
    commit: str | None


@dataclass(frozen=True, kw_only=True)
class ImageReceipt:
    """The receipt of an image."""

    python: str
    sources: Mapping[str, SourceRecord | None]  # by package; None if the image lacks it
    patches: tuple[PatchRecord, ...]

    def state(self, patch: str) -> str | None:
        """Return the state of a patch; None if the image was built without it."""
        return next((record.state for record in self.patches if record.id == patch), None)

    def handled_at_build(self, patches: Iterable[PlannedPatch]) -> frozenset[str]:
        """Return the ids of patches that do nothing at startup: they changed the sources, or are not needed."""
        return frozenset(patch.id for patch in patches if self.state(patch.id) != _AT_START)

    def to_text(self) -> str:
        """Format the receipt as tables: the sources, then one row per patch."""
        rows = [
            [name, source.version or "unknown", (source.commit or "unknown")[:12], source.root]
            if source
            else [name, "not in this image", "", ""]
            for name, source in sorted(self.sources.items())
        ]
        sources = table(["sources", "version", "commit", "path"], rows)
        patches = [[record.id, record.state, record.upstream] for record in self.patches]
        return sources + "\n\n" + table(["patch", "state", "upstream"], patches) if patches else sources


def parse_receipt(text: str | bytes) -> ImageReceipt:
    """Parse a receipt as images/apply_patches.py writes it; it is untrusted. Raises ValueError if it is malformed."""
    receipt: ImageReceipt = type_adapter(ImageReceipt).validate_json(text, strict=True)
    return receipt


def labels(docker: DockerCli, image: str) -> dict[str, str] | None:
    """Return the labels of an image on the Docker host; None if the image does not exist."""
    result = docker.run("image", "inspect", "--format", "{{json .Config.Labels}}", image)
    return (parse_json(result.stdout) or {}) if result.ok else None


def read_receipt(docker: DockerCli, image: str) -> ImageReceipt:
    """Read the receipt of an image on the Docker host. Raises BuildError if the image or its receipt is missing."""
    image_labels = labels(docker, image)
    if image_labels is None:
        raise BuildError(f"no image `{image}` found on this Docker host", hint=f"`docker pull {image}`")
    return require_receipt(image_labels, image)


def require_receipt(labels: Mapping[str, str], image: str) -> ImageReceipt:
    """Return the receipt in the labels of an image. Raises BuildError if it is missing or malformed."""
    if (receipt := receipt_in(labels, image)) is None:
        raise BuildError(f"`{image}` has no receipt", hint="`deploy build PROFILE` builds an image with a receipt")
    return receipt


def receipt_in(labels: Mapping[str, str], image: str) -> ImageReceipt | None:
    """Return the receipt in the labels of an image; None if it is missing. Raises BuildError if it is malformed."""
    if RECEIPT_LABEL not in labels:
        return None
    try:
        return parse_receipt(labels[RECEIPT_LABEL])
    except ValueError as error:
        hint = f"rebuild the image with `--no-cache`; `docker image inspect {image}` shows the label `{RECEIPT_LABEL}`"
        raise BuildError(
            f"the receipt in `{image}` is from another version of `deploy`, or damaged", hint=hint
        ) from error
