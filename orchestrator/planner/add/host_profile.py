"""`deploy up --model`: a checkpoint's profile for the GPUs of a host."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.console import note
from orchestrator.core.errors import HostError, ProfileError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.validation import read_entry
from orchestrator.hosts.gpus import ALL_SECTIONS, inventories
from orchestrator.hosts.gpus.inventory import Gpu, GpuInventory, gib
from orchestrator.hosts.host_state import read_memory
from orchestrator.hosts.survey import HOST_SECTIONS, Runner, survey
from orchestrator.plan.propose import DoesNotFitError
from orchestrator.planner.add.model import add_model
from orchestrator.planner.add.profile import ProfileRequest, Proposal, default_name, propose_profile, write_proposal
from orchestrator.planner.planning import read_profile
from orchestrator.profiles.schema import HardwareFile, ModelFile

_STEP: Final = 1024  # tokens; a proposed context is rounded down to a multiple of this
_VRAM_TOLERANCE: Final = 0.97  # share: firmware reserves some of the data sheet's memory


@dataclass(frozen=True, kw_only=True)
class HostHardware:
    """A host's catalog entry and its number of GPUs; `docker` tells whether a Docker daemon is available.

    `memory` is the available memory of a host without GPUs, in bytes.
    """

    name: str
    gpus: int
    docker: bool
    memory: int | None = None


@dataclass(frozen=True, kw_only=True)
class HostProfile:
    """A profile by name; `proposal` is None if the profile existed. `similar` names other profiles of the model."""

    name: str
    hardware: HostHardware
    path: Path
    proposal: Proposal | None
    similar: tuple[str, ...]


def profile_on_host(
    repo_or_dir: str, home: Home, runner: Runner, environ: Mapping[str, str], *, gpus: int | None = None
) -> HostProfile:
    """Return a checkpoint's profile for the GPUs of the host behind `runner`; write a new profile if necessary.

    `repo_or_dir` is a directory or a repository of the hub. The profile uses the first `gpus` GPUs, by default all.

    Raises HostError if no hardware entry matches the host's GPUs, UsageError if the host has fewer than `gpus` GPUs,
    and the errors of `add_model` and `propose_profile`.
    """
    catalog = Catalog.of(home)
    hardware = detect_hardware(runner, catalog)
    if gpus is not None and gpus > hardware.gpus:
        raise UsageError(
            f"this host has {hardware.gpus} GPU{'s' * (hardware.gpus != 1)}, not {gpus}", hint="omit `--gpus`"
        )
    if (model := _model_of(repo_or_dir, catalog)) is None:
        added = add_model(repo_or_dir, home, name=_free_model_name(repo_or_dir, catalog), environ=environ)
        model = added.name
        for text in added.notes:
            note(text)
    request = ProfileRequest(
        model=model,
        hardware=hardware.name,
        gpus=hardware.gpus if gpus is None else gpus,
        containers=hardware.docker,
        host_memory=hardware.memory,
    )
    name = default_name(request, catalog)
    similar = tuple(profile for profile in _profiles_of(model, hardware.name, catalog) if profile != name)
    if path := catalog.find(EntryKind.PROFILE, name):
        return HostProfile(name=name, hardware=hardware, path=path, proposal=None, similar=similar)
    try:
        proposal = propose_profile(request, home, name=name)
    except DoesNotFitError as error:
        if (max_tokens := error.max_tokens // _STEP * _STEP) == 0:
            raise
        note(f"requests are limited to {max_tokens:,} tokens: the longest that fit")
        proposal = propose_profile(replace(request, max_context=max_tokens), home, name=name)
    path = write_proposal(proposal, home)
    return HostProfile(name=name, hardware=hardware, path=path, proposal=proposal, similar=similar)


def detect_hardware(runner: Runner, catalog: Catalog) -> HostHardware:
    """Return the hardware entry of a host. Raises HostError if none or several match, or if the GPUs differ."""
    host_survey = survey(runner, {**ALL_SECTIONS, "memory": HOST_SECTIONS["memory"]})
    inventory = next((inventory for inventory in inventories(host_survey) if inventory.gpus), None)
    # Without Docker, the proposal needs an engine with a requirements file. There is none for AMD.
    docker = (inventory is not None and inventory.vendor == "amd") or runner(("docker", "version")).ok
    if inventory is None:
        memory = read_memory(host_survey["memory"].text)
        return HostHardware(name="cpu", gpus=0, docker=docker, memory=memory.available if memory else None)
    return HostHardware(name=match_hardware(inventory, catalog), gpus=len(inventory.gpus), docker=docker)


def match_hardware(inventory: GpuInventory, catalog: Catalog) -> str:
    """Return the entry with the vendor, architecture and memory of these GPUs; the GPU's name breaks ties.

    Raises HostError if none or several match, or if the GPUs differ.
    """
    gpu = inventory.gpus[0]
    if len({(gpu.arch, gpu.vram_bytes) for gpu in inventory.gpus}) > 1:
        hint = "`deploy add profile --model MODEL --hardware NAME --gpus N` takes GPUs of one kind"
        raise HostError("the GPUs of this host differ", hint=hint)
    entries = dict(_entries(inventory, gpu, catalog))
    names = sorted(
        {name for name, entry in entries.items() if (entry.gpu_product or "") in (gpu.name or "")} or entries
    )
    if len(names) == 1:
        return names[0]
    label = f"{gpu.name or gpu.arch or 'unknown'}, {gib(gpu.vram_bytes or 0)}"
    if names:
        hint = f"`deploy add profile --model MODEL --hardware {names[0]}`"
        raise HostError(f"several hardware entries describe this host's GPUs ({label}): {', '.join(names)}", hint=hint)
    hint = "describe them in `$DEPLOY_HOME/profiles/hardware/NAME.yaml`"
    raise HostError(f"no hardware entry describes this host's GPUs: {label}", hint=hint)


def _entries(inventory: GpuInventory, gpu: Gpu, catalog: Catalog) -> Iterator[tuple[str, HardwareFile]]:
    """Yield the entries with this GPU's vendor and, if known, its architecture and memory."""
    for name in catalog.names(EntryKind.HARDWARE):
        entry = read_entry(catalog, EntryKind.HARDWARE, name, HardwareFile)
        size = entry.vram
        fits = gpu.vram_bytes is None or size * _VRAM_TOLERANCE <= gpu.vram_bytes <= size / _VRAM_TOLERANCE
        if entry.vendor == inventory.vendor and gpu.arch in {None, entry.arch} and fits:
            yield name, entry


