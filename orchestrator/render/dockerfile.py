"""The build context of a plan's image: the Dockerfile and the files that it copies. Equal inputs give equal bytes.

Templates may be untrusted, so they run in Jinja's sandbox. Filters keep a value of the plan from adding an instruction:
`quoted` for values, `word` for paths and references, `comment` for text after `#`, Jinja's `tojson` for exec forms.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from packaging.version import InvalidVersion, Version

from orchestrator.core.errors import BuildError
from orchestrator.core.templates import render_template
from orchestrator.core.text import first_control_char
from orchestrator.engine.gateway import IMAGE_DIR, IN_IMAGE_PACKAGES
from orchestrator.patches.ledger import manifest
from orchestrator.patches.schema import AddedFile, Diff, Patch
from orchestrator.plan.patches import patch_env
from orchestrator.plan.plan import Engine, EnvVar, Plan, PlannedPatch
from orchestrator.render.artifacts import BuildContext, RenderedFile

GATEWAY_LABEL: Final = "deploy.gateway"  # the version of smg in an image
PATCH_LABEL: Final = "deploy.patch."  # followed by the patch's id; the value is its state after its step, if known
RECEIPT_FILE: Final = "/opt/deploy/receipt.json"  # in an image: the state of each patch, determined from the sources
GATEWAY_FOLDER: Final = "gateway"  # in the build context
_WORD: Final = re.compile(r"[A-Za-z0-9_./@][A-Za-z0-9_.+:/@-]*", re.ASCII)


def quoted(text: str) -> str:
    """Quote a value for ENV and LABEL: docker neither splits nor expands it. Raises BuildError as `comment` does."""
    return '"' + re.sub(r'(["\\$])', r"\\\1", comment(text)) + '"'


def dockerfile_word(text: str) -> str:
    """Return a word for FROM or COPY. Raises BuildError if the text is not a single word without wildcards."""
    if not _WORD.fullmatch(text):
        raise BuildError(f"`{text}` is not allowed in a Dockerfile")
    return text


def comment(text: str) -> str:
    """Return the text of a comment. Raises BuildError if it contains control characters, such as a line break."""
    if first_control_char(text):
        raise BuildError(f"{text!r} is not allowed in a Dockerfile")
    return text


@dataclass(frozen=True, kw_only=True)
class ImageSources:
    """The inputs of a build context, as read from disk."""

    template: str  # text of images/<template>.Dockerfile.j2
    programs: Mapping[str, bytes]  # images/apply_patches.py and its imports, by file name
    patches: tuple[Patch, ...]
    diffs: Mapping[str, str]  # text of the diff, by patch id
    inputs: Mapping[str, bytes]  # content of the inputs of patches, by input name
    files: Mapping[str, bytes]  # all other files that the template copies, by path in the context
    coverage: str = ""  # the MoE keys of the plan that its table covers


@dataclass(frozen=True, kw_only=True)
class PatchStep:
    """One patch as the template shows it: a comment, and the instructions that apply it."""

    id: str
    title: str
    published: str | None
    upstream: str
    state: str  # of the patch after this step, in the words of the receipt
    source: str | None  # file in the context that the step copies to `destination`
    destination: str | None
    missing: bool  # the patch needs a file that was not given
    env: tuple[EnvVar, ...]


def build_context(plan: Plan, sources: ImageSources) -> BuildContext:
    """Render the build context of a plan's image.

    Raises BuildError if the engine names no base image, an input of the plan is missing, or the template cannot be
    rendered.
    """
    tables = _tables(plan, sources)
    steps = _patch_steps(plan, sources)
    values = {
        "plan": plan,
        "base": base_reference(plan.engine),
        "tag": plan.engine.image if plan.engine.image_digest else None,
        "patches": steps,
        "labels": _label_instruction(plan, steps),
    }
    filters = {"quoted": quoted, "word": dockerfile_word, "comment": comment}
    try:
        dockerfile = render_template(sources.template, values, filters=filters, keep_trailing_newline=True)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        reason = f"template `{plan.engine.dockerfile}` cannot be rendered: {error}"
        raise BuildError(reason, location=f"engine {plan.engine.name}") from error
    texts = {"Dockerfile": dockerfile + _gateway_instructions(plan), "patches/manifest.json": _manifest(plan, sources)}
    contents = {path: text.encode() for path, text in texts.items()}
    contents |= {f"patches/{name}": program for name, program in sources.programs.items()}
    contents |= {**sources.files, **tables}
    return BuildContext(
        files=tuple(RenderedFile(path=path, content=contents[path], executable=False) for path in sorted(contents)),
        missing_inputs=tuple(step.id for step in steps if step.missing),
    )


def _manifest(plan: Plan, sources: ImageSources) -> str:
    unexpected = {use.id for use in plan.patches if not use.expected}
    added = {patch.id for patch in sources.patches if isinstance(patch.apply, AddedFile)}
    lacks_table = any(use.id in added and use.input_sha256 is None for use in plan.patches)
    make_table = f"`deploy kernels build {plan.profile}` makes it, with the same `--set`; then render again"
    hint = make_table if lacks_table else ""
    return manifest(sources.patches, sources.diffs, unexpected=unexpected, hint=hint)


def _patch_steps(plan: Plan, sources: ImageSources) -> tuple[PatchStep, ...]:
    """Return the steps of the plan's patches: first the patches of a publication, in its order, then the others.

    Raises BuildError for the sources of another plan.
    """
    uses = {use.id: use for use in plan.patches}
    if unknown := [patch.id for patch in sources.patches if patch.id not in uses]:
        raise BuildError(f"the plan has no patch `{unknown[0]}`", location=f"engine {plan.engine.name}")
    steps = [_patch_step(plan, patch, uses[patch.id], sources) for patch in sources.patches]
    return tuple(sorted(steps, key=lambda step: (step.published is None, step.published, step.id)))


def _patch_step(plan: Plan, patch: Patch, use: PlannedPatch, sources: ImageSources) -> PatchStep:
    added = patch.apply if isinstance(patch.apply, AddedFile) else None
    has_input = added is not None and use.input_sha256 is not None
    return PatchStep(
        id=patch.id,
        title=patch.title,
        published=patch.published,
        upstream=patch.upstream.reference,
        state=_state(plan, patch, use, sources),
        source=f"tables/{added.input}" if added and has_input else None,
        destination=added.destination if added else None,
        missing=added is not None and not has_input,
        env=patch_env((patch,), (use,)),
    )


def _state(plan: Plan, patch: Patch, use: PlannedPatch, sources: ImageSources) -> str:
    """Return the state of a patch after its step; `… or …` if it depends on the sources in the image.

    A build stops if an expected diff is neither applied nor upstream.
    """
    if isinstance(patch.apply, AddedFile):
        if use.input_sha256 is None:
            return f"needed: no {patch.apply.input}"
        return "; ".join(filter(None, [f"table, sha256 {use.input_sha256}", sources.coverage]))
    if not use.expected:
        return f"{'upstream' if _is_upstream(plan, patch) else 'not applicable'} by its version {plan.engine.version}"
    return "applied or upstream" if isinstance(patch.apply, Diff) else "applied at startup or upstream"


def _is_upstream(plan: Plan, patch: Patch) -> bool:
    """Return whether the plan's version includes the patch; False for text that is not a version."""
    released = patch.upstream.released
    try:
        return released is not None and Version(plan.engine.version) >= Version(released)
    except InvalidVersion:
        return False


