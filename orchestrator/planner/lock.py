"""`deploy lock` and `deploy up --locked`: pin the inputs of a start, and check them against a lock."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

from orchestrator import __version__
from orchestrator.checkpoints.files import file_stamps
from orchestrator.checkpoints.hub import Listing, list_files
from orchestrator.checkpoints.receipt import read_receipt
from orchestrator.checkpoints.staging import hub_of
from orchestrator.checkpoints.verify import checkpoint_directory
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.console import note
from orchestrator.core.errors import BuildError, CheckpointError, DeployError, Problem, ProfileError, UsageError
from orchestrator.core.files import read_file
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import RelativePath, UnsafeValueError, path_named_in
from orchestrator.core.secrets import redact
from orchestrator.core.subprocesses import quote
from orchestrator.core.yaml_document import Document
from orchestrator.engine.gateway import LAUNCHER
from orchestrator.images.config import local_config
from orchestrator.images.registry import Registry
from orchestrator.images.sources import ledger_patches
from orchestrator.patches.ledger import patch_digest, read_diffs
from orchestrator.plan.diff import differences
from orchestrator.plan.facts import Facts
from orchestrator.plan.lock import COMMIT, LOCK_FILE, Lock, drift, plan_lines
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import is_path, read_profile
from orchestrator.planner.source import ProfileSource, profile_source
from orchestrator.render.artifacts import RenderedFile
from orchestrator.render.dockerfile import repository
from orchestrator.runs.run_dir import load_lock, write_files
from orchestrator.runtimes import runtime_class
from orchestrator.runtimes.base import ExternalImage

_MAX_BYTES: Final = 1 << 20  # maximum size of a catalog file in bytes
_INPUTS: Final = "inputs"  # folder in a run directory with copies of its catalog files


def resolve(profile: str, overrides: Sequence[str], home: Home, environ: Mapping[str, str] = os.environ) -> Lock:
    """Resolve every input of a profile, using the hub and the image's registry.

    An unresolvable input is `unknown`, with the reason. Raises ProfileError for an invalid profile.
    """
    plan, _ = profile_source(profile, overrides, home).planned()
    unknown: dict[str, str] = {}
    listing, pins = None, list(overrides)
    if plan.model.checkpoint.source == "hub":
        try:
            listing = list_files(plan.model.checkpoint.path, plan.model.checkpoint.revision, hub_of(environ))
            pins.append(f"model.checkpoint.revision={listing.commit}")
        except DeployError as error:
            unknown["checkpoint"] = redact(error.message)  # the message of a mirror may contain a token
    if runtime_class(plan.runtime).in_container and plan.engine.image_digest is None:
        try:
            pins.append(f"engine.image_digest={_current_image_digest(plan)}")
        except DeployError as error:
            unknown["engine.image_digest"] = redact(error.message)
    if (external := runtime_class(plan.runtime).external_image(plan)) is not None:
        try:
            pins.append(_pin_of(external))
        except DeployError as error:
            unknown[external.key] = redact(error.message)
    pinned, _ = profile_source(profile, pins, home).planned()
    return _lock(pinned, profile, pins, home, checkpoint=_listed(listing), unknown=unknown)


def _current_image_digest(plan: Plan) -> str:
    """Return the current digest of the image's tag, from this host or the registry. Raises BuildError."""
    image = plan.engine.image or ""
    digest = (local_config(image) or Registry().config(image)).digest
    if not digest:
        raise BuildError("the image is local: no registry has its digest", hint="push it, and name the pushed image")
    return digest


def _pin_of(external: ExternalImage) -> str:
    """Return the setting that pins an external image to its current digest. Raises BuildError."""
    if not external.reference:
        raise BuildError(external.unpinned)
    digest = Registry().config(external.reference).digest
    return f"{external.key}={external.scheme}{repository(external.reference)}@{digest}"


def _listed(listing: Listing | None) -> dict[str, str]:
    if listing is None:
        return {}
    files: dict[str, str] = {path: f"{file.size} {file.identity}" for path, file in sorted(listing.files.items())}
    return {COMMIT: listing.commit, **files}


def lock_of_start(plan: Plan, profile: str, overrides: Sequence[str], home: Home, run: Path) -> RenderedFile:
    """Create the lock of a run directory: `resolve` without network requests."""
    unknown: dict[str, str] = {}
    if runtime_class(plan.runtime).in_container and plan.engine.image_digest is None:
        unknown["engine.image_digest"] = "the profile has no digest, and the registry was not queried"
    if (external := runtime_class(plan.runtime).external_image(plan)) is not None:
        unknown[external.key] = external.unpinned
    if plan.model.checkpoint.source == "hub":
        unknown["checkpoint"] = "the hub was not queried for the digests of its files"
    profile = _seen_from(run, profile) if is_path(profile) else profile
    lock = _lock(plan, profile, overrides, home, checkpoint=_received(plan, home), unknown=unknown)
    return RenderedFile(path=LOCK_FILE, content=lock.text.encode(), executable=False)


