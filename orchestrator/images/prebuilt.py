"""Prebuilt images, usually from CI: pulled, verified and compared with a plan instead of being built."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.core.console import warn
from orchestrator.core.errors import BuildError, Problem
from orchestrator.images.base import image_id, known_digests, pull
from orchestrator.images.build import verify_in_image
from orchestrator.images.client import DockerCli
from orchestrator.images.patch_drift import require_version
from orchestrator.images.receipt import (
    BASE_DIGEST,
    BASE_NAME,
    ImageReceipt,
    PatchRecord,
    labels,
    parse_receipt,
    read_receipt,
)
from orchestrator.patches.ledger import patch_digest, read_diffs, read_ledger
from orchestrator.patches.schema import AddedFile
from orchestrator.plan.plan import Plan
from orchestrator.render.dockerfile import GATEWAY_LABEL, repository

_APPLIED: Final = "applied"  # a state from the applier, as below
_ACTIVE: Final = frozenset({_APPLIED, "applied at startup"})
_OVERLAY: Final = "config"  # kind of a patch that acts on the checkpoint, not on the image
_NOT_FOUND_HINT: Final = "`docker login` for a private image; `deploy build PROFILE --push` prints the name of an image"
_REBUILD_HINT: Final = "rebuild the image with this version of `deploy`: `deploy build PROFILE`"


@dataclass(frozen=True, kw_only=True)
class PrebuiltImage:
    """A prebuilt image on the Docker host; its containers are started from `reference`."""

    reference: str  # name@sha256:…; the local image id if no registry has the image
    receipt: ImageReceipt
    labels: Mapping[str, str]

    @property
    def inputs(self) -> dict[str, str]:
        """SHA-256 digests of the files that patches added to the image, by input name; inputs of its plan."""
        return {apply.input: record.files[0].after for apply, record in self._added_files()}

    @property
    def tables(self) -> dict[str, str]:
        """Paths in the image of the files that patches added, by input name."""
        return {apply.input: record.files[0].path for apply, record in self._added_files()}

    def _added_files(self) -> Iterator[tuple[AddedFile, PatchRecord]]:
        applies = {patch.id: patch.apply for patch in read_ledger()}
        for record in self.receipt.patches:
            apply = applies.get(record.id)
            if isinstance(apply, AddedFile) and record.state == _APPLIED and record.files:
                yield apply, record


def pull_prebuilt(docker: DockerCli, image: str) -> str:
    """Pull an image if necessary and return its immutable reference, `name@sha256:…`.

    A tag is pulled each time, because it may have moved; if the pull fails, an existing local image is used with a
    warning. An image that was built on the Docker host is referenced by its id. Raises BuildError if the pull fails and
    there is no local image.
    """
    local = _reference(docker, image)
    if local is not None and not tag_may_have_moved(docker, image):
        return local
    try:
        pull(docker, image, "image", hint=_NOT_FOUND_HINT)
    except BuildError as error:
        if local is None:
            raise
        warn(f"{error.message}; using the image of that name on this Docker host", hint=error.hint)
    return _reference(docker, image) or image


def tag_may_have_moved(docker: DockerCli, image: str) -> bool:
    """Return whether the name of a local image is a registry tag, which may have moved to another image."""
    return "@" not in image and image_id(docker, image) != image and bool(known_digests(docker, image))


def _reference(docker: DockerCli, image: str) -> str | None:
    """Return the reference of a local image with its digest, else its id; None if the image does not exist."""
    local_id, name, digest = image_id(docker, image), *image.partition("@")[::2]
    if local_id is None:
        return None
    if digest:
        return f"{repository(name)}@{digest}"
    digests = [digest for digest in known_digests(docker, image) if digest.startswith(f"{repository(image)}@")]
    return digests[0] if digests and local_id != image else local_id


def find_local(docker: DockerCli, image: str) -> PrebuiltImage | None:
    """Return a prebuilt image on the Docker host from its labels, unverified; None if there is no such image."""
    reference = _reference(docker, image)
    if reference is None:
        return None
    return PrebuiltImage(reference=reference, receipt=read_receipt(docker, image), labels=labels(docker, image) or {})


def inspect_prebuilt(docker: DockerCli, reference: str) -> PrebuiltImage:
    """Return a prebuilt image after the applier has verified the receipt inside it.

    Raises BuildError if the image has no receipt or its label differs, PatchError if its content does not match the
    receipt.
    """
    receipt = read_receipt(docker, reference)
    try:
        verified = parse_receipt(verify_in_image(docker, reference))
    except ValueError:
        verified = None
    if verified != receipt:
        raise BuildError(f"the receipt in `{reference}` differs from its label", hint=_REBUILD_HINT)
    return PrebuiltImage(reference=reference, receipt=receipt, labels=labels(docker, reference) or {})


def read_table(docker: DockerCli, image: PrebuiltImage, name: str) -> str | None:
    """Return the content of the file that a patch added for an input name; None if there is none.

    Raises BuildError if the file cannot be read.
    """
    if (path := image.tables.get(name)) is None:
        return None
    result = docker.run_inside(image.reference, "cat", path)
    if not result.ok:
        raise BuildError(f"cannot read `{path}` in `{image.reference}`", details=result.stderr.strip())
    return result.stdout


def require_matches_plan(plan: Plan, image: PrebuiltImage) -> None:
    """Raise BuildError, with one problem per difference, if an image is not equivalent to the plan's own build.

    The plan was made with the inputs of the image, so a tuned table is never a difference; whether the table suits the
    plan is a matter of its coverage.
    """
    problems = tuple(_differences(plan, image))
    if problems:
        raise BuildError(f"`{image.reference}` does not match the plan of `{plan.profile}`", problems=problems)


def _differences(plan: Plan, image: PrebuiltImage) -> Iterator[Problem]:
    try:
        require_version(image.receipt, plan.engine)
    except BuildError as error:
        message = error.message.replace(f"`{plan.engine.image}`", "the image", 1)
        yield Problem(message, f"engine {plan.engine.name}", error.hint)
    yield from _aiter(plan, image)
    yield from _base(plan, image)
    yield from _patches(plan, image)
    yield from _gateway(plan, image)


def _aiter(plan: Plan, image: PrebuiltImage) -> Iterator[Problem]:
    source = image.receipt.sources.get("aiter")
    commit, pinned = source.commit if source else None, plan.engine.aiter_commit
    if commit and pinned and not commit.startswith(pinned):
        yield Problem(
            f"the image contains aiter {commit[:12]}; the engine pins {pinned[:12]}",
            f"engine {plan.engine.name}: aiter_commit",
            f"`--set engine.aiter_commit={commit}`, or an image of that engine",
        )


def _gateway(plan: Plan, image: PrebuiltImage) -> Iterator[Problem]:
    """Compare the gateway, which runs from the image of its replicas."""
    version = image.labels.get(GATEWAY_LABEL)
    if plan.gateway is not None and version != plan.gateway.version:
        content = f"gateway {version}; the plan needs {plan.gateway.version}" if version else "no gateway"
        hint = f"`deploy build PROFILE --set replicas={plan.replicas}` adds it"
        yield Problem(f"the image contains {content}", "replicas", hint)


def _base(plan: Plan, image: PrebuiltImage) -> Iterator[Problem]:
    """Compare the base image by name, and by digest if the engine pins one and the build recorded one."""
    engine, name, digest = plan.engine, image.labels.get(BASE_NAME, ""), image.labels.get(BASE_DIGEST, "")
    location = f"engine {engine.name}: image"
    if name != engine.image:
        message = f"the image was built on `{name or 'an unknown base'}`; the engine names `{engine.image}`"
        yield Problem(message, location, f"`--set engine.image={name}`, or an image built on this base")
    elif engine.image_digest and digest and digest != engine.image_digest:
        message = f"the image was built on {digest[:19]}…; the engine pins {engine.image_digest[:19]}…"
        yield Problem(message, location, f"`--set engine.image_digest={digest}`, or an image built on that base")


def _patches(plan: Plan, image: PrebuiltImage) -> Iterator[Problem]:
    """Check that the image was built with the plan's patches, each in its current version, and with no others."""
    ledger = read_ledger()
    diffs, patches = read_diffs(ledger), {patch.id: patch for patch in ledger}
    records = {record.id: record for record in image.receipt.patches}
    for use in plan.patches:
        message = ""
        if (record := records.pop(use.id, None)) is None:
            message = f"the image was not checked for patch `{use.id}`: {use.reason}"
        elif record.digest != patch_digest(patches[use.id], diffs):
            message = f"the image contains another version of patch `{use.id}`"
        if message:
            yield Problem(message, f"patches/{use.id}", _REBUILD_HINT)
    for name, record in records.items():
        if record.state in _ACTIVE and record.kind != _OVERLAY:
            message = f"the image contains patch `{name}` ({record.state}); the plan does not"
            hint = "use an image built without the patch, or remove it from `skip_patches`"
            yield Problem(message, f"patches/{name}", hint)
