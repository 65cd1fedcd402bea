"""`deploy add profile`: a profile that fits a model on a node, with a reason for each setting."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from packaging.version import Version

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import Problem, ProfileError, UsageError
from orchestrator.core.files import atomic_write
from orchestrator.core.origin import Origin
from orchestrator.core.paths import Home
from orchestrator.core.text import gb
from orchestrator.core.validation import read_entry, read_file
from orchestrator.core.yaml_document import Data
from orchestrator.engine.architectures import PARSERS
from orchestrator.engine.options import Meaning, Tie, ties
from orchestrator.plan.capacity import DEFAULT_WORKLOAD, Capacity, context_shortage, graph_requests
from orchestrator.plan.plan import NAME
from orchestrator.plan.propose import (
    DoesNotFitError,
    LayoutAttempt,
    common_problems,
    inherited_flags,
    layouts,
    longest_context,
    require_host_memory,
    shortfall,
)
from orchestrator.plan.rules import VENDOR_OF, image_arch
from orchestrator.plan.serving import profile_serving
from orchestrator.planner.add.file import require_free
from orchestrator.planner.planning import ENTRY_KINDS, LoadedProfile, read_draft, read_profile
from orchestrator.profiles.schema import EngineFile, HardwareFile, Profile
from orchestrator.profiles.settings import Scalar
from orchestrator.profiles.yaml_writer import YamlLine, yaml_text

_MEASURED: Final = {
    Meaning.METRICS: "the smoke test and bench read them",
    Meaning.CACHED_TOKENS_REPORT: "the smoke test and bench read cached tokens",
}
_SECTIONS: Final = ("layout", "flags", "env")  # in the order of a profile


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """The input of `deploy add profile`: catalog entries by name, a base profile, the longest request in tokens."""

    model: str
    hardware: str
    gpus: int | None = None  # GPUs of the node; None: all
    containers: bool = True  # False: no image engine by default
    base: str | None = None
    engine: str | None = None
    workload: str | None = None
    max_context: int | None = None
    host_memory: int | None = None  # memory of a CPU server in bytes; None: unknown


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A key of the profile, or an omitted setting, with the reason."""

    key: str
    value: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A proposed profile that plans without errors, with the choices behind it."""

    name: str
    text: str
    choices: tuple[Choice, ...]
    valid: LoadedProfile

    def rows(self) -> Iterator[list[str]]:
        """Yield key, value and reason of each choice, as table rows."""
        yield from ([choice.key, choice.value, choice.reason] for choice in self.choices)


@dataclass
class _Draft:
    """A profile under construction: its keys, its settings with reasons, and further choices."""

    name: str
    hardware: str
    path: Path
    catalog: Catalog
    keys: dict[str, Data] = field(default_factory=dict)
    settings: dict[tuple[str, str], tuple[Data, str]] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)

    def set(self, section: str, key: str, value: Data, reason: str) -> None:
        self.settings[section, key] = value, reason

    def ordered(self) -> list[tuple[tuple[str, str], tuple[Data, str]]]:
        """Return the settings, section by section."""
        return sorted(self.settings.items(), key=lambda item: _SECTIONS.index(item[0][0]))

    def copy(self) -> "_Draft":
        return replace(self, keys={**self.keys}, settings={**self.settings}, choices=[*self.choices])

    def text(self) -> str:
        lines = [YamlLine(path=(key,), value=value) for key, value in self.keys.items() if key != "timeouts"]
        for (section, key), (value, reason) in self.ordered():
            setting: Data = {"value": value, "origin": Origin.INFERRED.value, "note": reason}
            lines.append(YamlLine(path=(section, key), value=setting))
        if isinstance(timeouts := self.keys.get("timeouts"), dict):
            lines += [YamlLine(path=("timeouts", key), value=value) for key, value in timeouts.items()]
        head = [
            "yaml-language-server: $schema=profile.schema.json",
            f"{self.name}, proposed by `deploy add profile`; not measured.",
        ]
        return yaml_text(head, lines)

    def valid(self) -> LoadedProfile:
        return read_draft(self.text(), self.path, self.catalog)


def write_proposal(proposal: Proposal, home: Home) -> Path:
    """Write a profile into the home's catalog."""
    return atomic_write(_path(proposal.name, home), proposal.text)