def _received(plan: Plan, home: Home) -> dict[str, str]:
    """Return the commit and file sizes of a staged hub checkpoint, from its receipt."""
    receipt = read_receipt(checkpoint_directory(plan.model, home)) if plan.model.checkpoint.source == "hub" else None
    if receipt is None or receipt.revision is None:
        return {}
    return {COMMIT: receipt.revision, **{path: str(size) for path, (size, _) in sorted(receipt.files.items())}}


def _lock(
    plan: Plan,
    profile: str,
    overrides: Sequence[str],
    home: Home,
    *,
    checkpoint: Mapping[str, str],
    unknown: Mapping[str, str],
) -> Lock:
    if plan.model.checkpoint.source == "local":
        unknown = {**unknown, "checkpoint": "a local directory has no digests on a hub"}
    for use in plan.patches:
        if use.kind == "file" and use.input_sha256 is None:
            unknown = {**unknown, f"patches.{use.id}.input_sha256": "the table of this patch is not built yet"}
    return Lock(
        tool=__version__,
        profile=profile,
        overrides=tuple(overrides),
        checkpoint=checkpoint,
        patches=_patches(plan, home),
        files=_files(plan, home),
        unknown=unknown,
        plan=plan_lines(plan),
    )


def inputs_changed_since(run: Path, plan: Plan, home: Home) -> Iterator[str]:
    """Yield the inputs that changed since a run, according to its lock; nothing if the lock is unreadable."""
    try:
        recorded, _ = load_lock(run / LOCK_FILE)
    except ProfileError:
        return
    for locked, now in ((recorded.patches, _patches(plan, home)), (recorded.files, _files(plan, home))):
        yield from (difference.key for difference in differences([locked, now]))


def _patches(plan: Plan, home: Home) -> dict[str, str]:
    catalog = Catalog.of(home)
    patches = ledger_patches(plan, catalog)
    diffs = read_diffs(patches, catalog)
    return {patch.id: patch_digest(patch, diffs) for patch in patches}


def _files(plan: Plan, home: Home) -> dict[str, str]:
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in _made_from(plan, home).items()}


def _made_from(plan: Plan, home: Home) -> dict[str, Path]:
    """Return the catalog files of a start, by name: requirements, Dockerfile template, gateway, generator."""
    catalog, source = Catalog.of(home), plan.model.checkpoint
    contained = runtime_class(plan.runtime).in_container
    names = [
        *((plan.gateway.requirements, LAUNCHER) if plan.gateway else ()),
        plan.engine.requirements,
        f"{plan.engine.dockerfile}.Dockerfile.j2" if contained else None,
        source.path if source.source == "generated" else None,
    ]
    paths = {name: catalog.find(EntryKind.IMAGE_FILE, name) for name in names if name}
    return {name: path for name, path in paths.items() if path}


def input_copies(plan: Plan, home: Home) -> tuple[RenderedFile, ...]:
    """Return copies of a plan's catalog files for a run directory, so that later changes do not affect a repeat."""
    sources = _made_from(plan, home).items()
    paths = ((f"{_INPUTS}/{EntryKind.IMAGE_FILE.value.replace('*', name)}", path) for name, path in sources)
    return tuple(RenderedFile(path=relative, content=path.read_bytes(), executable=False) for relative, path in paths)


def home_of_run(run: Path, home: Home) -> Home:
    """Return a home with the run's input files if all match its lock; otherwise `home`."""
    try:
        recorded, _ = load_lock(run / LOCK_FILE)
        copies = {name: run / _INPUTS / EntryKind.IMAGE_FILE.file(name) for name in recorded.files}
        same = all(
            hashlib.sha256(read_file(copies[name], max_bytes=_MAX_BYTES)).hexdigest() == digest
            for name, digest in recorded.files.items()
        )
    except (ProfileError, OSError):
        return home
    return replace(home, inputs=run / _INPUTS) if same else home


def default_path(profile: str) -> Path:
    """Return the default path of a profile's lock, in the current directory. Raises ProfileError."""
    try:
        return Path(RelativePath(f"{Path(profile).stem if is_path(profile) else profile}.{LOCK_FILE}"))
    except UnsafeValueError as error:
        raise ProfileError(f"invalid profile name `{profile}`", details=str(error)) from error


