"""`deploy kernels`: are the tuned MoE kernels there, do they fit, are they used."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from orchestrator.cli.options import HostOption, Json, ProfileArgument, SetOption, complete_names, image_name
from orchestrator.cli.typer_app import PREPARE, add, below
from orchestrator.core.console import Progress, note, print_data, print_json, say
from orchestrator.core.console import table as table_of
from orchestrator.core.errors import KernelsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from orchestrator.kernels.log_gate import GateReport
    from orchestrator.plan.plan import Plan

TableOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--table", metavar="FILE", help="a tuned table in CSV; may be repeated, in this order"),
]
ImageOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--image", metavar="IMAGE", callback=image_name, help="read the tables that this image ships"),
]
ModelOption: TypeAlias = Annotated[
    Path | None, typer.Option("--model", metavar="DIR", help="a checkpoint: its config decides which key is looked up")
]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    group = below(app, "kernels", section=PREPARE, text="Tuned MoE kernels: coverage, tables, tuning, use.")
    add(group, coverage, table, tune, log)


def coverage(
    *,
    profile: Annotated[
        str | None,
        typer.Argument(
            metavar="PROFILE",
            help="a profile's name, or a file; default: all",
            autocompletion=complete_names("PROFILE"),
        ),
    ] = None,
    tables: TableOption = None,
    image: ImageOption = None,
    model: ModelOption = None,
    host: HostOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Show whether a tuned kernel answers each bucket of tokens. Exit code 9 if the server would miss one."""
    from os import environ

    from orchestrator.core.paths import Home
    from orchestrator.hosts.daemon import remote_host
    from orchestrator.kernels.plan_coverage import RowSources, compute_coverage, note_mismatches

    if host is not None and image is None:
        raise UsageError("`--host` is for `--image`", hint="tables and checkpoints are read on this machine")
    home, far = Home.from_environment(), remote_host(host, environ)
    given = RowSources(tables=tuple(tables or ()), image=image, model=model, far=far)
    plans = _plans(profile, set_ or ())
    note_mismatches(plans, given, home)
    covered = [compute_coverage(plan, given, home) for plan in plans]
    if json:
        print_json([one.to_dict() for one in covered])
    else:
        print_data("\n\n".join(one.to_text() for one in covered))
    if short := [one for one in covered if one.missing]:
        names = ", ".join(f"`{one.found.profile}` ({one.missing} missing)" for one in short)
        hint = "`deploy kernels table PROFILE` fills what is known, `deploy kernels tune PROFILE` measures the rest"
        if not any(one.tabled for one in short):
            hint = "aiter chooses a kernel by heuristics there; tables are made and tuned for MXFP4 alone"
        raise KernelsError(f"no tuned kernel for every key of {names}", hint=hint)


def _plans(profile: str | None, overrides: "Sequence[str]") -> "list[Plan]":
    """The plan of that profile, else those of all profiles that have such kernels."""
    from orchestrator.kernels.coverage import queries_aiter_tables
    from orchestrator.kernels.plan_coverage import require_moe
    from orchestrator.planner.planning import load, usable_plans

    if profile is None:
        return [plan for plan in usable_plans(overrides) if queries_aiter_tables(plan)]
    plan = load(profile, overrides=overrides).plan
    if not queries_aiter_tables(plan):
        require_moe(plan)
    return [plan]


