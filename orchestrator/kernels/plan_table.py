"""Tuned kernels of a plan: the table for its server, and the report on their use in its log."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from orchestrator.core.console import info, note, warn
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
from orchestrator.kernels.plan_coverage import (
    RowSources,
    experts_of_checkpoint,
    needs_table,
    require_moe,
    tables_in_image,
)
from orchestrator.kernels.rows import RowOrigin
from orchestrator.kernels.table import Table, assemble
from orchestrator.kernels.triton import TRITON_HINT, TritonReport, triton_report, uses_triton_configs
from orchestrator.plan.plan import Plan
from orchestrator.render.dockerfile import base_reference
from orchestrator.runs.run_dir import RunDir


def make_table(plan: Plan, home: Home, find_sources: Callable[[], RowSources], *, allow_untuned: bool) -> bool:
    """Build the table of the plan's server if it is missing or outdated; return whether it was built.

    `find_sources` finds the tables of the runtime's engine. Raises the errors of `build_table` and `find_sources`,
    unless `allow_untuned`.
    """
    store = Store.of(home, plan)
    if not needs_table(plan) or store.is_fresh(plan):
        return False
    info("building the table of tuned MoE kernels from built-in, measured and upstream rows")
    try:
        built = build_table(plan, find_sources(), home, upstream=True)
    except (KernelsError, BuildError) as error:
        if allow_untuned:
            warn(f"cannot build the table of tuned kernels: {error.message}", hint=error.hint)
            return False
        error.hint = "; or ".join(filter(None, [error.hint, "`--allow-untuned` starts without it"]))
        raise
    note(f"tuned kernels {built.path}: {built.coverage.summary}")
    return True


@dataclass(frozen=True, kw_only=True)
class BuiltTable:
    """A written table and its coverage."""

    path: Path
    table: Table
    coverage: Coverage

    @property
    def summary(self) -> str:
        """The rows and the coverage, in lines."""
        return "\n".join([self.table.summary, *(f"{key.label} ({key.summary})" for key in self.coverage.keys)])


def build_table(plan: Plan, sources: RowSources, home: Home, *, upstream: bool) -> BuiltTable:
    """Write the table of the plan's server and its companion of origins.

    Rows come from the image, by default the profile's (pulled if missing), or from copies of its tables; from the store
    of measured rows; and with `upstream`, from the pinned upstream table. The image's rows are required, because the
    server reads no other file. Raises KernelsError if the plan uses no table, BuildError if the image cannot be pulled
    or read, ProfileError for invalid pins.
    """
    require_moe(plan)
    commit = plan.engine.aiter_commit
    image_rows = [replace(row, origin=RowOrigin.IMAGE) for row in read_tables(sources.tables)]
    if image := sources.image or (None if sources.tables else _base_image(plan, sources.remote)):
        shipped = tables_in_image(plan, image, sources.remote)
        commit = shipped.aiter_commit or commit
        image_rows += shipped.rows
    pins = read_pins()
    rows = [*Store.of(home, plan, commit).measured_rows(), *image_rows]
    if upstream:
        path = upstream_file(pins.upstream, home.kernels / "upstream")
        source = f"aiter {pins.upstream.commit[:12]} {pins.upstream.name}"
        upstream_rows = read_tables([path], origin=RowOrigin.UPSTREAM)
        rows += [replace(row, location=f"{source}:{row.location.rpartition(':')[2]}") for row in upstream_rows]
    names = pins.names_of(commit)
    table = assemble(plan, rows, names=names)
    checkpoint = experts_of_checkpoint(plan, sources, home)
    written = Store.of(home, plan).write(plan, table.rows)  # the path that `build` and `up` read
    covered = coverage_of(
        plan, table.rows, checkpoint=checkpoint, names=names, aiter_commit=commit, tables=str(written)
    )
    return BuiltTable(path=written, table=table, coverage=covered)


def _base_image(plan: Plan, remote: str | None) -> str:
    """Return the base of the plan's image; pull it if missing."""
    try:
        ensure_base(find_docker(remote), plan.engine)
    except DeployError as error:
        error.hint = f"{error.hint}; or pass copies of its tables with `--table`"
        raise
    return base_reference(plan.engine)


def kernel_report(log: Iterable[str], plan: Plan) -> GateReport | TritonReport | None:
    """Return the report on tuned kernels (aiter or Triton) in a log; None if the plan looks up none."""
    if uses_tuned_table(plan):
        return gate_report(log)
    return triton_report(log) if uses_triton_configs(plan) else None


def kernel_gate(log: Iterable[str], *, plan: Plan, run: RunDir, strict: bool) -> None:
    """Report hits and misses of tuned kernels in the log; do nothing if the plan looks up none.

    Saves the report next to the log, and aiter's missed keys as input for its tuner. With `strict`, raises KernelsError
    on a miss. Large prefill buckets are looked up late, so `smoke` and `bench` check again.
    """
    report = kernel_report(log, plan)
    if report is None:
        return
    run.save("kernels.json", asdict(report))
    text = f"kernels: {report.summary}"
    if not report.misses:
        note(text)
        return
    hint = TRITON_HINT if isinstance(report, TritonReport) else _aiter_hint(report, run)
    if strict:
        raise KernelsError(text, hint=hint)
    warn(text, hint=hint)


def _aiter_hint(report: GateReport, run: RunDir) -> str:
    """Save the missed keys as input for the tuner; return the next commands."""
    untuned = atomic_write(run.path / "untuned.csv", report.tuner_input)
    return (
        "`deploy kernels coverage PROFILE` shows the gap, `deploy kernels build PROFILE` adds known rows, "
        f"`deploy kernels tune PROFILE` measures the others; missed keys: {untuned}"
    )