def lock_output(output: Path | None, profile: str) -> Path:
    """Return the path for a new lock. Raises UsageError for a name that `--locked` would reject."""
    if output is not None and not output.name.endswith(LOCK_FILE):
        raise UsageError(f"invalid lockfile name `{output}`", hint=f"the name must end in `{LOCK_FILE}`")
    return output or default_path(profile)


def write_lock(path: Path, lock: Lock) -> None:
    """Write a lock; a profile's path becomes relative to the lock. Raises HostError."""
    if is_path(lock.profile):
        lock = replace(lock, profile=_seen_from(path.absolute().parent, lock.profile))
    write_files(path.parent, [RenderedFile(path=path.name, content=lock.text.encode(), executable=False)])


def _seen_from(folder: Path, profile: str) -> str:
    relative = os.path.relpath(profile, folder)
    return relative if is_path(relative) else f"./{relative}"


def lock_path(name: str | None) -> Path:
    """Return the path of the lock named by `--locked`: a file, or a profile's default lock. Raises UsageError."""
    if name is None:
        raise UsageError("no lockfile given", hint="`deploy up --locked FILE`; `deploy lock NAME` writes one")
    path = Path(name) if name.endswith(LOCK_FILE) else default_path(name)
    if not path.is_file():
        profile = "NAME" if name.endswith(LOCK_FILE) else name
        raise UsageError(f"no lockfile `{path}` found", hint=f"`deploy lock {profile}` writes one")
    return path.absolute()


def read_lock(path: Path) -> tuple[Lock, Document]:
    """Read a lock and its document; its profile's path becomes relative to this directory. Raises ProfileError."""
    lock, document = load_lock(path)
    if is_path(lock.profile):
        lock = replace(lock, profile=str(path_named_in(path.parent, lock.profile)))
    return lock, document


@dataclass(frozen=True, kw_only=True)
class LockSource(ProfileSource):
    """The profile of a lock; its plan must equal the locked plan."""

    path: Path
    lock: Lock
    document: Document
    has_fixed_plan: ClassVar[bool] = True

    def build(self, facts: Facts) -> Plan:
        """Build the plan, and check it and its inputs against the lock.

        Raises ProfileError, BuildError or CheckpointError with each change.
        """
        plan = super().build(facts)
        lock, document, home = self.lock, self.document, self.home
        built = [
            *drift(document, "patches", lock.patches, _patches(plan, home)),
            *drift(document, "files", lock.files, _files(plan, home)),
        ]
        groups: list[tuple[type[DeployError], Sequence[Problem]]] = [
            (ProfileError, tuple(drift(document, "plan", lock.plan, plan_lines(plan)))),
            (BuildError, built),
            (CheckpointError, tuple(_other_weights(lock, document, plan, home))),
        ]
        problems = [problem for _, item in groups for problem in item]
        if problems:
            kind = next(kind for kind, item in groups if item)
            command = quote(["deploy", "lock", lock.profile, "--output", str(self.path)])
            hint = f"`{command}`, with your `--set`, writes a lock of the current inputs"
            raise kind(f"the plan or its inputs have changed since `{self.path.name}`", problems=problems, hint=hint)
        return plan

    def location(self, path: tuple[str, ...]) -> str:
        """Return the location of a key in the lock."""
        return f"`{'.'.join(path)}` in {self.path}"


def lock_source(path: Path, home: Home) -> LockSource:
    """Read a lock and its profile, and note the unpinned values. Raises ProfileError."""
    lock, document = read_lock(path)
    valid = read_profile(lock.profile, overrides=lock.overrides, catalog=Catalog.of(home))
    for key, reason in lock.unknown.items():
        note(f"the lockfile does not pin `{key}`: {reason}")
    return LockSource(valid=valid, home=home, path=path, lock=lock, document=document)


def _other_weights(lock: Lock, document: Document, plan: Plan, home: Home) -> Iterator[Problem]:
    """Yield the files of a staged checkpoint that differ from the lock; a later download adds missing files."""
    directory = checkpoint_directory(plan.model, home)
    receipt = read_receipt(directory)
    if not lock.checkpoint or receipt is None:
        return  # incomplete download
    commit = lock.checkpoint.get(COMMIT, "")
    if receipt.revision not in (None, commit):
        yield from drift(document, "checkpoint", {COMMIT: commit}, {COMMIT: str(receipt.revision)})
    stamps = file_stamps(directory)
    for path, stamp in lock.checkpoint.items():
        size = stamp.partition(" ")[0]
        if path != COMMIT and path in stamps and str(stamps[path][0]) != size:
            message = f"`{path}` has {stamps[path][0]} bytes on disk and {size} in the lock"
            yield Problem(message, document.location(("checkpoint", path)))