def base_reference(engine: Engine) -> str:
    """Return the reference of the base image for `FROM`, by digest if the engine pins one.

    A tag next to a digest is left out, because docker ignores it. Raises BuildError if the engine names no base image.
    """
    if engine.image is None:
        raise BuildError(f"engine `{engine.name}` names no base image", hint="give one with `--base-image`")
    if engine.image_digest is None:
        return engine.image
    return f"{repository(engine.image)}@{engine.image_digest}"


def repository(reference: str) -> str:
    """Return an image reference without its tag. A colon before the last slash belongs to the port of a registry."""
    head, slash, name = reference.rpartition("/")
    return f"{head}{slash}{name.partition(':')[0]}"


def _tables(plan: Plan, sources: ImageSources) -> dict[str, bytes]:
    """Return the content of each file that the plan's patches add, by its path in the context."""
    has_input = {use.id for use in plan.patches if use.input_sha256 is not None}
    tables = {}
    for patch in sources.patches:
        if patch.id in has_input and isinstance(patch.apply, AddedFile):
            if (content := sources.inputs.get(patch.apply.input)) is None:
                raise BuildError(f"no `{patch.apply.input}` for patch `{patch.id}`, which the plan has")
            tables[f"tables/{patch.apply.input}"] = content
    return tables


def _gateway_instructions(plan: Plan) -> str:
    """Return the instructions that add the gateway as the last layers, so that it needs no separate image."""
    if plan.gateway is None:
        return ""
    words = ["pip", "install", "--no-cache-dir", "--no-deps", "--only-binary", ":all:"]
    words += ["--target", IN_IMAGE_PACKAGES, "--requirement", f"{IMAGE_DIR}/{plan.gateway.requirements}"]
    return f"""
# SGLang's gateway, which stands before several of these servers, by a complete and pinned list.
COPY {GATEWAY_FOLDER} {IMAGE_DIR}
RUN {json.dumps(words)}
LABEL {GATEWAY_LABEL}={quoted(plan.gateway.version)}
"""


def _label_instruction(plan: Plan, steps: Sequence[PatchStep]) -> str:
    """Return the LABEL instruction known before the build; the receipt's labels are added after the build.

    A plain `docker build` adds no others, so each patch has a label with its state, as far as known.
    """
    labels = {
        "org.opencontainers.image.title": f"sglang for {plan.profile}",
        "org.opencontainers.image.description": plan.description,
        "org.opencontainers.image.version": plan.engine.version,
        "org.opencontainers.image.base.name": plan.engine.image or "",
    }
    if plan.engine.image_digest:
        labels["org.opencontainers.image.base.digest"] = plan.engine.image_digest
    for step in steps:
        published = f" ({step.published})" if step.published else ""
        labels[f"{PATCH_LABEL}{step.id}"] = f"{step.state}{published}; see {RECEIPT_FILE}"
    pairs = [f"{name}={quoted(value)}" for name, value in sorted(labels.items())]
    return "LABEL " + " \\\n      ".join(pairs)
