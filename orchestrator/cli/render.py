"""The command `deploy render`."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import (
    ImageOption,
    InputOption,
    Json,
    ProfileArgument,
    SetOption,
    named_files,
    runtime_names,
)
from orchestrator.cli.overrides import overridden
from orchestrator.cli.rendered import print_rendered, rendered_dicts, write_rendered
from orchestrator.core.command_hints import set_invocation
from orchestrator.core.console import print_json
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import Home
from orchestrator.images.sources import input_digests, read_inputs
from orchestrator.kernels.plan_coverage import report_coverage, warn_untuned
from orchestrator.plan.facts import Facts
from orchestrator.planner.cloud import rental_files
from orchestrator.planner.plan_warnings import report_warnings
from orchestrator.planner.planning import load, render_artifacts, rendered_files
from orchestrator.planner.prebuilt import require_image
from orchestrator.render.cloud.launchers import LAUNCHERS


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
        str | None,
        typer.Option(metavar="WHEEL|DIR|URL", help="package of this tool for a rented machine"),
    ] = None,
    set_: SetOption = None,
    input_: InputOption = None,
    json: Json = False,
) -> None:
    """Write the files that `up` would start. Needs no GPU, Docker or network.

    The files are the plan, the server's command and the input of its runtime, such as a build context and the `docker
    run` line, or manifests. They depend on the profile and the options only: name a kernel table of this host with
    `--input`. An `--image` is not inspected.
    """
    given, home = named_files("--input", input_), Home.from_environment()
    if package is not None and runtime not in LAUNCHERS:
        raise UsageError(
            "`--package` needs a launcher of rented machines", hint=f"`--runtime {'`, `--runtime '.join(LAUNCHERS)}`"
        )
    if runtime is not None and runtime in LAUNCHERS:
        set_invocation(profile, set_ or (), None)
        if given or image:
            raise UsageError("`--input` and `--image` do not apply to a rented machine: `up` makes both there")
        plan, files = rental_files(runtime, profile, set_ or (), home, tool=package)
    else:
        inputs = read_inputs(given)
        facts = Facts(inputs=input_digests(inputs), image=image)
        plan = load(profile, overrides=overridden(set_, runtime=runtime), facts=facts).plan
        if image:
            require_image(plan.runtime, image)
        files = rendered_files(render_artifacts(plan, inputs))
    report_coverage(plan, home)
    warn_untuned(plan, home)
    report_warnings(plan)
    if output is not None:
        write_rendered(output, files)
    if json:
        shown = rendered_dicts(files, output)
        print_json({"profile": plan.profile, "digest": plan.digest, "files": shown})
    elif output is None:
        print_rendered(files)
