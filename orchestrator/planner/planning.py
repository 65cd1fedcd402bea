"""The steps from the catalog to the artifacts of a plan: read, merge, validate, plan, render."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from orchestrator.core.catalog import Catalog, EntryKind, is_valid_name
from orchestrator.core.console import note, warn
from orchestrator.core.errors import Problem, ProfileError, truncate_problems
from orchestrator.core.safe_paths import path_named_in
from orchestrator.core.secrets import register_env_secret
from orchestrator.core.suggest import did_you_mean
from orchestrator.core.validation import drop_unknown_keys, read_entry, read_file, read_model, validate
from orchestrator.core.yaml_document import Document, KeyPath, read_document
from orchestrator.engine.flags import FlagTable, read_flags
from orchestrator.patches.ledger import read_ledger
from orchestrator.plan.build import build_plan
from orchestrator.plan.capacity import DEFAULT_WORKLOAD, Capacity, Load, capacity_of
from orchestrator.plan.facts import NO_FACTS, Facts
from orchestrator.plan.known_issues import KnownIssues
from orchestrator.plan.networks import Network
from orchestrator.plan.plan import NAME, Plan
from orchestrator.plan.rules import PlanningContext
from orchestrator.plan.serving import profile_serving
from orchestrator.planner.renamed_flags import rename_flags
from orchestrator.profiles.layers import (
    ENTRY_KEYS,
    EXTENDS,
    USE,
    EntryChoice,
    MergedProfile,
    Override,
    merge_layers,
    select_entries,
)
from orchestrator.profiles.schema import Profile
from orchestrator.render.artifacts import Artifacts, RenderedFile
from orchestrator.render.scripts import files
from orchestrator.runtimes import REGISTRY, runtime_class
from orchestrator.runtimes.base import Runtime

ENTRY_KINDS: Mapping[str, EntryKind] = {key: EntryKind[key.upper()] for key in ENTRY_KEYS}


@dataclass(frozen=True, kw_only=True)
class LoadedProfile:
    """A merged and valid profile."""

    name: str
    composed: MergedProfile
    profile: Profile
    catalog: Catalog
    known_table: FlagTable | None  # None: the version's table is missing or invalid

    @cached_property
    def table(self) -> FlagTable:
        """The engine's flags. Raises ProfileError if the version has no table."""
        return self.known_table or read_flags(
            self.profile.engine.version, self.catalog, location=self.composed.location(("engine", "version"))
        )

    @cached_property
    def load(self) -> Load | None:
        """The lengths of the workload; None without a workload and for sessions.

        Raises ProfileError if the workload does not exist.
        """
        name = self.profile.workload
        return _read_load(name, self.catalog, self.composed.location(("workload",))) if name else None

    @property
    def capacity(self) -> Capacity:
        """The capacity of each DP rank."""
        return self.capacity_for(self.load)

    def capacity_for(self, load: Load | None) -> Capacity:
        """Return the capacity of each DP rank for requests of these lengths."""
        return capacity_of(self.profile, profile_serving(self.profile), load)

    @cached_property
    def _networks(self) -> Mapping[str, Network]:
        """Read the profile's networks. Raises ProfileError if a name does not exist."""
        transfer = self.profile.layout.transfer
        names: dict[KeyPath, str | None] = {("hardware", "network"): self.profile.hardware.network}
        names["layout", "transfer", "network"] = transfer.network if transfer else None
        return {
            name: read_entry(self.catalog, EntryKind.NETWORK, name, Network, location=self.composed.location(path))
            for path, name in names.items()
            if name
        }

    @property
    def displayed_load(self) -> Load | None:
        """The lengths of the workload, by default those of `bench`; None for sessions."""
        return self.load if self.profile.workload else _read_load(DEFAULT_WORKLOAD, self.catalog, "")

    @cached_property
    def knowledge(self) -> PlanningContext:
        """Read the inputs of a plan from the catalog, once. Raises ProfileError."""
        name = self.profile.runtime
        runtime = runtime_class(name) if name in REGISTRY else None
        return PlanningContext(
            table=self.table,
            ledger=read_ledger(self.catalog),
            known_issues=read_known_issues(self.catalog),
            networks=self._networks,
            runtimes=tuple(REGISTRY),
            rules=runtime.rules if runtime else (),
            settings=runtime.settings if runtime else Runtime.settings,
            load=self.load,
        )

    @cached_property
    def plan(self) -> Plan:
        """The plan without further facts. Raises ProfileError with every violated rule."""
        return self.build()

    def build(self, facts: Facts = NO_FACTS) -> Plan:
        """Build the plan. Raises ProfileError with every violated rule."""
        return build_plan(self.name, profile=self.profile, merged=self.composed, context=self.knowledge, facts=facts)

    def note_deprecated(self) -> None:
        """Print a note for each deprecated option that the profile sets."""
        set_flags = tuple(name for name, setting in self.profile.flags.items() if setting.value is not False)
        for name, successor in self.table.deprecated(set_flags).items():
            replacement = f": use `{successor}`" if successor else ""
            location = self.composed.location(("flags", name))
            note(f"`--{name}` is deprecated in sglang {self.profile.engine.version}{replacement} ({location})")


