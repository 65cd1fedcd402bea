"""The receipt of an image: which patches are in it and why, as its build wrote it down and as its labels carry it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from pydantic import TypeAdapter

from orchestrator.core.console import table
from orchestrator.core.errors import BuildError
from orchestrator.core.text import parse_json
from orchestrator.images.client import DockerCli
from orchestrator.plan.plan import PlannedPatch

RECEIPT_LABEL: Final = "deploy.receipt"
_AT_START: Final = "acts at start"  # the applier's word for what is needed, and not a matter of the image
BASE_LABEL: Final = "deploy.base"  # id of the base image that was built on
BASE_NAME: Final = "org.opencontainers.image.base.name"
BASE_DIGEST: Final = "org.opencontainers.image.base.digest"


@dataclass(frozen=True, kw_only=True)
class PatchedFile:
    """One file a patch wrote; hashes are sha256 in hex, `before` is None for a file that was added."""

    path: str
    before: str | None
    after: str


@dataclass(frozen=True, kw_only=True)
class PatchRecord:
    """What became of one patch. `state` is one of the applier's words: applied, present upstream, needed, …"""

    id: str
    title: str
    kind: str
    state: str
    upstream: str
    evidence: tuple[str, ...]
    files: tuple[PatchedFile, ...]
    digest: str = ""  # of the ledger's entry; empty in a receipt that is older than this field


@dataclass(frozen=True, kw_only=True)
class SourceRecord:
    """The sources as found in the image: `version` and `commit` are None where they do not say."""

    root: str
    version: str | None
    commit: str | None


@dataclass(frozen=True, kw_only=True)
class ImageReceipt:
    """What an image holds."""

    python: str
    sources: tuple[tuple[str, SourceRecord | None], ...]  # None: no such sources in the image
    patches: tuple[PatchRecord, ...]

    def state(self, patch: str) -> str | None:
        """The state of one patch, None for a patch the image was not built with."""
        return next((record.state for record in self.patches if record.id == patch), None)

    def not_at_start(self, patches: Iterable[PlannedPatch]) -> frozenset[str]:
        """Those of a plan's patches that have nothing to do at a start: they act in the sources, or are not needed."""
        return frozenset(patch.id for patch in patches if self.state(patch.id) != _AT_START)

    def to_text(self) -> str:
        """As tables: the sources, then one line a patch."""
        rows = [
            [name, source.version or "unknown", (source.commit or "unknown")[:12], source.root]
            if source
            else [name, "not in this image", "", ""]
            for name, source in self.sources
        ]
        shown = table(["sources", "version", "commit", "place"], rows)
        patches = [[record.id, record.state, record.upstream] for record in self.patches]
        return shown + "\n\n" + table(["patch", "state", "upstream"], patches) if patches else shown


@dataclass(frozen=True, kw_only=True)
class _Written:
    """The receipt as images/apply_patches.py writes it."""

    python: str
    sources: dict[str, SourceRecord | None]
    patches: tuple[PatchRecord, ...]


@cache
def _form() -> TypeAdapter[_Written]:
    """Made when the first receipt is read."""
    return TypeAdapter(_Written)


def parse_receipt(text: str | bytes) -> ImageReceipt:
    """Parse a receipt: anybody may have written it. Raises ValueError."""
    written = _form().validate_json(text, strict=True)
    return ImageReceipt(python=written.python, sources=tuple(sorted(written.sources.items())), patches=written.patches)


def labels(docker: DockerCli, image: str) -> dict[str, str] | None:
    """The labels of an image on the docker host, None where there is no such image."""
    found = docker.run("image", "inspect", "--format", "{{json .Config.Labels}}", image)
    return (parse_json(found.stdout) or {}) if found.ok else None


def read_receipt(docker: DockerCli, image: str) -> ImageReceipt:
    """The receipt in an image's labels. Raises BuildError where there is no such image, or it holds none."""
    found = labels(docker, image)
    if found is None:
        raise BuildError(f"there is no image `{image}` on this docker host", hint=f"`docker pull {image}`")
    return require_receipt(found, image)


def require_receipt(labels: Mapping[str, str], image: str) -> ImageReceipt:
    """The receipt among the labels of an image. Raises BuildError where there is none, or it is damaged."""
    if (receipt := receipt_in(labels, image)) is None:
        raise BuildError(f"`{image}` holds no receipt", hint="only images that `deploy build` made hold one")
    return receipt


def receipt_in(labels: Mapping[str, str], image: str) -> ImageReceipt | None:
    """The receipt among the labels of an image, None where there is none. Raises BuildError for one that is damaged."""
    if RECEIPT_LABEL not in labels:
        return None
    try:
        return parse_receipt(labels[RECEIPT_LABEL])
    except ValueError as error:
        hint = f"build it anew with `--no-cache`; `docker image inspect {image}` shows the label `{RECEIPT_LABEL}`"
        raise BuildError(
            f"the receipt in `{image}` is of another version of this tool, or damaged", hint=hint
        ) from error