def propose_profile(request: ProfileRequest, home: Home, *, name: str | None, replace_it: bool = False) -> Proposal:
    """Propose a profile with the smallest sufficient `tp` and as many DP ranks as fit on the node.

    Raises UsageError for a used or invalid name; ProfileError for a missing catalog entry, and for a model that does
    not fit, with the numbers of each layout.
    """
    catalog = Catalog.of(home)
    for entry_key in ("model", "hardware"):
        catalog.path(ENTRY_KINDS[entry_key], getattr(request, entry_key))
    name = _free_name(name or default_name(request, catalog), home, replace_it=replace_it)
    base = _base(request, _Draft(name=name, hardware=request.hardware, path=_path(name, home), catalog=catalog))
    first = base.copy()
    first.set("layout", "tp", 1, "")
    profile = first.valid().profile
    _adopt_flags(request, base, profile)
    context = request.max_context or profile.model.context_length  # tokens of the longest request
    attempts: list[LayoutAttempt] = []
    for tp in layouts(profile.hardware.gpus):
        draft, attempt = _try(base.copy(), profile, tp)
        attempts.append(attempt)
        if not shortfall(attempt, context):
            _explain(draft, attempts, context, attempt.capacity)
            valid = draft.valid()
            if request.host_memory is not None and attempt.capacity is not None and attempt.capacity.memory is None:
                require_host_memory(profile.model, valid.capacity, request.host_memory, name=request.model)
            return Proposal(name=name, text=draft.text(), choices=tuple(_sorted_choices(draft)), valid=valid)
    raise _does_not_fit(request, attempts, context)


def _path(name: str, home: Home) -> Path:
    return home.root / EntryKind.PROFILE.file(name)


def default_name(request: ProfileRequest, catalog: Catalog) -> str:
    """Return the default profile name: `h200-MODEL`, or `h200x2-MODEL` for two of the node's GPUs."""
    whole_node = request.gpus in {None, read_node(catalog, request.hardware).gpus}
    node = request.hardware if whole_node else f"{request.hardware}x{request.gpus}"
    return re.sub(r"[^a-z0-9]*([._-])[^a-z0-9]*", r"\1", f"{node}-{request.model}".lower()).strip("._-")


def _free_name(name: str, home: Home, *, replace_it: bool) -> str:
    if not NAME.match(name):
        hint = "`--name NAME`, with lower-case letters and digits, separated by single `.`, `_` or `-`"
        raise UsageError(f"invalid profile name `{name}`", hint=hint)
    if not replace_it:
        require_free(EntryKind.PROFILE, name, home)
    return name


def _base(request: ProfileRequest, draft: _Draft) -> _Draft:
    """Set catalog entries, runtime and workload: as requested, from the base profile, or suitable for the hardware."""
    like = read_profile(request.base, catalog=draft.catalog) if request.base else None
    engine, reason = _engine(request, like, read_node(draft.catalog, request.hardware), draft.catalog)
    same_engine = like is not None and like.composed.names["engine"] == engine
    draft.keys["description"] = ""  # set first for its position in the file; the text depends on the layout
    if like is not None and same_engine:
        draft.keys["runtime"] = like.profile.runtime
    elif _read_entry(draft.catalog, "engine", engine).get("requirements"):
        draft.keys["runtime"] = "process"
    workload = request.workload or (like.profile.workload if like else None)
    if workload:
        draft.keys["workload"] = workload
    hardware = _hardware(request, draft.catalog)
    draft.keys |= {"hardware": hardware, "model": request.model, "engine": engine}
    if isinstance(hardware, dict):  # otherwise a Slurm job would allocate the whole node
        draft.keys["slurm"] = {"exclusive": False}
    if like is not None:
        draft.keys["timeouts"] = dict(like.profile.timeouts.model_dump())
    draft.choices.append(Choice(key="engine", value=engine, reason=reason))
    reason = "as requested" if request.workload else f"from `{request.base}`"
    if not workload:
        reason = "the default of `bench`; requests have no limit; `workload: NAME` sets both"
    draft.choices.append(Choice(key="workload", value=workload or DEFAULT_WORKLOAD, reason=reason))
    return draft


def _hardware(request: ProfileRequest, catalog: Catalog) -> Data:
    """Return the value of `hardware`: the entry, and the number of GPUs unless all are used. Raises UsageError."""
    count = read_node(catalog, request.hardware).gpus
    if request.gpus is not None and not min(count, 1) <= request.gpus <= count:
        raise UsageError(f"`{request.hardware}` has {count} GPUs, not {request.gpus}", hint=f"at most `--gpus {count}`")
    return {"use": request.hardware, "gpus": request.gpus} if request.gpus not in {None, count} else request.hardware


def _read_entry(catalog: Catalog, key: str, name: str) -> Mapping[str, Data]:
    path = catalog.path(ENTRY_KINDS[key], name)
    return read_file(path, catalog.display_path(path)).data


