"""Is every batch that a plan's server meets answered by a tuned kernel? Asked before the node is paid for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.checkpoint import Checkpoint, local_checkpoint
from orchestrator.checkpoints.verify import checkpoint_directory, known_mismatches
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.command_hints import expand_commands
from orchestrator.core.console import note, warn
from orchestrator.core.errors import KernelsError
from orchestrator.core.paths import Home
from orchestrator.core.validation import read_file
from orchestrator.kernels.coverage import (
    Coverage,
    coverage_of,
    queries_aiter_tables,
    to_dict,
    to_text,
    uses_tuned_table,
)
from orchestrator.kernels.disk.experts import read_experts
from orchestrator.kernels.disk.files import read_tables
from orchestrator.kernels.disk.image import ImageTables, read_image
from orchestrator.kernels.disk.pins import Pins, read_pins
from orchestrator.kernels.disk.store import Store
from orchestrator.kernels.keys import rank_shapes
from orchestrator.kernels.rows import TunedRow
from orchestrator.kernels.table import expected_rows, own_rows
from orchestrator.plan.facts import MoeCheckpoint
from orchestrator.plan.plan import Moe, Plan
from orchestrator.render.dockerfile import base_reference


@dataclass(frozen=True, kw_only=True)
class RowSources:
    """Where rows are read from: tables named by the user, an image, a checkpoint's folder; each may be absent."""

    tables: tuple[Path, ...] = ()
    image: str | None = None
    model: Path | None = None
    far: str | None = None  # the Docker host that the image is on; None: this machine's
    aiter_commit: str | None = None  # that was found; None: the one that the plan pins


NOTHING_GIVEN: Final = RowSources()
TABLE_PATCH: Final = "aiter-fp4-moe-table"
TUNING_HOURS: Final = 12.0  # after which aiter's tuner is stopped; nobody has said in public how long it takes


@dataclass(frozen=True, kw_only=True)
class PlanCoverage:
    """A coverage, and the tables it was computed from, in words."""

    found: Coverage
    tables: str
    known: bool  # False: only the image can tell, which nobody has looked into
    look: str  # how to find out
    tabled: bool  # whether a table is made for it: for MXFP4

    @property
    def missing(self) -> int:
        """How many keys the server would miss, as far as is known."""
        return len(self.found.missing) if self.known else 0

    def to_dict(self) -> dict[str, object]:
        """As JSON-able data; what is not known is null, and has no keys."""
        told = {**to_dict(self.found), "tables": self.tables, "known": self.known}
        return told if self.known else {**told, "missing": None, "missed_by_load": None, "keys": []}

    def to_text(self) -> str:
        """The coverage of each key; where it is not known, how to find out."""
        if self.known:
            return to_text(self.found, tables=self.tables)
        found = self.found
        return f"{found.profile}: {found.layout} on {found.gpu}\ntuned kernels are {self.look}"


def compute_coverage(plan: Plan, given: RowSources, home: Home) -> PlanCoverage:
    """Coverage of a plan by the tables given, else by the table built for it, else by the one that `up` would build.

    What that one would hold is known for the aiter commits this tool knows. The key follows from the checkpoint given,
    else from the one that is staged, else both count.
    """
    checkpoint = staged_moe(plan, given, home)
    shapes = set(rank_shapes(plan, checkpoint.moe if checkpoint else None))
    commit = given.aiter_commit or plan.engine.aiter_commit
    built = Store.of(home, plan, commit).table(plan)
    rows: list[TunedRow] = []
    names = []
    if given.image:
        shipped = tables_in_image(plan, given.image, given.far)
        commit = shipped.aiter_commit or commit
        rows += shipped.rows
        names.append(f"{shipped.files} files in `{given.image}`")
    paths = given.tables
    if not paths and not given.image and built.is_file():
        paths = (built,)
    rows += read_tables(paths, keep=lambda row: row.key.shape in shapes)
    names += [f"`{path}`" for path in paths]
    pins = read_pins()
    if not names:
        rows, names = _beforehand(plan, home, pins, checkpoint.moe if checkpoint else None)
    known = pins.names_of(commit)
    return PlanCoverage(
        found=coverage_of(plan, rows, checkpoint=checkpoint, names=known, aiter_commit=commit),
        tables=", ".join(names) or "no table",
        known=bool(names),
        look=_look(plan),
        tabled=uses_tuned_table(plan),
    )