def table(
    *,
    profile: ProfileArgument,
    tables: TableOption = None,
    image: ImageOption = None,
    model: ModelOption = None,
    upstream: Annotated[
        bool, typer.Option("--upstream/--no-upstream", help="also take rows of the pinned upstream table")
    ] = True,
    host: HostOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Build the merged table that the server gets, and print its path.

    The image's own rows are read from the profile's image, or from copies of its tables given with `--table`.
    """
    from orchestrator.core.paths import Home
    from orchestrator.kernels.coverage import to_dict
    from orchestrator.kernels.plan_coverage import RowSources
    from orchestrator.kernels.plan_table import build_table
    from orchestrator.planner.planning import load
    from orchestrator.servers.start.host import host_ref

    if host is not None and tables:
        raise UsageError("`--host` is where the image is read", hint="without it, tables are read on this machine")
    plan, home = load(profile, overrides=set_ or ()).plan, Home.from_environment()
    far = host_ref(plan.runtime, home, host).far
    given = RowSources(tables=tuple(tables or ()), image=image, model=model, far=far)
    built = build_table(plan, given, home, upstream=upstream)
    say(built.summary)
    if json:
        origins = {origin.value: count for origin, count in built.table.origins.items()}
        print_json({"path": str(built.path), "rows": origins, "coverage": to_dict(built.found)})
    else:
        print_data(str(built.path))


def tune(
    *,
    profile: ProfileArgument,
    tables: TableOption = None,
    image: ImageOption = None,
    model: ModelOption = None,
    hours: Annotated[
        float, typer.Option(min=0.01, metavar="HOURS", help="stop after this long; what is done is kept")
    ] = 12,
    rekeyed: Annotated[
        bool, typer.Option("--rekeyed", help="aiter: also tune keys that only a re-keyed row answers")
    ] = False,
    tokens: Annotated[
        str, typer.Option(metavar="N,N", help="for these counts of tokens; default: all, on CUDA the tuner's own 18")
    ] = "",
    every: Annotated[
        bool, typer.Option("--every", help="CUDA: try the tuner's 1,920 configurations, not only those sglang ships")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the command and the keys, and stop")] = False,
    set_: SetOption = None,
) -> None:
    """Run the engine's own tuner for what is missing: aiter's, or sglang's for Triton on CUDA.

    On a host with the profile's GPU, while nothing else uses it; goes on where it was stopped.
    """
    from orchestrator.core.paths import Home
    from orchestrator.core.subprocesses import quote
    from orchestrator.kernels.plan_coverage import RowSources
    from orchestrator.kernels.rows import write_untuned
    from orchestrator.kernels.triton import asks_triton
    from orchestrator.kernels.tuning import prepare_tuning, run_tuning
    from orchestrator.planner.planning import load

    plan = load(profile, overrides=set_ or ()).plan
    counts = _counts(tokens)
    if asks_triton(plan):
        _tune_triton(plan, counts, every=every, hours=hours, dry_run=dry_run)
        return
    given = RowSources(tables=tuple(tables or ()), image=image, model=model)
    tuning = prepare_tuning(plan, given, Home.from_environment(), hours=hours, rekeyed=rekeyed, tokens=counts)
    if not tuning.job.keys:
        note("every key has a row; nothing to tune")
        return
    if dry_run:
        say(quote(tuning.job.argv))
        print_data(write_untuned(tuning.job.keys))
        return
    with _progress("keys have a row") as progress:
        tuned = run_tuning(tuning, progress)
    say(f"{len(tuned.kept)} rows measured and kept, {len(tuned.remaining)} keys without one")
    if tuned.remaining or tuned.problems:
        raise KernelsError(
            "the tuning is not complete", problems=tuned.problems, hint="run the same command again to go on"
        )
    note("next: `deploy kernels table PROFILE`, and measure accuracy with the new table before using it")


def _tune_triton(plan: "Plan", tokens: "Sequence[int]", *, every: bool, hours: float, dry_run: bool) -> None:
    """The CUDA side of `tune`."""
    from orchestrator.core.paths import Home
    from orchestrator.core.subprocesses import quote
    from orchestrator.kernels.disk.triton_tuner import VARIABLE
    from orchestrator.kernels.tuning import prepare_triton_tuning, run_triton_tuning

    home = Home.from_environment()
    job = prepare_triton_tuning(plan, home, tokens=tokens, every=every, hours=hours)
    if dry_run:
        print_data(quote(job.command))
        return
    with _progress("counts of tokens are tuned") as progress:
        tuned = run_triton_tuning(job, home, progress)
    rows = [
        (str(one.tokens), f"{one.untuned_us:.1f}", f"{one.us:.1f}", f"{one.untuned_us / one.us:.2f} x")
        for one in tuned.kept
    ]
    print_data(table_of(("tokens", "today, us", "tuned, us", "faster"), rows))
    if tuned.remaining or tuned.problems:
        raise KernelsError(
            f"the tuning is not complete: {len(tuned.remaining)} counts of tokens are left",
            problems=tuned.problems,
            hint="run the same command again to go on",
        )
    note(f"next: `deploy up PROFILE --set env.{VARIABLE}={job.target}`")


def _counts(text: str) -> list[int]:
    """`8,64` as numbers. Raises UsageError."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isdecimal() and int(word) for word in words):
        raise UsageError(f"`{text}` is no list of counts", hint="give whole numbers with commas: `--tokens 8,64,2048`")
    return [int(word) for word in words]


@contextmanager
def _progress(what: str) -> "Iterator[Callable[[int, int], None]]":
    progress = Progress()
    try:
        yield lambda done, wanted: progress.update(f"tuning: {done} of {wanted} {what}")
    finally:
        progress.done()


def log(
    path: Annotated[str, typer.Argument(metavar="LOGFILE", help="a server's log, or - for stdin")] = "-",
    *,
    untuned: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write the misses there, as input for the tuner")
    ] = None,
    strict_kernels: Annotated[bool, typer.Option("--strict-kernels", help="exit code 9 on a miss")] = False,
    json: Json = False,
) -> None:
    """Show which keys a log says were found in the tuned table."""
    from orchestrator.core.files import atomic_write

    report = _read_log(path)
    if json:
        print_json(report.to_dict())
    else:
        print_data(report.summary)
    if untuned and report.untuned:
        try:
            atomic_write(untuned, report.untuned)
        except OSError as error:
            raise UsageError(f"`{untuned}` cannot be written: {error.strerror}") from error
        say(f"the missed keys are in `{untuned}`")
    if strict_kernels and (report.misses or not report.seen):
        raise KernelsError(f"keys missed: {len(report.misses)}" if report.misses else "the log names no lookup")


def _read_log(path: str) -> "GateReport":
    import sys

    from orchestrator.kernels.log_gate import GateReader

    reader = GateReader()
    try:
        with sys.stdin.buffer if path == "-" else Path(path).open("rb") as log:
            reader.feed_chunks(iter(lambda: log.read(1 << 20), b""))
    except OSError as error:
        raise UsageError(f"`{path}` cannot be read: {error.strerror}") from error
    return reader.report()
