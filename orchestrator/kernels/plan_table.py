"""Tuned kernels of a plan: the table its server gets, and whether its log says they were used."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.core.console import note, say, warn
from orchestrator.core.errors import BuildError, DeployError, KernelsError
from orchestrator.core.files import atomic_write
from orchestrator.core.paths import Home
from orchestrator.images.base import ensure_base
from orchestrator.images.client import find_docker
from orchestrator.kernels.coverage import Coverage, coverage_of, uses_tuned_table
from orchestrator.kernels.disk.files import read_tables
from orchestrator.kernels.disk.pins import read_pins
from orchestrator.kernels.disk.store import Store
from orchestrator.kernels.disk.upstream import upstream_file
from orchestrator.kernels.log_gate import GateReport, gate_report
from orchestrator.kernels.plan_coverage import RowSources, needs_table, require_moe, staged_moe, tables_in_image
from orchestrator.kernels.rows import RowOrigin
from orchestrator.kernels.table import Table, assemble
from orchestrator.kernels.triton import TritonReport, asks_triton, triton_report
from orchestrator.plan.plan import Plan
from orchestrator.render.dockerfile import base_reference
from orchestrator.runs.run_dir import RunDir


def make_table(plan: Plan, home: Home, given: Callable[[], RowSources], *, allow_untuned: bool) -> bool:
    """Build the table that the plan's server gets, where there is none, or it is older than what was measured.

    `given` finds the tables that the runtime's engine ships, where one is built. Returns whether it was. Raises as
    `build_table`, and what `given` raises, unless untuned kernels are accepted.
    """
    store = Store.of(home, plan)
    if not needs_table(plan) or store.is_fresh(plan):
        return False
    say("building the table of tuned MoE kernels: those of its aiter, what was measured, and aiter's newer ones")
    try:
        built = build_table(plan, given(), home, upstream=True)
    except (KernelsError, BuildError) as error:
        if allow_untuned:
            warn(f"no table of tuned kernels: {error.message}", hint=error.hint)
            return False
        error.hint = "; or ".join(filter(None, [error.hint, "`--allow-untuned` starts without"]))
        raise
    note(f"tuned kernels {built.path}: {built.found.line}")
    return True


@dataclass(frozen=True, kw_only=True)
class BuiltTable:
    """A table that was written, and what it answers."""

    path: Path
    table: Table
    found: Coverage

    @property
    def summary(self) -> str:
        """What it holds, and which keys it answers, in lines."""
        return "\n".join([self.table.summary, *(f"{one.title} ({one.summary})" for one in self.found.keys)])


def build_table(plan: Plan, given: RowSources, home: Home, *, upstream: bool) -> BuiltTable:
    """Write the one table that the plan's server gets, with its companion of origins.

    Rows come from the image, by default the profile's (pulled where it is missing), or else from copies of its tables;
    from the store of measured rows; and, where `upstream`, from the pinned upstream table. The server will read no
    other file, so a table without the image's rows is not built. Raises KernelsError for a plan that asks for no such
    table, BuildError for an image that cannot be pulled.
    """
    require_moe(plan)
    commit = plan.engine.aiter_commit
    own = [replace(row, origin=RowOrigin.IMAGE) for row in read_tables(given.tables)]
    if image := given.image or (None if given.tables else _own_image(plan, given.far)):
        shipped = tables_in_image(plan, image, given.far)
        commit = shipped.aiter_commit or commit
        own += shipped.rows
    pins = read_pins()
    rows = [*Store.of(home, plan, commit).measured(), *own]
    if upstream:
        path = upstream_file(pins.upstream, home.kernels / "upstream", without=", or go without it: `--no-upstream`")
        place = f"aiter {pins.upstream.commit[:12]} {pins.upstream.name}"
        found = read_tables([path], origin=RowOrigin.UPSTREAM)
        rows += [replace(row, where=f"{place}:{row.where.rpartition(':')[2]}") for row in found]
    names = pins.names_of(commit)
    table = assemble(plan, rows, names=names)
    checkpoint = staged_moe(plan, given, home)
    written = Store.of(home, plan).write(plan, table.rows)  # where `build` and `up` look for it
    covered = coverage_of(plan, table.rows, checkpoint=checkpoint, names=names, aiter_commit=commit)
    return BuiltTable(path=written, table=table, found=covered)


def _own_image(plan: Plan, far: str | None) -> str:
    """The image the plan's own is built on, pulled where it is missing."""
    try:
        ensure_base(find_docker(far), plan.engine)
    except DeployError as error:
        error.hint = f"{error.hint}; or give copies of its tables with `--table`"
        raise
    return base_reference(plan.engine)


def kernel_report(log: Iterable[str], plan: Plan) -> GateReport | TritonReport | None:
    """What the log says of tuned kernels, aiter's or Triton's; None for a plan that looks none up."""
    if uses_tuned_table(plan):
        return gate_report(log)
    return triton_report(log) if asks_triton(plan) else None


def kernel_gate(log: Iterable[str], *, plan: Plan, run: RunDir, strict: bool) -> None:
    """Read the log for hits and misses and say what was missed; nothing for a plan without such kernels.

    Keeps the report beside the log, and aiter's missed keys as its tuner's input. Raises KernelsError on a miss where
    `strict`. Large prefill buckets are looked up late: `smoke` and `bench` look again.
    """
    report = kernel_report(log, plan)
    if report is None:
        return
    run.save("kernels.json", report.to_dict())
    text = f"kernels: {report.summary}"
    if not report.misses:
        note(text)
        return
    hint = _untuned_triton() if isinstance(report, TritonReport) else _untuned(report, run)
    if strict:
        raise KernelsError(text, hint=hint)
    warn(text, hint=hint)


def _untuned(report: GateReport, run: RunDir) -> str:
    """What to do about missed keys, which are written down for the tuner."""
    untuned = atomic_write(run.path / "untuned.csv", report.untuned)
    return (
        "`deploy kernels coverage PROFILE` shows the gap, `deploy kernels build PROFILE` fills what is known, "
        f"`deploy kernels tune PROFILE` measures the rest; the missed keys: {untuned}"
    )


def _untuned_triton() -> str:
    """What to do about configurations that are missing."""
    return (
        "`deploy kernels tune PROFILE` measures them with sglang's own tuner once the GPU is free, and says "
        "how the server is given them"
    )