def read_known_issues(catalog: Catalog) -> KnownIssues:
    """Read every known issue. Raises ProfileError with the location of every problem."""
    files = [read_model(path, KnownIssues, catalog.display_path(path)) for path in catalog.all(EntryKind.KNOWN_ISSUES)]
    return sum(files, KnownIssues())


def profile_names(catalog: Catalog | None = None) -> tuple[str, ...]:
    """Return the sorted profile names of a catalog; by default of the user's and the shipped profiles."""
    return (catalog or Catalog.from_environment()).names(EntryKind.PROFILE)


def usable_plans(overrides: Sequence[str] = ()) -> Iterator[Plan]:
    """Yield the plan of each profile in the catalog; warn about and skip invalid profiles."""
    for name in profile_names():
        try:
            yield load(name, overrides=overrides).plan
        except ProfileError as error:
            first = error.problems_or_self()[0].message
            warn(f"skipped profile `{name}`: {first}", hint=f"`deploy show {name}` shows every problem")


def load(name: str, *, overrides: Sequence[str] = (), catalog: Catalog | None = None) -> LoadedProfile:
    """Read a profile by name or path, apply `--set` overrides, and build its plan.

    Raises ProfileError with every problem and its location.
    """
    loaded = read_profile(name, overrides=overrides, catalog=catalog)
    loaded.plan  # noqa: B018 - raises ProfileError
    loaded.note_deprecated()
    return loaded


def render_artifacts(plan: Plan, inputs: Mapping[str, bytes] | None = None) -> Artifacts:
    """Render the artifacts of a plan; `inputs` are the input files of patches by name."""
    return runtime_class(plan.runtime).render(plan, inputs or {})


def rendered_files(artifacts: Artifacts, name: str | None = None) -> tuple[RenderedFile, ...]:
    """Return a server's artifacts as files sorted by path, for `deploy render` and run directories."""
    runtime_files = runtime_class(artifacts.plan.runtime).files(artifacts, name or artifacts.plan.profile)
    return tuple(sorted((*files(artifacts), *runtime_files), key=lambda file: file.path))


def read_profile(name: str, *, overrides: Sequence[str] = (), catalog: Catalog | None = None) -> LoadedProfile:
    """Read and validate a profile by name or path, with `--set` overrides.

    Raises ProfileError with every problem and its location.
    """
    catalog = catalog or Catalog.from_environment()
    set_flags = tuple(Override.parse(text) for text in overrides)
    path = _profile_path(name, catalog)
    if not NAME.match(path.stem):
        hint = "rename it: lower-case letters and digits, separated by single `.`, `_` or `-`"
        raise ProfileError(f"invalid profile name `{path.stem}`", location=str(path), hint=hint)
    return _composed(path, _layers(path, read_file(path, catalog.display_path(path)), catalog), set_flags, catalog)


def read_draft(text: str, path: Path, catalog: Catalog) -> LoadedProfile:
    """Read a profile from `text` as if it were the file `path`. Raises ProfileError like `read_profile`."""
    return _composed(path, _layers(path, read_document(text, str(path)), catalog), (), catalog)


def _composed(
    path: Path, layers: dict[Path, Document], overrides: Sequence[Override], catalog: Catalog
) -> LoadedProfile:
    profiles = tuple(layers.values())
    choices = select_entries(profiles, overrides)
    files = _entry_files(choices, layers, catalog)
    entries = {entry_key: read_file(file, catalog.display_path(file)) for entry_key, file in files.items()}
    names = {entry_key: _entry_name(choice, files.get(entry_key), path.stem) for entry_key, choice in choices.items()}
    composed = merge_layers(choices, entries=entries, names=names, profiles=profiles, overrides=overrides)
    try:
        return _valid(path.stem, composed, catalog)
    except ProfileError as error:
        pruned = replace(composed, data=drop_unknown_keys(composed.data, Profile))
        if pruned.data != composed.data:
            error.problems = truncate_problems((*error.problems, *_further_problems(path.stem, pruned, catalog)))
        raise


def _valid(name: str, composed: MergedProfile, catalog: Catalog) -> LoadedProfile:
    message = f"profile `{name}` is not valid"
    composed, table = _renamed(composed, catalog)
    profile = validate(composed.data, Profile, location=composed.location, message=message)
    register_env_secret(profile.server.api_key_env)
    return LoadedProfile(name=name, composed=composed, profile=profile, catalog=catalog, known_table=table)


def _renamed(composed: MergedProfile, catalog: Catalog) -> tuple[MergedProfile, FlagTable | None]:
    """Rename flags that the engine renamed; keep all if its version is unknown, which a rule reports."""
    engine = composed.data.get("engine")
    version = engine.get("version") if isinstance(engine, dict) else None
    try:
        table = read_flags(str(version), catalog)
    except ProfileError:
        return composed, None
    return rename_flags(composed, table, catalog)


