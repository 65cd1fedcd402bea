"""`deploy profiles`: the entries of the catalog; an invalid entry is listed with its problem."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import ProfileError
from orchestrator.core.validation import read_model
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import load
from orchestrator.profiles.schema import EngineFile, HardwareFile, ModelFile

Entry: TypeAlias = dict[str, object]
"""The name and the facts of an entry, or its name and `problems`."""


def catalog_listing(catalog: Catalog) -> dict[str, list[Entry]]:
    """List profiles, hardware, models and engines."""
    about: Mapping[str, tuple[EntryKind, Callable[[str, Catalog], Entry]]] = {
        "profiles": (EntryKind.PROFILE, _profile),
        "hardware": (EntryKind.HARDWARE, _hardware),
        "models": (EntryKind.MODEL, _model),
        "engines": (EntryKind.ENGINE, _engine),
    }
    return {
        group: [_entry(name, describe, catalog) for name in catalog.names(kind)]
        for group, (kind, describe) in about.items()
    }


def tables(found: Mapping[str, Sequence[Entry]]) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Yield the header and the rows of one table per group."""
    for group, entries in found.items():
        facts = next((tuple(entry)[1:] for entry in entries if "problems" not in entry), ("problem",))
        yield (group, *facts), [_row(entry, facts) for entry in entries]


def _row(entry: Entry, facts: Sequence[str]) -> tuple[str, ...]:
    cells = [str(entry.get(fact, "")) for fact in facts]
    problems = entry.get("problems")
    if isinstance(problems, list):
        cells[-1] = f"invalid: {'; '.join(problems)}"
    return (str(entry["name"]), *cells)


def _entry(name: str, describe: Callable[[str, Catalog], Entry], catalog: Catalog) -> Entry:
    try:
        return {"name": name, **describe(name, catalog)}
    except ProfileError as error:
        return {"name": name, "problems": [f"{each.message} ({each.location})" for each in error.problems_or_self()]}


def _profile(name: str, catalog: Catalog) -> Entry:
    plan = load(name, catalog=catalog).plan
    return {
        "hardware": plan.hardware.name,
        "model": plan.model.name,
        "engine": plan.engine.name,
        "layout": _layout(plan),
        "runtime": plan.runtime,
        "description": plan.description,
    }


def _layout(plan: Plan) -> str:
    """Return the layout in short: `tp4 dp2`, or `tp4 x2` for two replicas."""
    dp, replicas = plan.layout.dp, plan.replicas
    return f"tp{plan.layout.tp}" + (f" dp{dp}" if dp > 1 else "") + (f" x{replicas}" if replicas > 1 else "")


def _hardware(name: str, catalog: Catalog) -> Entry:
    path = catalog.path(EntryKind.HARDWARE, name)
    hardware = read_model(path, HardwareFile, catalog.shown(path))
    return {
        "vendor": hardware.vendor,
        "arch": hardware.arch,
        "gpus": hardware.gpus,
        "vram_gib": round(hardware.vram / 1024**3, 1),
    }


def _model(name: str, catalog: Catalog) -> Entry:
    path = catalog.path(EntryKind.MODEL, name)
    model = read_model(path, ModelFile, catalog.shown(path))
    return {
        "quantization": model.quantization,
        "weights_gb": round(model.weights_size / 1e9, 3),
        "context_length": model.context_length,
        "checkpoint": f"{model.checkpoint.source} {model.checkpoint.path}",
    }


def _engine(name: str, catalog: Catalog) -> Entry:
    path = catalog.path(EntryKind.ENGINE, name)
    engine = read_model(path, EngineFile, catalog.shown(path))
    return {
        "version": engine.version,
        "platform": engine.platform,
        "runs in": engine.image or engine.requirements or engine.python or "",
    }
