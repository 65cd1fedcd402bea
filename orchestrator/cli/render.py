"""The command `deploy render`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from orchestrator.cli.options import (
    AllowUntuned,
    ImageOption,
    InputOption,
    Json,
    ProfileArgument,
    SetOption,
    named_files,
    runtime_names,
)
from orchestrator.cli.overrides import overridden
from orchestrator.cli.rendered import FileOutput, file_outputs, print_rendered, write_rendered
from orchestrator.core.command_hints import set_invocation
from orchestrator.core.console import warn
from orchestrator.core.errors import UsageError
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.images.sources import input_digests
from orchestrator.kernels.plan_coverage import check_table, needs_table, report_coverage, warn_untuned
from orchestrator.patches.schema import MOE_TABLE
from orchestrator.plan.facts import Facts
from orchestrator.plan.plan import Plan
from orchestrator.planner.cloud import cloud_files
from orchestrator.planner.plan_warnings import report_warnings, warn_unpinned
from orchestrator.planner.planning import render_artifacts, rendered_files
from orchestrator.planner.source import collect_rejections, profile_source
from orchestrator.render.cloud import LAUNCHERS


@dataclass(frozen=True, kw_only=True)
class RenderOutput:
    """The files of a plan; `digest` is that of the plan."""

    profile: str
    digest: str
    files: tuple[FileOutput, ...]


OUTPUT: Final = JsonOutput(RenderOutput)


def command(
    *,
    profile: ProfileArgument,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="directory for the files, instead of printing them")
    ] = None,
    image: ImageOption = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            metavar="RUNTIME|LAUNCHER",
            help="runtime or launcher of rented machines: skypilot, dstack",
            autocompletion=runtime_names,
        ),
    ] = None,
    package: Annotated[
        str | None, typer.Option(metavar="WHEEL|DIR|URL", help="package of this tool for a rented machine")
    ] = None,
    set_: SetOption = None,
    input_: InputOption = None,
    allow_untuned: AllowUntuned = False,
    json: Json = False,
) -> None:
    """Write the files that `up` would start. Needs no GPU, Docker or network.

    The files are the plan, the server's command and the input of its runtime, such as a build context and the `docker
    run` line, or manifests. They include the kernel table that `deploy kernels build` made on this host, or the one of
    `--input`. An `--image` is not inspected.
    """
    input_files, home, missing = named_files("--input", input_), Home.from_environment(), tuple[str, ...]()
    table: bytes | None = None
    if package is not None and runtime not in LAUNCHERS:
        raise UsageError(
            "`--package` requires a cloud launcher", hint=f"`--runtime {'`, `--runtime '.join(LAUNCHERS)}`"
        )
    if runtime is not None and runtime in LAUNCHERS:
        if input_files or image:
            message = "`--input` and `--image` do not apply to a rented machine: `up` makes both there"
            raise UsageError(message, hint="omit them")
        set_invocation(profile, set_ or (), None)
        plan, files = cloud_files(runtime, profile, set_ or (), home, tool=package)
    else:
        source = profile_source(profile, overridden(set_, runtime=runtime), home, inputs=input_files, image=image)
        inputs = {} if image else source.files()
        with collect_rejections(source):
            plan = source.build(Facts(inputs=input_digests(inputs), image=image))
            artifacts = render_artifacts(plan, inputs)
            files = rendered_files(artifacts)
        source.valid.note_deprecated()
        missing = artifacts.build.missing_inputs if artifacts.build else ()
        table = inputs.get(MOE_TABLE)
    _check_kernels(plan, home, missing, table, allow_untuned=allow_untuned)
    report_warnings(plan)
    warn_unpinned(plan)
    if output is not None:
        write_rendered(output, files)
    if json:
        OUTPUT.show(RenderOutput(profile=plan.profile, digest=plan.digest, files=file_outputs(files, output)))
    elif output is None:
        print_rendered(files)


def _check_kernels(plan: Plan, home: Home, missing: Sequence[str], table: bytes | None, *, allow_untuned: bool) -> None:
    """Check the kernel table in the build context; without one, warn of untuned kernels and missing patch files."""
    if table is not None and needs_table(plan):
        check_table(plan, table, home, allow_untuned=allow_untuned)
        return
    untuned = warn_untuned(plan, home)
    if missing:
        build = "`deploy kernels build PROFILE` makes the table of tuned MoE kernels; then run this command again"
        warn(
            f"`docker build` of these files will fail: no file for patch `{'`, `'.join(missing)}`",
            hint=f"after tuning, {build}" if untuned else build,
        )
    else:
        report_coverage(plan, home)
