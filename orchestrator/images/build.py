"""The build of a plan's image: apply patches, verify them, label the image with its receipt; and the push.

An image takes two builds. The first build applies the patches. Then the applier verifies its own receipt in a container
of that image. The second build only adds the receipt as a label, because a build step cannot set a computed label.
"""

import io
import json
import re
import tarfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from orchestrator.core.console import info
from orchestrator.core.errors import BuildError, PatchError
from orchestrator.core.streams import ignore_sigpipe
from orchestrator.images.base import ensure_base, image_id, known_digests
from orchestrator.images.client import DockerCli
from orchestrator.images.config import ImageConfig, docker_config
from orchestrator.images.patch_drift import require_version
from orchestrator.images.receipt import (
    BASE_DIGEST,
    BASE_LABEL,
    RECEIPT_LABEL,
    ImageReceipt,
    labels,
    parse_receipt,
    read_receipt,
)
from orchestrator.plan.plan import Engine, Plan
from orchestrator.render.artifacts import Artifacts, BuildContext, RenderedFile
from orchestrator.render.dockerfile import repository

# BuildKit: `#7 [3/4] RUN …`, output as `#7 0.213 …`; classic builder: `Step 3/7 : RUN …`, output unprefixed.
_STEP: Final = re.compile(r"^(?:#\d+ \[\s*(?P<number>\d+/\d+)\]|Step (?P<step>\d+/\d+) :) (?P<instruction>.*)$")
_TIMESTAMP: Final = re.compile(r"^#\d+ \d+\.\d+ ")
_END: Final = re.compile(r"^#\d+ ERROR|^The command |^-{3,}$")


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The options of a build. `secrets` maps ids to files that a build step can mount; no layer stores them."""

    tag: str
    no_cache: bool
    network: str | None  # docker network of RUN steps
    secrets: Mapping[str, Path]


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """An existing image: built by this call, or found on the Docker host."""

    tag: str
    image_id: str
    receipt: ImageReceipt
    built: bool
    builder: str
    seconds: float
    config: ImageConfig | None = None  # as docker reports it


def image_tag(plan: Plan, build: BuildContext) -> str:
    """Return the tag of a plan's image. The tag contains a digest of the build context, to recognize a built image."""
    return f"deploy/{plan.profile}:{build.digest[:12]}"


def build_image(
    docker: DockerCli,
    artifacts: Artifacts,
    *,
    secrets: Mapping[str, Path] | None = None,
    network: str | None = None,
    no_cache: bool = False,
) -> BuiltImage:
    """Return the image of rendered artifacts, and build it if necessary.

    Raises BuildError if the plan has no image or the build fails, PatchError if a patch does not fit the sources.
    """
    plan, build = artifacts.plan, artifacts.build
    if build is None:
        raise BuildError(f"the runtime of `{plan.profile}` uses no image", hint="`--set runtime=docker`")
    options = BuildOptions(tag=image_tag(plan, build), no_cache=no_cache, network=network, secrets=secrets or {})
    return ensure_image(docker, plan.engine, build, options)


def ensure_image(docker: DockerCli, engine: Engine, context: BuildContext, options: BuildOptions) -> BuiltImage:
    """Return the image `options.tag`; if it does not exist, build it from `context`, verify it and label it.

    A failed build leaves no image behind. Raises BuildError if the build fails or the existing image has another base,
    PatchError if a patch neither applies nor is present.
    """
    start = time.monotonic()
    base = ensure_base(docker, engine)
    existing = labels(docker, options.tag)
    build = existing is None or RECEIPT_LABEL not in existing or options.no_cache
    if existing is not None and not build and existing.get(BASE_LABEL) != base:
        raise BuildError(
            f"`{options.tag}` was built on another base image: the tag `{engine.image}` has moved",
            hint="pin it (`image_digest` in the engine's file), or rebuild on the new image with `--no-cache`",
        )
    if build:
        replaced = image_id(docker, options.tag)
        _build(docker, engine, context, options, base=base)
        if replaced is not None:
            docker.run("image", "rm", replaced)  # fails while the image is in use
    seconds = round(time.monotonic() - start, 3)
    return replace(existing_image(docker, options.tag), built=build, seconds=seconds)


def existing_image(docker: DockerCli, reference: str) -> BuiltImage:
    """Return an image on the Docker host with its receipt. Raises BuildError if the image or its receipt is missing."""
    return BuiltImage(
        tag=reference,
        image_id=image_id(docker, reference) or "",
        receipt=read_receipt(docker, reference),
        built=False,
        builder=docker.builder,
        seconds=0.0,
        config=docker_config(docker, reference),
    )


def add_layer(docker: DockerCli, image: BuiltImage, content: bytes, *, tag: str, label: str) -> BuiltImage:
    """Add a layer to an image, from a tar with paths below `/`, unless the tag exists; return the new image.

    The new image inherits all labels, such as the receipt, and gets `label`. Raises BuildError.
    """
    if labels(docker, tag) is None:
        file_name = "layer.tar"
        files = {"Dockerfile": f"FROM {image.tag}\nADD {file_name} /\n".encode(), file_name: content}
        context = BuildContext(
            files=tuple(RenderedFile(path=path, content=file, executable=False) for path, file in files.items())
        )
        _run_build(docker, ["build", "--tag", tag, "--label", label, "-"], archive(context), image=image.tag)
    return existing_image(docker, tag)


def tag_image(docker: DockerCli, image: str, reference: str) -> None:
    """Tag `image` with a second name. Raises BuildError if docker rejects the name."""
    ignore_sigpipe()
    result = docker.run("tag", image, reference)
    if not result.ok:
        raise BuildError(f"cannot tag `{image}` as `{reference}`", details=result.stderr.strip())


