"""Coverage of a plan by tuned kernels, computed before a start."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.checkpoint import Checkpoint, local_checkpoint
from orchestrator.checkpoints.schemes import FLOATS
from orchestrator.checkpoints.verify import checkpoint_directory, known_mismatches
from orchestrator.core.command_hints import expand_commands, profile_words
from orchestrator.core.console import note, warn
from orchestrator.core.errors import KernelsError, Problem
from orchestrator.core.paths import Home
from orchestrator.kernels.coverage import Coverage, coverage_of, queries_aiter_tables, uses_tuned_table
from orchestrator.kernels.disk.experts import read_experts
from orchestrator.kernels.disk.files import read_tables, require_readable
from orchestrator.kernels.disk.image import ImageTables, read_image
from orchestrator.kernels.disk.pins import Pins, read_pins
from orchestrator.kernels.disk.store import Store
from orchestrator.kernels.keys import Key, rank_shapes
from orchestrator.kernels.rows import RowOrigin, TunedRow, read_rows
from orchestrator.kernels.table import builtin_rows, expected_rows
from orchestrator.plan.facts import MoeCheckpoint
from orchestrator.plan.plan import Moe, Plan
from orchestrator.render.dockerfile import base_reference


@dataclass(frozen=True, kw_only=True)
class RowSources:
    """Optional sources of rows: tables named by the user, an image, a checkpoint's directory."""

    tables: tuple[Path, ...] = ()
    image: str | None = None
    model: Path | None = None
    remote: str | None = None  # Docker host that has the image; None: local
    aiter_commit: str | None = None  # None: the plan's


NO_SOURCES: Final = RowSources()
TABLE_PATCH: Final = "aiter-fp4-moe-table"
TUNING_HOURS: Final = 12.0  # limit for aiter's tuner, without a published duration
_LISTED: Final = 6  # maximum token counts in a hint
TUNE: Final = "`deploy kernels tune PROFILE` on a node with these GPUs"


def compute_coverage(plan: Plan, sources: RowSources, home: Home) -> Coverage:
    """Compute the coverage of a plan by the given tables, else its built table, else the table that `up` would build.

    The last is known for the pinned aiter commits. A given or staged checkpoint determines the fused shape; without a
    checkpoint, both shapes count.
    """
    checkpoint = experts_of_checkpoint(plan, sources, home)
    shapes = set(rank_shapes(plan, checkpoint.moe if checkpoint else None))
    commit = sources.aiter_commit or plan.engine.aiter_commit
    built = Store.of(home, plan, commit).table(plan)
    rows: list[TunedRow] = []
    names = []
    if sources.image:
        shipped = tables_in_image(plan, sources.image, sources.remote)
        commit = shipped.aiter_commit or commit
        rows += shipped.rows
        names.append(f"{shipped.files} files in `{sources.image}`")
    paths = sources.tables
    if not paths and not sources.image and built.is_file():
        paths = (built,)
    rows += read_tables(paths, keep=lambda row: row.key.shape in shapes)
    names += [f"`{path}`" for path in paths]
    pins = read_pins()
    if not names:
        rows, names = _known_rows(plan, home, pins, checkpoint.moe if checkpoint else None)
    tables = ", ".join(names) or "no table"
    coverage = coverage_of(
        plan, rows, checkpoint=checkpoint, names=pins.names_of(commit), aiter_commit=commit, tables=tables
    )
    return coverage if names else replace(coverage, keys=(), unknown=_how_to_check(plan))


def _known_rows(plan: Plan, home: Home, pins: Pins, moe: Moe | None) -> tuple[list[TunedRow], list[str]]:
    """Return the rows that a server will use, and their sources, without reading an image; no sources: unknown.

    The rows come from an image that was read earlier; else, for FP8, from the pins of its aiter, and for MXFP4, from
    all sources of the table that `up` builds.
    """
    shapes = set(rank_shapes(plan, moe))
    image = base_reference(plan.engine) if plan.engine.image else None
    shipped = Store.at(home, None, image).image_rows(keep=lambda row: row.key.shape in shapes)
    names = [] if shipped is None else [f"tables of `{image}`, read by `deploy add engine`"]
    rows = shipped or []
    if not uses_tuned_table(plan):
        if not names and (tokens := pins.builtin_tokens(plan)) is not None:
            return [*builtin_rows(plan, tokens, moe)], [f"tables of {_aiter_label(plan)}"]
        return rows, names
    if pinned := pins.names_of(plan.engine.aiter_commit):
        rows += expected_rows(plan, pins.upstream_keys, pinned, moe)
    if pinned or names:
        built = "not built; `deploy kernels build PROFILE` builds it with at least these rows"
        return [*Store.of(home, plan).measured_rows(), *rows], [expand_commands(built), *names]
    return [], []


