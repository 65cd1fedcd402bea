"""`deploy profiles`, `deploy show`, `deploy render`, `deploy schema`, `deploy flags`, `deploy lock`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import (
    GiveOption,
    ImageOption,
    Json,
    OnOption,
    ProfileArgument,
    RevisionOption,
    SetOption,
    named_files,
    overridden,
    runtime_names,
)
from orchestrator.cli.typer_app import LOOK_UP, PREPARE, add
from orchestrator.core.command_hints import set_invocation
from orchestrator.core.console import note, print_data, print_json, say, terminal_width
from orchestrator.core.safe_paths import RelativePath

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.plan.plan import Plan
    from orchestrator.render.artifacts import RenderedFile


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    add(app, profiles, show, schema, section=LOOK_UP)
    add(app, render, flags, lock, section=PREPARE)


def profiles(*, json: Json = False) -> None:
    """List profiles, and the hardware, models and engines they name."""
    from orchestrator.core.catalog import Catalog
    from orchestrator.core.console import table
    from orchestrator.planner.listing import catalog_listing, tables

    found = catalog_listing(Catalog.from_environment())
    if json:
        print_json(found)
    else:
        width = terminal_width()
        print_data("\n\n".join(table(header, rows, width=width) for header, rows in tables(found)))


def schema(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="profile, hardware, model, engine, workload, space or recipe")
    ] = "profile",
    *,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="write the schemas of all kinds there instead")
    ] = None,
) -> None:
    """Print the JSON Schema of a profile, or of another kind of file, for editors."""
    from orchestrator.cli.schemas import SCHEMAS, write_schemas
    from orchestrator.core.errors import UsageError
    from orchestrator.core.suggest import did_you_mean
    from orchestrator.profiles.json_schema import json_schema

    if kind not in SCHEMAS:
        raise UsageError(f"no schema `{kind}` found", hint=did_you_mean(kind, SCHEMAS))
    if output:
        print_data("\n".join(str(path) for path in write_schemas(output)))
    else:
        print_data(json_schema(kind, SCHEMAS[kind]))


def flags(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="a version of sglang, such as 0.5.17")],
    *,
    wheel: Annotated[Path | None, typer.Option(metavar="FILE", help="that version's; default: downloaded")] = None,
    python: Annotated[
        Path | None, typer.Option(metavar="FILE", help="an interpreter with sglang's dependencies; default: our own")
    ] = None,
) -> None:
    """Make the table of options that a version of sglang knows. Profiles on that version are checked against it."""
    from orchestrator.core.paths import Home
    from orchestrator.planner.flag_tables import write_flag_table

    print_data(str(write_flag_table(version, Home.from_environment(), wheel=wheel, python=python)))


def lock(
    *,
    profile: ProfileArgument,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="where it is written; default: PROFILE.lock.yaml")
    ] = None,
    revision: RevisionOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Resolve everything of a profile that could move, for `up --locked`: image, checkpoint, patches, tables, options.

    The hub and the image's registry are asked. What nobody answers for is unknown in the lock, with the reason.
    """
    from orchestrator.core.paths import Home
    from orchestrator.planner.lock import lock_output, resolve, write_lock

    path = lock_output(output, profile)
    found = resolve(profile, overridden(set_, revision=revision), Home.from_environment())
    write_lock(path, found)
    if json:
        print_json({"lock": str(path), "unknown": dict(found.unknown)})
        return
    say(f"wrote {path}")
    for what, why in found.unknown.items():
        note(f"it does not hold `{what}`: {why}")