def push_image(docker: DockerCli, reference: str) -> str:
    """Push an image and return its reference with the digest, `registry/name@sha256:…`.

    Raises BuildError if the push fails.
    """
    code, log = docker.follow(["push", reference], str)
    digest = next((match[1] for line in log if (match := re.search(r"digest: (sha256:[0-9a-f]{64})", line))), None)
    if code != 0 or digest is None:
        raise BuildError(f"cannot push `{reference}`", details="\n".join(log[-3:]), hint="log in with `docker login`")
    return f"{repository(reference)}@{digest}"


def build_arguments(docker: DockerCli, options: BuildOptions, *, tag: str, untuned: bool = False) -> list[str]:
    """Return the argv of the first build after `docker`. Raises BuildError for secrets with the classic builder.

    `untuned` builds a context without its kernel table: the caller has required tuned kernels, or allows untuned ones.
    """
    arguments = ["build", "--tag", tag]
    if docker.builder == "buildkit":
        arguments += ["--progress", "plain"]
        for name, path in sorted(options.secrets.items()):
            arguments += ["--secret", f"id={name},src={path}"]
    elif options.secrets:
        raise BuildError(
            "the classic builder does not support build secrets", hint="install the buildx plugin of your docker client"
        )
    else:
        arguments += ["--force-rm"]
    arguments += ["--no-cache"] if options.no_cache else []
    arguments += ["--build-arg", "ALLOW_UNTUNED=1"] if untuned else []
    arguments += ["--network", options.network] if options.network else []
    return [*arguments, "-"]


def _build(docker: DockerCli, engine: Engine, context: BuildContext, options: BuildOptions, *, base: str) -> None:
    unverified = f"{options.tag}-unverified-{uuid.uuid4().hex[:12]}"  # unique: another build of this tag may run
    builder_title = "BuildKit" if docker.builder == "buildkit" else "the classic builder"
    info(f"building `{options.tag}` with {builder_title} ({docker.program} {docker.version})")
    try:
        arguments = build_arguments(docker, options, tag=unverified, untuned=bool(context.missing_inputs))
        _run_build(docker, arguments, archive(context), image=base)
        verified = verify_in_image(docker, unverified)
        require_version(parse_receipt(verified), engine)
        receipt = json.dumps(json.loads(verified), separators=(",", ":"))
        new_labels = [f"{RECEIPT_LABEL}={receipt}", f"{BASE_LABEL}={base}", _base_digest(docker, base)]
        arguments = ["build", "--tag", options.tag, *(word for label in new_labels for word in ("--label", label)), "-"]
        _run_build(docker, arguments, f"FROM {unverified}\n".encode(), image=base)
    finally:
        docker.run("image", "rm", "--force", unverified)


def archive(context: BuildContext) -> bytes:
    """Pack a build context as a tar archive. Equal contexts give equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for file in context.files:
            entry = tarfile.TarInfo(file.path)
            entry.size, entry.mode = len(file.content), 0o755 if file.executable else 0o644
            tar.addfile(entry, io.BytesIO(file.content))
    return buffer.getvalue()


def _run_build(docker: DockerCli, arguments: Sequence[str], stdin: bytes, *, image: str) -> None:
    """Run one build on base image `image`. Raises BuildError if it fails, PatchError if a patch does not fit."""
    code, log = docker.follow(arguments, parse_step, stdin=stdin)
    if code == 0:
        return
    if error := parse_patch_error(log):
        hint = f"`deploy patches check --image {image}` shows every patch; a newer engine may contain the fix"
        raise PatchError("a patch does not fit the sources in the base image", details=error, hint=hint)
    disk_full = any("no space left on device" in line.lower() for line in log)
    hint = "free disk space in Docker's data directory: `docker system df`, `docker system prune`" if disk_full else ""
    raise BuildError("image build failed", details="\n".join(log[-30:]), hint=hint)


def parse_step(line: str) -> str | None:
    """Parse the start of a build step from a log line, as `[3/4] RUN …`; None for any other line."""
    step = _STEP.match(line)
    return f"[{step['number'] or step['step']}] {' '.join(step['instruction'].split())}" if step else None


def parse_patch_error(log: Sequence[str]) -> str | None:
    """Return the error message of the applier from a build log; None if the build failed for another reason."""
    lines = [_TIMESTAMP.sub("", line) for line in log]
    start = next((index for index, line in enumerate(lines) if line.startswith("error: patch ")), None)
    if start is None:
        return None
    end = next((index for index in range(start, len(lines)) if _END.match(lines[index])), len(lines))
    return "\n".join(lines[start:end]).removeprefix("error: ").rstrip()


def _base_digest(docker: DockerCli, base: str) -> str:
    """Return the label with the registry digest of the base image.

    The value is empty for a base that was built locally; the label then hides the label inherited from that base.
    """
    digests = known_digests(docker, base)
    return f"{BASE_DIGEST}={digests[0].partition('@')[2] if digests else ''}"


def verify_in_image(docker: DockerCli, image: str) -> str:
    """Verify the patches in an image and return its receipt as JSON. Raises PatchError if verification fails."""
    result = docker.run_inside(image, "python3", "-B", "/opt/deploy/patches/apply_patches.py", "verify")
    if not result.ok:
        hint = "`deploy build PROFILE --no-cache` builds it again"
        raise PatchError(f"`{image}` does not match its receipt", details=result.stderr, hint=hint)
    return result.stdout