def _beforehand(plan: Plan, home: Home, pins: Pins, moe: Moe | None) -> tuple[list[TunedRow], list[str]]:
    """The rows that a server will find, and whence they are known, without looking into an image; no words for unknown.

    Those of an image that was read once; for FP8 else those of an aiter that is known; for MXFP4 all that goes into the
    table which `up` builds.
    """
    shapes = set(rank_shapes(plan, moe))
    image = base_reference(plan.engine) if plan.engine.image else None
    shipped = Store.at(home, None, image).shipped(keep=lambda row: row.key.shape in shapes)
    names = [] if shipped is None else [f"those of `{image}`, as `deploy add engine` read them"]
    rows = shipped or []
    if not uses_tuned_table(plan):
        if not names and (own := pins.own_keys(plan)) is not None:
            return [*own_rows(plan, own, moe)], [f"those that come with {_aiter(plan)}, as its repository has them"]
        return rows, names
    if known := pins.names_of(plan.engine.aiter_commit):
        rows += expected_rows(plan, pins.upstream_keys, known, moe)
    if known or names:
        built = "none yet; `deploy up PROFILE` or `deploy kernels build PROFILE` builds one that holds at least this"
        return [*Store.of(home, plan).measured(), *rows], [expand_commands(built), *names]
    return [], []


def _look(plan: Plan) -> str:
    image = base_reference(plan.engine) if plan.engine.image else "IMAGE"
    looking = f"`deploy kernels coverage {plan.profile} --image {image}` looks into its image"
    on_the_way = ", and `deploy up` does on the way" if needs_table(plan) else ""
    return f"not known for {_aiter(plan)}; {looking}{on_the_way}"


def needs_table(plan: Plan) -> bool:
    """Whether the plan's server is given a table of tuned kernels; one that leaves it out reads aiter's own."""
    return uses_tuned_table(plan) and any(use.id == TABLE_PATCH for use in plan.patches)


def report_coverage(plan: Plan, home: Home, given: RowSources = NOTHING_GIVEN) -> None:
    """Say what is known of the plan's tuned kernels before a start; nothing for a plan that asks for none."""
    if text := coverage_text(plan, home, given):
        note(f"tuned kernels of `{plan.profile}`: {text}")


def coverage_text(plan: Plan, home: Home, given: RowSources = NOTHING_GIVEN) -> str:
    """Return what is known of the plan's tuned kernels before a start; empty for a plan that asks for none."""
    if not queries_aiter_tables(plan):
        return ""
    if uses_tuned_table(plan) and not needs_table(plan):
        return f"aiter's own tables alone, without `{TABLE_PATCH}`"
    covered = compute_coverage(plan, given, home)
    refused = (
        "; `deploy up` refuses that" if needs_table(plan) and covered.known and covered.found.missed_by_load else ""
    )
    return f"{covered.found.line if covered.known else covered.look}{refused}"


def require_covered(plan: Plan, home: Home, given: RowSources = NOTHING_GIVEN, *, may_allow: bool = True) -> None:
    """Raise KernelsError for a plan whose own load would meet batches without a tuned kernel, with the ways out.

    A plan of which only its image can tell passes, and one that leaves the table out: that was meant.
    """
    if not needs_table(plan):
        return
    covered = compute_coverage(plan, given, home)
    if not covered.known or not (missed := covered.found.missed_by_load):
        return
    covering = [f"`--set engine={name}`, whose aiter has them" for name in _covering_engines(plan)]
    tune = f"`deploy kernels tune PROFILE` on a node of this kind: {_tuning_costs(plan)}"
    raise KernelsError(
        f"the load of `{plan.profile}` meets batches without a tuned MoE kernel: {', '.join(map(str, missed))} tokens",
        where=f"engine `{plan.engine.name}`, {_aiter(plan)}",
        hint="; or ".join([*covering, tune, *(["`--allow-untuned`"] if may_allow else [])]),
    )