def _free_model_name(repo_or_dir: str, catalog: Catalog) -> str:
    """Derive a name from the end of the checkpoint's path; add a digest if another checkpoint has that name."""
    last = re.sub(r"[^\w.+-]+", "-", Path(repo_or_dir).expanduser().absolute().name, flags=re.ASCII)
    name = last.strip("-.+").lower() or "model"
    exists = catalog.find(EntryKind.MODEL, name) is not None
    return f"{name}-{hashlib.sha256(repo_or_dir.encode()).hexdigest()[:8]}" if exists else name


def _model_of(repo_or_dir: str, catalog: Catalog) -> str | None:
    """Return the first model of the catalog with this checkpoint."""
    path = Path(repo_or_dir).expanduser()
    source = ("local", str(path.absolute())) if path.is_dir() else ("hub", repo_or_dir)
    for name in catalog.names(EntryKind.MODEL):
        with suppress(ProfileError):  # an invalid entry is reported on use
            checkpoint = read_entry(catalog, EntryKind.MODEL, name, ModelFile).checkpoint
            if (checkpoint.source, checkpoint.path) == source:
                return name
    return None


def _profiles_of(model: str, hardware: str, catalog: Catalog) -> Iterator[str]:
    """Yield the profiles of a model on this hardware."""
    for name in catalog.names(EntryKind.PROFILE):
        with suppress(ProfileError):
            names = read_profile(name, catalog=catalog).composed.names
            if (names["model"], names["hardware"]) == (model, hardware):
                yield name
