"""`deploy profiles`: the catalog's entries, including invalid entries with their problems."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, TypeVar

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import ProfileError
from orchestrator.core.validation import read_entry
from orchestrator.plan.capacity import DEFAULT_WORKLOAD
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load
from orchestrator.profiles.schema import EngineFile, HardwareFile, ModelFile

Entry = TypeVar("Entry")
_MODEL: Final = "model"  # field by which profiles are grouped


@dataclass(frozen=True, kw_only=True)
class InvalidEntry:
    """An entry with problems."""

    name: str
    problems: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ProfileEntry:
    """A valid profile; `workload` is the workload of `bench`."""

    name: str
    hardware: str
    model: str
    engine: str
    layout: str
    runtime: str
    workload: str
    description: str


@dataclass(frozen=True, kw_only=True)
class HardwareEntry:
    """The GPUs of a node; `vram_gib` is the memory of each."""

    name: str
    vendor: str
    arch: str
    gpus: int
    vram_gib: float


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A model; `context_length` is in tokens."""

    name: str
    quantization: str
    weights_gb: float
    context_length: int
    checkpoint: str


@dataclass(frozen=True, kw_only=True)
class EngineEntry:
    """A version of sglang, with its image or Python environment."""

    name: str
    version: str
    platform: str
    runs_in: str = field(metadata={"serialization_alias": "runs in"})


@dataclass(frozen=True, kw_only=True)
class CatalogListing:
    """The entries of the catalog, by kind."""

    profiles: tuple[ProfileEntry | InvalidEntry, ...]
    hardware: tuple[HardwareEntry | InvalidEntry, ...]
    models: tuple[ModelEntry | InvalidEntry, ...]
    engines: tuple[EngineEntry | InvalidEntry, ...]


def catalog_listing(catalog: Catalog) -> CatalogListing:
    """List profiles, hardware, models and engines."""
    return CatalogListing(
        profiles=_entries(EntryKind.PROFILE, _profile, catalog),
        hardware=_entries(EntryKind.HARDWARE, _hardware, catalog),
        models=_entries(EntryKind.MODEL, _model, catalog),
        engines=_entries(EntryKind.ENGINE, _engine, catalog),
    )


def chosen_profiles(listing: CatalogListing, *, hardware: str | None, model: str | None) -> CatalogListing:
    """Keep the profiles for this hardware, and for models whose names contain `model`."""
    selected = (
        profile
        for profile in listing.profiles
        if isinstance(profile, ProfileEntry)
        and hardware in {None, profile.hardware}
        and (model or "").lower() in profile.model.lower()
    )
    return CatalogListing(profiles=tuple(selected), hardware=(), models=(), engines=())


def tables(
    listing: Mapping[str, Sequence[Mapping[str, object]]],
) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Yield the header and rows of one table per group, with profiles grouped by model."""
    for group, entries in listing.items():
        facts = next((tuple(entry)[1:] for entry in entries if "problems" not in entry), ("problem",))
        if group == "profiles" and _MODEL in facts:
            facts = tuple(fact for fact in facts if fact != _MODEL)
            yield (group, *facts), list(_by_model(entries, facts))
        elif entries:
            yield (group, *facts), [_row(entry, facts) for entry in entries]


def _by_model(entries: Sequence[Mapping[str, object]], facts: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each model, followed by its profiles; invalid profiles come last."""
    ordered = sorted(entries, key=lambda entry: (_MODEL not in entry, str(entry.get(_MODEL, ""))))
    for model, group in groupby(ordered, lambda entry: str(entry.get(_MODEL, ""))):
        if model:
            yield (f"{model}:", *("" for _ in facts))
        for name, *cells in (_row(entry, facts) for entry in group):
            yield (f"  {name}" if model else name, *cells)


def _row(entry: Mapping[str, object], facts: Sequence[str]) -> tuple[str, ...]:
    cells = [str(entry.get(fact, "")) for fact in facts]
    problems = entry.get("problems")
    if isinstance(problems, tuple):
        cells[-1] = f"invalid: {'; '.join(problems)}"
    return (str(entry["name"]), *cells)


def _entries(
    kind: EntryKind, describe: Callable[[str, Catalog], Entry], catalog: Catalog
) -> tuple[Entry | InvalidEntry, ...]:
    entries: list[Entry | InvalidEntry] = []
    for name in catalog.names(kind):
        try:
            entries.append(describe(name, catalog))
        except ProfileError as error:
            problems = tuple(f"{item.message} ({item.location})" for item in error.problems_or_self())
            entries.append(InvalidEntry(name=name, problems=problems))
    return tuple(entries)


def _profile(name: str, catalog: Catalog) -> ProfileEntry:
    loaded = load(name, catalog=catalog)
    plan = loaded.plan
    return ProfileEntry(
        name=name,
        hardware=plan.hardware.name,
        model=plan.model.name,
        engine=plan.engine.name,
        layout=_layout(plan),
        runtime=plan.runtime,
        workload=loaded.profile.workload or DEFAULT_WORKLOAD,
        description=plan.description,
    )


def _layout(plan: Plan) -> str:
    """Abbreviate the layout: `tp4 dp2`, or `tp4 x2` for two replicas."""
    dp, replicas = plan.layout.dp, plan.replicas
    words = [f"tp{plan.layout.tp}", f"dp{dp}" * (dp > 1), f"x{replicas}" * (replicas > 1)]
    return " ".join(filter(None, [*words, f"on {plan.layout.nodes} nodes" * (plan.layout.nodes > 1)]))


def _hardware(name: str, catalog: Catalog) -> HardwareEntry:
    hardware = read_entry(catalog, EntryKind.HARDWARE, name, HardwareFile)
    return HardwareEntry(
        name=name,
        vendor=hardware.vendor,
        arch=hardware.arch,
        gpus=hardware.gpus,
        vram_gib=round(hardware.vram / 1024**3, 1),
    )


def _model(name: str, catalog: Catalog) -> ModelEntry:
    model = read_entry(catalog, EntryKind.MODEL, name, ModelFile)
    return ModelEntry(
        name=name,
        quantization=model.quantization,
        weights_gb=round(model.weights_size / 1e9, 3),
        context_length=model.context_length,
        checkpoint=f"{model.checkpoint.source} {model.checkpoint.path}",
    )


def _engine(name: str, catalog: Catalog) -> EngineEntry:
    engine = read_entry(catalog, EntryKind.ENGINE, name, EngineFile)
    return EngineEntry(
        name=name,
        version=engine.version,
        platform=engine.platform,
        runs_in=engine.image or engine.requirements or engine.python or "no image",
    )