def _tuning_costs(plan: Plan) -> str:
    """How long it may take, and for how much, where a price was published."""
    from orchestrator.bench.published import price_book  # noqa: PLC0415 - a report is nothing that a start needs

    longest = f"hours, {TUNING_HOURS:.0f} at most unless `--hours` says another limit"
    price, source = price_book(()).of(plan.hardware.name)
    if price is None:
        return longest
    hourly = price * plan.hardware.gpus
    return f"{longest}, {hourly:.2f} USD each, up to {hourly * TUNING_HOURS:.0f} USD ({source})"


def _covering_engines(plan: Plan) -> Iterator[str]:
    """The engines of the catalog, of the plan's platform, whose aiter has every kernel that its load meets."""
    catalog, pins = Catalog.from_environment(), read_pins()
    for name in catalog.names(EntryKind.ENGINE):
        engine = read_file(path := catalog.path(EntryKind.ENGINE, name), catalog.shown(path)).data
        names = pins.names_of(str(engine.get("aiter_commit")))
        if names is None or engine.get("platform") != plan.engine.platform:
            continue
        if not coverage_of(plan, expected_rows(plan, pins.upstream_keys, names), names=names).missed_by_load:
            yield name


def _aiter(plan: Plan) -> str:
    return f"aiter {plan.engine.aiter_commit[:12]}" if plan.engine.aiter_commit else "the aiter of its image"


def note_mismatches(plans: Sequence[Plan], given: RowSources, home: Home) -> None:
    """Say in what the checkpoint that is given, or staged for a plan, differs from its own config."""
    staged = (checkpoint_directory(plan.model, home) for plan in plans)
    for folder in [given.model] if given.model else dict.fromkeys(staged):
        for mismatch in known_mismatches(folder) if folder.is_dir() else ():
            warn(f"{folder.name}: {mismatch.message}", hint=mismatch.hint)


def staged_moe(plan: Plan, given: RowSources, home: Home) -> MoeCheckpoint | None:
    """The checkpoint named, else the one that is staged for the plan, else none."""
    folder = given.model or checkpoint_directory(plan.model, home)
    found = Checkpoint.local(folder) if given.model else local_checkpoint(folder)
    return read_experts(found) if found else None


def tables_in_image(plan: Plan, image: str, far: str | None = None) -> ImageTables:
    """Read the tables of an image, and the commit of the aiter that is really in there; warn of another one."""
    if plan.engine.aiter_dir is None:
        raise KernelsError(
            f"the engine of `{plan.profile}` has no aiter", where=f"engine {plan.engine.name}: aiter_dir"
        )
    shipped = read_image(image, plan.engine.aiter_dir, far)
    if (commit := shipped.aiter_commit) not in {None, plan.engine.aiter_commit}:
        warn(
            f"`{image}` holds aiter {commit}, the engine of `{plan.profile}` pins {plan.engine.aiter_commit}",
            hint=f"`--set engine.aiter_commit={commit}` with this image, also for `deploy up PROFILE`",
        )
    return shipped


def require_moe(plan: Plan) -> None:
    """Raise KernelsError for a plan whose server asks aiter for no MXFP4 experts."""
    if not uses_tuned_table(plan):
        raise KernelsError(
            f"the server of `{plan.profile}` asks aiter for no MXFP4 experts",
            hint="`deploy kernels coverage` without a profile shows the profiles that do",
        )