def show(
    profile: ProfileArgument,
    *,
    explain: Annotated[
        bool, typer.Option("--explain", help="every value with its file and line, and its origin")
    ] = False,
    capacity: Annotated[
        bool, typer.Option("--capacity", help="what fits: weights, tokens of its cache, requests of its load")
    ] = False,
    on: OnOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Show what a profile decides."""
    from orchestrator.core.paths import Home
    from orchestrator.kernels.plan_coverage import report_coverage
    from orchestrator.planner.capacity import capacity_table, warn_capacity
    from orchestrator.planner.explain import explained, explained_table
    from orchestrator.planner.image_env import note_environment
    from orchestrator.planner.planning import load

    loaded = load(profile, overrides=overridden(set_, on=on))
    if capacity:
        found = loaded.valid.capacity
        warn_capacity(loaded.plan)
        if json:
            print_json({"profile": loaded.plan.profile, **found.to_dict()})
        else:
            print_data(capacity_table(found))
        return
    report_coverage(loaded.plan, home := Home.from_environment())
    note_environment(loaded.plan, home)
    if not loaded.plan.model.questions:
        note(
            f"model `{loaded.plan.model.name}` has no questions: the smoke test does not look whether answers are right"
        )
    if explain:
        rows = explained(loaded)
        if json:
            print_json([row.to_dict() for row in rows])
        else:
            print_data(explained_table(rows, width=terminal_width()))
    elif json:
        print_json({**loaded.plan.to_dict(), "digest": loaded.plan.digest})
    else:
        print_data(loaded.plan.to_json())


def render(
    *,
    profile: ProfileArgument,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="write the files there instead of printing them")
    ] = None,
    image: ImageOption = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="RUNTIME|BROKER",
            help="for that runtime, or for `skypilot` or `dstack`, which rent a machine and start it there",
            autocompletion=runtime_names,
        ),
    ] = None,
    tool: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="what installs this tool on a rented machine: a wheel, a folder, a URL"),
    ] = None,
    set_: SetOption = None,
    give: GiveOption = None,
    json: Json = False,
) -> None:
    """Render what would be started; needs no GPU, Docker or network.

    That is the plan, the server's command, and what its runtime takes: a build context and the `docker run` line, say,
    or manifests. They follow from the profile and the options alone: a table that this machine holds is
    named with `--give`, and an `--image` is taken at its word.
    """
    from orchestrator.core.errors import UsageError
    from orchestrator.core.paths import Home
    from orchestrator.images.sources import input_digests, read_inputs
    from orchestrator.kernels.plan_coverage import report_coverage
    from orchestrator.plan.facts import Facts
    from orchestrator.planner.cloud import rental_files
    from orchestrator.planner.planning import load, render_artifacts, rendered_files
    from orchestrator.planner.prebuilt import require_image
    from orchestrator.render.cloud.launchers import LAUNCHERS

    given, home = named_files("--give", give), Home.from_environment()
    if tool is not None and on not in LAUNCHERS:
        raise UsageError("`--tool` is for a rented machine", hint=f"`--on {'`, `--on '.join(LAUNCHERS)}`")
    if on is not None and on in LAUNCHERS:
        set_invocation(profile, set_ or (), None)
        if given or image:
            raise UsageError("`--give` and `--image` are not for a rented machine: `up` makes both there")
        plan, files = rental_files(on, profile, set_ or (), home, tool=tool)
    else:
        inputs = read_inputs(given)
        facts = Facts(inputs=input_digests(inputs), image=image)
        plan = load(profile, overrides=overridden(set_, on=on), facts=facts).plan
        if image:
            require_image(plan.runtime, image)
        files = rendered_files(render_artifacts(plan, inputs))
    report_coverage(plan, home)
    _hand_over(plan, files, output, json=json)


def _hand_over(plan: "Plan", files: "Sequence[RenderedFile]", output: Path | None, *, json: bool) -> None:
    """Write rendered files, or print them; for programs, both."""
    from orchestrator.runs.run_dir import write_files

    if output is not None:
        write_files(output, files)
        for file in files:
            say(f"wrote {output / RelativePath(file.path)}")
    if json:
        shown = [
            {"path": str(output / RelativePath(file.path)) if output else file.path, **_content(file)} for file in files
        ]
        print_json({"profile": plan.profile, "digest": plan.digest, "files": shown})
    elif output is None:
        for file in files:
            print_data(f"==> {file.path} <==\n{file.content.decode(errors='replace')}")


def _content(file: "RenderedFile") -> dict[str, object]:
    return {"executable": file.executable, "content": file.content.decode(errors="replace")}