def _engine(
    request: ProfileRequest, like: LoadedProfile | None, node: HardwareFile, catalog: Catalog
) -> tuple[str, str]:
    """Return the requested engine, the base profile's engine, or the newest for these GPUs.

    Prefers images to wheels; among the images of a version, the first by name is the usual ROCm line.
    """
    if request.engine:
        catalog.path(EntryKind.ENGINE, request.engine)
        return request.engine, "as requested"
    inherited = like.composed.names["engine"] if like is not None else ""
    candidates: list[tuple[Version, bool, str]] = []
    for name in catalog.names(EntryKind.ENGINE):
        engine = read_entry(catalog, EntryKind.ENGINE, name, EngineFile)
        usable = engine.requirements or engine.python or (request.containers and engine.image)
        if (
            usable
            and (name == inherited or _is_for(request.model, engine, catalog))
            and VENDOR_OF.get(engine.platform) == node.vendor
            and image_arch(engine.image or "") in {None, node.arch}
        ):
            candidates.append((Version(engine.version), engine.image is not None, name))
    if any(name == inherited for *_, name in candidates):
        return inherited, f"from `{request.base}`"
    if not candidates:
        raise ProfileError(f"no engine found for {node.arch} ({node.vendor})", hint="`deploy profiles` lists engines")
    *newest, _ = max(candidates)
    return min(name for *version, name in candidates if version == newest), f"the newest in the catalog for {node.arch}"


def _is_for(model: str, engine: EngineFile, catalog: Catalog) -> bool:
    """Return whether an engine suits this model: an image tag without the version is for the model that it names.

    Models are compared by layers, attention heads and experts, not by name.
    """
    tag = engine.image.rpartition(":")[2] if engine.image and not engine.requirements else engine.version
    if engine.version in tag:
        return True
    shapes = {name: _shape(name, catalog) for name in catalog.names(EntryKind.MODEL) if tag in name and name != model}
    return _shape(model, catalog) in shapes.values() if shapes else tag in model


def _shape(model: str, catalog: Catalog) -> tuple[object, ...]:
    return tuple(map(_read_entry(catalog, "model", model).get, ("layers", "attention_heads", "moe")))


def read_node(catalog: Catalog, name: str) -> HardwareFile:
    """Return a hardware entry. Raises ProfileError."""
    return read_entry(catalog, EntryKind.HARDWARE, name, HardwareFile)


def _adopt_flags(request: ProfileRequest, draft: _Draft, model: Profile) -> None:
    """Set the base profile's flags and variables that suit this model, the flags of smoke tests, and the context."""
    if request.base:
        like = read_profile(request.base, catalog=draft.catalog)
        table = draft.copy()
        table.set("layout", "tp", 1, "")
        options = tuple(table.valid().table.flags)
        base_flags = [name for name in like.profile.flags if _is_own(like, "flags", name)]
        omitted = inherited_flags(like.profile, base_flags, model=model, options=options)
        for name in base_flags:
            if name not in omitted:
                draft.set("flags", name, _plain(like.profile.flags[name].value), f"from `{request.base}`")
            else:
                draft.choices.append(Choice(key=f"flags.{name}", value="left out", reason=omitted[name]))
        for name in like.profile.env:
            if _is_own(like, "env", name):
                draft.set("env", name, _plain(like.profile.env[name].value), f"from `{request.base}`")
    for name in PARSERS:
        if flag := model.flags.get(name):
            draft.choices.append(
                Choice(key=f"flags.{name}", value=str(flag.value), reason=flag.source or "the model's")
            )
    for meaning, reason in _MEASURED.items():
        draft.settings.setdefault(("flags", meaning.value), (True, reason))
    if request.max_context and request.max_context < model.model.context_length:
        draft.set("flags", Meaning.CONTEXT, request.max_context, "the longest request that it accepts")


def _is_own(like: LoadedProfile, section: str, name: str) -> bool:
    """Return whether the profile itself, and not a catalog entry, sets this key."""
    location = like.composed.location((section, name)).rpartition(":")[0]
    files = [like.catalog.find(kind, like.composed.names[entry_key]) for entry_key, kind in ENTRY_KINDS.items()]
    return location not in {like.catalog.display_path(path) for path in files if path is not None}


