"""Profiles and their parts, read from disk and put together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.document import Document, read_document
from orchestrator.core.errors import Problem, ProfileError
from orchestrator.core.nearest import did_you_mean
from orchestrator.core.paths import data_root
from orchestrator.engine.flags import read_flags
from orchestrator.patches import read_ledger
from orchestrator.plan import NAME, Plan
from orchestrator.plan.decide import Knowledge, decide
from orchestrator.plan.known_bad import KnownBad, parse_known_bad
from orchestrator.profile.compose import Composed, Override, compose, part_names
from orchestrator.profile.schema import Profile
from orchestrator.profile.validate import validate
from orchestrator.runtimes import REGISTRY

_FOLDERS = {"hardware": "hardware", "model": "models", "engine": "engines"}


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A profile in its three forms: as composed, as validated, as planned."""

    name: str
    composed: Composed
    profile: Profile
    plan: Plan


def profile_names(root: Path | None = None) -> tuple[str, ...]:
    """The profiles that ship with the tool, sorted."""
    folder = (root or data_root()) / "profiles"
    return tuple(sorted(path.stem for path in folder.glob("*.yaml") if _is_profile(path)))


def load(
    name: str, *, overrides: Sequence[str] = (), inputs: Mapping[str, str] | None = None, root: Path | None = None
) -> Loaded:
    """The profile of that name, or in that file, with `--set` overrides applied and everything decided.

    `inputs` are files given to patches, name -> sha256. Raises ProfileError with every fault and its place.
    """
    root = root or data_root()
    given = tuple(Override.parse(text) for text in overrides)
    path = _profile_path(name, root)
    if not NAME.match(path.stem):
        hint = "rename it: lower-case letters and digits, with single `.`, `_` or `-` between them"
        raise ProfileError(f"a profile cannot be called `{path.stem}`", where=str(path), hint=hint)
    document = _read(path, root)
    names = part_names(document, given)
    parts = _read_parts(names, document, root)
    composed = compose(parts, names=names, profile=document, overrides=given)
    profile = validate(composed, path.stem)
    knowledge = Knowledge(
        table=read_flags(profile.engine.version, root, place=composed.place(("engine", "version"))),
        ledger=read_ledger(root),
        known_bad=_read_known_bad(root),
        runtimes={name: kind().rules for name, kind in REGISTRY.items()},
        inputs=inputs or {},
    )
    plan = decide(path.stem, profile=profile, composed=composed, knowledge=knowledge)
    return Loaded(name=path.stem, composed=composed, profile=profile, plan=plan)


def _read_known_bad(root: Path) -> tuple[KnownBad, ...]:
    return parse_known_bad(_read(root / "profiles" / "known-bad.yaml", root))


def _is_profile(path: Path) -> bool:
    """A profile names its parts; other files of the folder (known-bad layouts, say) do not."""
    return any(line.startswith("hardware:") for line in path.read_text().splitlines())


def _profile_path(name: str, root: Path) -> Path:
    if "/" in name or name.endswith((".yaml", ".yml")):
        path = Path(name)
        if path.is_file():
            return path
        raise ProfileError(f"there is no file `{name}`", hint="a name without `/` is one of `deploy profiles`")
    path = root / "profiles" / f"{name}.yaml"
    names = profile_names(root)
    if name in names:
        return path
    raise ProfileError(f"there is no profile `{name}`", hint=did_you_mean(name, names))


def _read_parts(names: Mapping[str, str], profile: Document, root: Path) -> dict[str, Document]:
    paths = {part: root / "profiles" / _FOLDERS[part] / f"{name}.yaml" for part, name in names.items()}
    problems = tuple(
        Problem(
            f"there is no {part} `{names[part]}`",
            profile.place((part,)),
            did_you_mean(names[part], [file.stem for file in path.parent.glob("*.yaml")]),
        )
        for part, path in paths.items()
        if not path.is_file()
    )
    if problems:
        raise ProfileError(f"`{profile.name}` names parts that do not exist", problems=problems)
    return {part: _read(path, root) for part, path in paths.items()}


def _read(path: Path, root: Path) -> Document:
    """Read a file; one that ships with the tool is shown by its path below the tool's root."""
    name = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    try:
        return read_document(path.read_text(encoding="utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"`{name}` cannot be read: {error}", where=name) from error