def _how_to_check(plan: Plan) -> str:
    image = base_reference(plan.engine) if plan.engine.image else "IMAGE"
    also = ", and so does `deploy up`" if needs_table(plan) else ""
    command = f"deploy kernels coverage {profile_words(plan.profile)} --image {image}"
    return f"unknown for {_aiter_label(plan)}; `{command}` reads the image{also}"


def needs_table(plan: Plan) -> bool:
    """Return whether the plan's server uses a table of tuned kernels instead of aiter's own."""
    return uses_tuned_table(plan) and any(use.id == TABLE_PATCH for use in plan.patches)


def report_coverage(
    plan: Plan, home: Home, sources: RowSources = NO_SOURCES, *, before: Sequence[str] = ()
) -> tuple[str, ...]:
    """Print the coverage of the plan before a start; return its lines, none if its server looks up no kernels.

    Lines already printed for an earlier plan of the start, `before`, are not repeated.
    """
    text, derived = coverage_texts(plan, home, sources)
    lines = tuple(filter(None, (text and f"tuned kernels of `{plan.profile}`: {text}", derived)))
    for line in lines:
        if line not in before:
            note(line)
    return lines


def coverage_texts(plan: Plan, home: Home, sources: RowSources = NO_SOURCES) -> tuple[str, str]:
    """Format the coverage of the plan, and the command that measures its derived kernels, each in one line.

    Empty if the server looks up no kernels, or no derived kernels.
    """
    if not queries_aiter_tables(plan):
        return "", ""
    if uses_tuned_table(plan) and not needs_table(plan):
        return f"aiter's own tables only, without `{TABLE_PATCH}`", ""
    covered = compute_coverage(plan, sources, home)
    if covered.unknown or not needs_table(plan):
        return covered.unknown or covered.summary, ""
    required = "; `deploy up` requires tuned kernels" if covered.untuned_in_workload else ""
    return f"{covered.summary}{required}", derived_hint(plan, covered)


def table_coverage(plan: Plan, table: bytes) -> str:
    """Return the coverage of the plan's keys by a table. Raises KernelsError with every invalid row."""
    covered = _coverage_of_table(plan, table)
    return "; ".join(f"{key.label}: {key.counts} of {len(key.buckets)}" for key in covered.keys)


def check_table(plan: Plan, table: bytes, home: Home, *, allow_untuned: bool) -> None:
    """Print the coverage by an image's table.

    Raises KernelsError, like a start of the image, if the plan's workload has batches without a tuned kernel.
    """
    covered = _coverage_of_table(plan, table, experts_of_checkpoint(plan, NO_SOURCES, home))
    note(f"tuned kernels of the table: {covered.summary}")
    if untuned := covered.untuned_in_workload:
        message = f"no tuned MoE kernel in the table for batches of {', '.join(map(str, untuned))} tokens"
        hint = f"{TUNE}; `deploy kernels build PROFILE` makes a table of every known kernel"
        if not allow_untuned:
            raise KernelsError(message, hint=f"{hint}; or `--allow-untuned`")
        warn(message, hint=hint)


def _coverage_of_table(plan: Plan, table: bytes, checkpoint: MoeCheckpoint | None = None) -> Coverage:
    problems: list[Problem] = []
    lines = table.decode(errors="replace").splitlines()
    rows = [*read_rows(lines, name="table", origin=RowOrigin.FILE, problems=problems)]
    require_readable(problems)
    return coverage_of(plan, rows, checkpoint=checkpoint, names=read_pins().names_of(plan.engine.aiter_commit))


def derived_hint(plan: Plan, covered: Coverage) -> str:
    """Return the command that measures the derived kernels of a coverage; "" if there are none."""
    if not (keys := covered.derived_keys):
        return ""
    tune = TUNE.replace("PROFILE", "PROFILE --retune-derived")
    return f"derived kernels were never measured for this key; {tune}: {_tuning_cost(plan, keys)}"


def require_tuned(
    plan: Plan, home: Home, sources: RowSources = NO_SOURCES, *, tune: str = TUNE, allow: str | None = "--allow-untuned"
) -> None:
    """Raise KernelsError if the plan's workload has batches without a tuned kernel.

    A plan with unknown coverage passes, as does a plan without the table patch.
    """
    if problem := untuned_problem(plan, home, sources, tune=tune, allow=allow):
        raise KernelsError(problem.message, location=problem.location, hint=problem.hint)