def _try(draft: _Draft, profile: Profile, tp: int) -> tuple[_Draft, LayoutAttempt]:
    """Set `tp`, `dp` and memory flags for `tp` GPUs per DP rank; return the draft and the result."""
    dp = max(profile.hardware.gpus // tp, 1)
    draft.set("layout", "tp", tp, "the fewest GPUs with enough memory")
    if dp > 1:
        draft.set("layout", "dp", dp, f"of the node's {profile.hardware.gpus} GPUs")
    draft.keys["description"] = f"{profile.model.served_name} on {draft.hardware}{_many(profile, tp, dp)}"
    valid = draft.valid()
    memory = valid.capacity.memory
    if memory is not None and memory.safe_fraction > 0:
        reason = f"leaves activations and graphs {gb(memory.activation_bytes)}; an estimate"
        draft.set("flags", Meaning.MEMORY_FRACTION, memory.safe_fraction, reason)
        valid = draft.valid()
    if memory is None:
        capped = (valid.capacity.context, "one request of full length; sglang would take all memory of the host")
        draft.settings.setdefault(("flags", Meaning.CACHE_TOKENS.value), capped)
        valid = draft.valid()
    served = valid.capacity.load_fit
    if memory is not None and served is not None and served.concurrent:
        max_running = graph_requests(valid.profile, profile_serving(valid.profile))
        running = min(served.concurrent, max_running) if max_running else served.concurrent
        by = "fit" if running == served.concurrent else "sglang captures graphs for"
        draft.set("flags", Meaning.RUNNING_REQUESTS, running, f"as many of `{served.load}` as {by}")
        valid = draft.valid()
    try:
        valid.build()
    except ProfileError as error:
        short = {problem.message for problem in context_shortage(valid.capacity, lambda *_: "")}  # `shortfall` tells it
        if problems := tuple(problem for problem in error.problems_or_self() if problem.message not in short):
            return draft, LayoutAttempt(tp=tp, capacity=None, problems=problems)
    return draft, LayoutAttempt(tp=tp, capacity=valid.capacity, problems=())


def _many(profile: Profile, tp: int, dp: int) -> str:
    gpus = f"{tp} GPU{'s' * (tp > 1)}"
    return f", {dp} DP ranks of {gpus}" if dp > 1 else f", {gpus}" * bool(profile.hardware.gpus)


def _explain(draft: _Draft, attempts: Sequence[LayoutAttempt], context: int, capacity: Capacity | None) -> None:
    """Record why the chosen layout is the smallest."""
    cache = capacity.cache if capacity else None
    if capacity is not None and capacity.memory is None:
        note = "one process"
    elif cache is None or cache.tokens is None:
        reason = "" if capacity is None else "; ".join(capacity.unknown[:1])
        note = f"the fewest GPUs that hold the weights; {reason or 'only a start shows the size of its cache'}"
    else:
        note = f"the fewest GPUs whose cache holds {context:,} tokens: {cache.tokens:,}"
    draft.set("layout", "tp", attempts[-1].tp, note)
    for item in attempts[:-1]:
        draft.choices.append(Choice(key=f"tp {item.tp}", value="too small", reason=shortfall(item, context)))
    drafts = not draft.keys.get("model") or any(Tie.DRAFTS in ties(key) for _, key in draft.settings)
    if not drafts and (layer := draft.valid().profile.model.mtp_layer) is not None:
        note = f"layer {layer} can draft; to use it, `--base` a profile with speculative decoding"
        draft.choices.append(Choice(key="speculation", value="left out", reason=note))


def _sorted_choices(draft: _Draft) -> Iterator[Choice]:
    proposed = {f"{section}.{key}" for section, key in draft.settings}
    for (section, key), (value, reason) in draft.ordered():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield Choice(key=f"{section}.{key}", value=text.lower() if value is True else text, reason=reason)
    yield from (choice for choice in draft.choices if choice.key not in proposed)


def _does_not_fit(request: ProfileRequest, attempts: Sequence[LayoutAttempt], context: int) -> ProfileError:
    if common := common_problems(attempts):
        message = f"cannot plan a profile of `{request.model}` on `{request.hardware}`"
        return ProfileError(message, problems=[Problem(item.message, hint=item.hint) for item in common])
    hint, max_running = "choose other hardware, or a checkpoint with a smaller quantization", longest_context(attempts)
    if max_running:
        hint = f"limit requests to {max_running} tokens with `--max-context {max_running}`; or choose other hardware"
    return DoesNotFitError(
        f"`{request.model}` does not fit on `{request.hardware}`",
        problems=[Problem(f"tp {item.tp}: {shortfall(item, context)}") for item in attempts],
        hint=hint,
        max_tokens=max_running,
    )


def _plain(value: Scalar | list[Scalar]) -> Data:
    return [*value] if isinstance(value, list) else value
