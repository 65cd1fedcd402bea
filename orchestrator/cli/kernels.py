"""`deploy kernels`: are the tuned MoE kernels there, do they fit, are they used."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from orchestrator.deploy.kernels import Covered
    from orchestrator.kernels.gate import GateReport
    from orchestrator.plan import Plan

group = typer.Typer(no_args_is_help=True, help="Tuned MoE kernels: coverage, tables, tuning, and what a log says.")

ProfileOption = Annotated[str, typer.Option("--profile", "-p", help="Name of a profile, or a profile file.")]
AnyProfileOption = Annotated[
    str | None, typer.Option("--profile", "-p", help="Name of a profile, or a file; default: all that ship.")
]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Override a value of the profile: key=value.")]
TableOption = Annotated[
    list[Path] | None, typer.Option("--table", help="Tuned table in CSV, in the order given; may be repeated.")
]
ImageOption = Annotated[str | None, typer.Option("--image", help="Read the tables that this image ships.")]
ModelOption = Annotated[
    Path | None, typer.Option("--model", help="Checkpoint directory: its config decides which key is looked up.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def register(app: typer.Typer) -> None:
    """Add the group to the program."""
    app.add_typer(group, name="kernels")


@group.command("coverage")
def coverage_command(
    profile: AnyProfileOption = None,
    overrides: SetOption = None,
    table: TableOption = None,
    image: ImageOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say for every bucket of tokens whether a tuned kernel answers; exit with 9 where the server would miss."""
    from orchestrator.cli.kernels_view import coverage_text
    from orchestrator.console import out, out_json
    from orchestrator.deploy.kernels import Given, cover, require_moe
    from orchestrator.errors import KernelsError
    from orchestrator.kernels.coverage import to_dict
    from orchestrator.paths import Home

    plans = _plans(profile, overrides or [])
    if profile:
        require_moe(plans[0])
    home = Home.from_environment()
    given = Given(tables=tuple(table or ()), image=image, model=model)
    covered = [cover(plan, given, home) for plan in plans]
    if as_json:
        out_json([{**to_dict(one.found), "tables": one.tables} for one in covered])
    else:
        out("\n\n".join(coverage_text(one) for one in covered))
    _require(covered, KernelsError)


def _plans(profile: str | None, overrides: list[str]) -> "list[Plan]":
    from orchestrator.catalog.profiles import load, profile_names
    from orchestrator.kernels.coverage import applies_to

    if profile:
        return [load(profile, overrides=overrides).plan]
    plans = [load(name, overrides=overrides).plan for name in profile_names()]
    return [plan for plan in plans if applies_to(plan)]


def _require(covered: "list[Covered]", error: type[Exception]) -> None:
    short = [one.found for one in covered if one.found.missing]
    if short:
        names = ", ".join(f"`{found.profile}` ({len(found.missing)} missing)" for found in short)
        raise error(f"no tuned kernel for every key of {names}")


@group.command("table")
def table_command(
    profile: ProfileOption,
    overrides: SetOption = None,
    table: TableOption = None,
    image: ImageOption = None,
    model: ModelOption = None,
    upstream: Annotated[
        bool, typer.Option("--upstream/--no-upstream", help="Take rows of the pinned upstream table too.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Build the one merged table that the server gets, and print its path.

    The image's own rows are read from the profile's image, or from copies of its tables given with `--table`.
    """
    from orchestrator.cli.kernels_view import table_text
    from orchestrator.console import out, out_json, say
    from orchestrator.deploy.kernels import Given, build_table
    from orchestrator.kernels.coverage import to_dict
    from orchestrator.paths import Home

    plan = _plans(profile, overrides or [])[0]
    given = Given(tables=tuple(table or ()), image=image, model=model)
    built = build_table(plan, given, Home.from_environment(), upstream=upstream)
    say(table_text(built))
    if as_json:
        origins = {origin.value: count for origin, count in built.table.origins.items()}
        out_json({"path": str(built.path), "rows": origins, "coverage": to_dict(built.found)})
    else:
        out(str(built.path))


@group.command("tune")
def tune_command(
    *,
    profile: ProfileOption,
    overrides: SetOption = None,
    table: TableOption = None,
    image: ImageOption = None,
    model: ModelOption = None,
    hours: Annotated[float, typer.Option("--hours", min=0.01, help="Stop after this time; what is done is kept.")] = 12,
    rekeyed: Annotated[bool, typer.Option("--rekeyed", help="Tune keys too that only a re-keyed row answers.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and the keys; start nothing.")] = False,
) -> None:
    """Run aiter's own tuner for the missing keys, on a host with the profile's GPU; go on where it was stopped."""
    from orchestrator.console import Progress, note, out, say
    from orchestrator.deploy.kernels import Given, prepare_tuning, run_tuning
    from orchestrator.errors import KernelsError
    from orchestrator.kernels.rows import write_untuned
    from orchestrator.paths import Home
    from orchestrator.shell import quote

    plan = _plans(profile, overrides or [])[0]
    given = Given(tables=tuple(table or ()), image=image, model=model)
    tuning = prepare_tuning(plan, given, Home.from_environment(), hours=hours, rekeyed=rekeyed)
    if not tuning.job.keys:
        note("every key has a row; nothing to tune")
        return
    if dry_run:
        say(quote(tuning.job.argv))
        out(write_untuned(tuning.job.keys))
        return
    progress = Progress()
    tuned = run_tuning(tuning, lambda done, wanted: progress.update(f"tuning: {done} of {wanted} keys have a row"))
    progress.done()
    say(f"{len(tuned.kept)} rows measured and kept, {len(tuned.remaining)} keys without one")
    if tuned.remaining or tuned.problems:
        raise KernelsError(
            "the tuning is not complete", problems=tuned.problems, hint="run the same command again to go on"
        )
    note(f"next: `deploy kernels table --profile {profile}`, and measure accuracy with the new table before using it")


@group.command("log")
def log_command(
    path: Annotated[str, typer.Argument(help="A server's log, or `-` for stdin.")] = "-",
    untuned: Annotated[
        Path | None, typer.Option("--untuned", help="Write the misses here as input for the tuner.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict-kernels", help="Exit with 9 on a miss.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Read a server's log: which keys were found in the tuned table, which were not."""
    from orchestrator.console import out, out_json, say
    from orchestrator.errors import KernelsError
    from orchestrator.tuning.files import write_atomic

    report = _read_log(path)
    if as_json:
        out_json(report.to_dict())
    else:
        out(report.summary)
    if untuned and report.untuned:
        write_atomic(untuned, report.untuned)
        say(f"the missed keys are in `{untuned}`")
    if strict and (report.misses or not report.seen):
        raise KernelsError(f"keys missed: {len(report.misses)}" if report.misses else "the log names no lookup")


def _read_log(path: str) -> "GateReport":
    from orchestrator.errors import UsageError
    from orchestrator.kernels.gate import GateReader

    reader = GateReader()
    try:
        with sys.stdin.buffer if path == "-" else Path(path).open("rb") as log:
            reader.feed_chunks(iter(lambda: log.read(1 << 20), b""))
    except OSError as error:
        raise UsageError(f"`{path}` cannot be read: {error.strerror}") from error
    return reader.report()