def untuned_problem(
    plan: Plan,
    home: Home,
    sources: RowSources = NO_SOURCES,
    *,
    tune: str = TUNE,
    allow: str | None = "deploy up PROFILE --allow-untuned",
) -> Problem | None:
    """Return the problem of batches in the plan's workload without a tuned kernel, with commands that help.

    `tune` measures the kernels, `allow` starts the server without them. None without such batches, or if the coverage
    is unknown.
    """
    if not needs_table(plan):
        return None
    covered = compute_coverage(plan, sources, home)
    if not (untuned := covered.untuned_in_workload):
        return None
    hint = f"{tune}: {_tuning_cost(plan, covered.untuned_keys)}"
    return Problem(
        f"no tuned MoE kernel for batches of `{plan.profile}`: {', '.join(map(str, untuned))} tokens",
        location=f"engine `{plan.engine.name}`, {_aiter_label(plan)}",
        hint=f"{hint}; or `{allow}`" if allow else hint,
    )


def warn_untuned(plan: Plan, home: Home) -> bool:
    """Warn of batches for which `deploy up` rejects the plan; return whether there are any.

    The coverage of a prebuilt image is unknown.
    """
    problem = None if plan.prebuilt_image else untuned_problem(plan, home)
    if problem:
        warn(problem.message, hint=problem.hint)
    return problem is not None


def _tuning_cost(plan: Plan, keys: Sequence[Key]) -> str:
    """Format the maximum tuning time, and its price if published."""
    from orchestrator.bench.published import price_book  # noqa: PLC0415 - a start needs no report

    counts = sorted({key.token for key in keys})
    tokens = ", ".join(map(str, counts)) if len(counts) <= _LISTED else f"{counts[0]} to {counts[-1]}"
    longest = f"{len(keys)} keys of {tokens} tokens, at most {TUNING_HOURS:.0f} hours (no duration is published)"
    price, source = price_book(()).gpu_price(plan.hardware.name)
    if price is None:
        return longest
    hourly = price * plan.hardware.gpus
    return f"{longest}, {hourly:.2f} USD each, up to {hourly * TUNING_HOURS:.0f} USD ({source})"


def tuning_options(plan: Plan) -> tuple[str, ...] | None:
    """Return the options of `deploy kernels tune` for the plan's workload; None if every batch has a tuned kernel.

    Independent of this host: ignores measured rows and checkpoints. Derived rows count as untuned if the server looks
    up only the unfused shape.
    """
    names = read_pins().names_of(plan.engine.aiter_commit)
    if not needs_table(plan) or names is None:
        return None
    coverage = coverage_of(plan, expected_rows(plan, read_pins().upstream_keys, names), names=names)
    if coverage.derived_keys:
        return ("--retune-derived",)
    return () if coverage.untuned_in_workload else None


def _aiter_label(plan: Plan) -> str:
    return f"aiter {plan.engine.aiter_commit[:12]}" if plan.engine.aiter_commit else "the aiter of its image"


def warn_mismatches(plans: Sequence[Plan], sources: RowSources, home: Home) -> None:
    """Warn of mismatches between each plan's given or staged checkpoint and its config."""
    staged = (checkpoint_directory(plan.model, home) for plan in plans)
    for folder in [sources.model] if sources.model else dict.fromkeys(staged):
        for mismatch in known_mismatches(folder) if folder.is_dir() else ():
            warn(f"{folder.name}: {mismatch.message}", hint=mismatch.hint)


def experts_of_checkpoint(plan: Plan, sources: RowSources, home: Home) -> MoeCheckpoint | None:
    """Return the experts of the given or else the staged checkpoint, or None."""
    folder = sources.model or checkpoint_directory(plan.model, home)
    checkpoint = Checkpoint.local(folder) if sources.model else local_checkpoint(folder)
    return read_experts(checkpoint) if checkpoint else None


def has_unquantized_experts(folder: Path) -> bool:
    """Return whether a checkpoint stores routed experts as floats, for which aiter has no tuned table."""
    return read_experts(Checkpoint.local(folder)).routed_dtype in FLOATS


def tables_in_image(plan: Plan, image: str, remote: str | None = None) -> ImageTables:
    """Read the tables and the aiter commit of an image; warn if the plan pins another commit."""
    if plan.engine.aiter_dir is None:
        raise KernelsError(
            f"the engine of `{plan.profile}` has no aiter",
            location=f"engine {plan.engine.name}: aiter_dir",
            hint="only a ROCm engine has kernel tables",
        )
    shipped = read_image(image, plan.engine.aiter_dir, remote)
    if (commit := shipped.aiter_commit) not in {None, plan.engine.aiter_commit}:
        warn(
            f"`{image}` has aiter {commit}; the engine of `{plan.profile}` pins {plan.engine.aiter_commit}",
            hint=f"`--set engine.aiter_commit={commit}` with this image, and for `deploy up PROFILE`",
        )
    return shipped


def require_moe(plan: Plan) -> None:
    """Raise KernelsError if the plan's server runs no fused MXFP4 experts with aiter."""
    if not uses_tuned_table(plan):
        raise KernelsError(
            f"`{plan.profile}` does not use aiter's fused MXFP4 experts",
            hint="`deploy kernels coverage` without a profile lists the profiles that do",
        )