def _further_problems(name: str, composed: MergedProfile, catalog: Catalog) -> tuple[Problem, ...]:
    """Return further problems of a profile, ignoring its unknown keys: from the schema, else from the rules."""
    try:
        _valid(name, composed, catalog).build()
    except ProfileError as error:
        return error.problems_or_self()
    return ()


def _layers(path: Path, document: Document, catalog: Catalog) -> dict[Path, Document]:
    """Return a profile and its base profiles, base first."""
    layers: dict[Path, Document] = {}
    names: list[str] = []
    while True:
        layers = {path: document, **layers}
        base = document.data.get(EXTENDS)
        if base is None:
            return layers
        location = document.location((EXTENDS,))
        if not isinstance(base, str):
            raise ProfileError(
                "`extends` does not contain a name",
                location=location,
                hint="`extends: NAME`; `deploy profiles` lists the names",
            )
        if base in names:
            message = f"circular `extends`: profile `{base}` extends itself"
            raise ProfileError(message, location=location, hint="remove `extends` from one of the profiles")
        parent = _extended(base, path.parent, catalog)
        if parent is None:
            hint = did_you_mean(base, catalog.names(EntryKind.PROFILE))
            raise ProfileError(f"no profile `{base}` found to extend", location=location, hint=hint)
        names.append(base)
        path, document = parent, read_file(parent, catalog.display_path(parent))


def _extended(base: str, folder: Path, catalog: Catalog) -> Path | None:
    """Find a profile by name, or by a path relative to `folder`."""
    if not is_path(base):
        return catalog.find(EntryKind.PROFILE, base)
    path = path_named_in(folder, base)
    return path if path.is_file() else None


def read_networks(catalog: Catalog) -> Mapping[str, Network]:
    """Read every network of the catalog. Raises ProfileError with the location of every problem."""
    kind = EntryKind.NETWORK
    return {name: read_entry(catalog, kind, name, Network) for name in catalog.names(kind)}


def _read_load(name: str, catalog: Catalog, location: str) -> Load | None:
    """Read the lengths of a workload, the only keys that planning needs; `bench` validates the whole file."""
    path = catalog.find(EntryKind.WORKLOAD, name)
    if path is None:
        hint = did_you_mean(name, catalog.names(EntryKind.WORKLOAD))
        if is_path(name):
            folder = (catalog.roots[0] / EntryKind.WORKLOAD.value).parent
            hint = (
                f"a profile names a workload of the catalog: copy the file to `{folder}/`; name it `{Path(name).stem}`"
            )
        raise ProfileError(f"no workload `{name}` found", location=location, hint=hint)
    document = read_file(path, catalog.display_path(path))
    if document.data.keys() & {"sessions", "trace"}:
        return None  # lengths vary by request
    lengths = {key: value for key, value in document.data.items() if key in Load.model_fields}
    return validate(
        {**lengths, "name": name}, Load, location=document.location, message=f"workload `{name}` is not valid"
    )


def _profile_path(name: str, catalog: Catalog) -> Path:
    if is_path(name):
        path = Path(name)
        if path.is_file():
            return path
        raise ProfileError(f"no file `{name}` found", hint="`deploy profiles` lists the profiles of the catalog")
    return catalog.path(EntryKind.PROFILE, name)


def is_path(name: str) -> bool:
    """Return whether a profile or catalog entry is given as a path."""
    return "/" in name or name.endswith((".yaml", ".yml"))


def _entry_name(choice: EntryChoice, file: Path | None, profile: str) -> str:
    """Return the name of an entry: its catalog name, its file's name, or the name of the profile that contains it."""
    if choice.file is None or file is None:
        return profile
    return file.stem if is_path(choice.file) else choice.file


def _entry_files(
    choices: Mapping[str, EntryChoice], layers: Mapping[Path, Document], catalog: Catalog
) -> dict[str, Path]:
    """Find the files of catalog entries; a path is relative to its profile, or to this directory for `--set`."""
    folders = {id(document): path.parent for path, document in layers.items()}
    files: dict[str, Path] = {}
    problems: list[Problem] = []
    for key, choice in choices.items():
        if choice.file is None:
            continue
        folder = folders[id(choice.by)] if choice.by else Path()
        try:
            files[key] = _entry_file(key, choice.file, folder, catalog)
        except ProfileError as error:
            location = choice.by.location((key, USE)) if choice.by else f"--set {key}"
            problems.append(Problem(error.message, location, error.hint))
    if problems:
        last = [*layers.values()][-1]
        raise ProfileError(f"`{last.name}` refers to catalog entries that do not exist", problems=problems)
    return files


def _entry_file(key: str, name: str, folder: Path, catalog: Catalog) -> Path:
    if is_path(name):
        file = path_named_in(folder, name)
        if not file.is_file():
            raise ProfileError(f"no file `{file}` found", hint="correct the path; `deploy profiles` lists the names")
        if not is_valid_name(file.stem):
            raise ProfileError(f"invalid name `{file.stem}` of a catalog entry", hint="rename the file")
        return file
    return catalog.path(ENTRY_KINDS[key], name)
