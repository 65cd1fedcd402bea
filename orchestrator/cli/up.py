"""The command `deploy up`."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from orchestrator.cli.options import (
    AllowUntuned,
    DrainOption,
    GpusOption,
    HostsOption,
    ImageOption,
    Json,
    ProfileOrRunArgument,
    RevisionOption,
    RuntimeOption,
    SetOption,
    StrictKernels,
)
from orchestrator.cli.overrides import overridden
from orchestrator.cli.rendered import FileOutput, file_outputs, write_rendered
from orchestrator.cli.up_result import UpOutput, show_up
from orchestrator.core.command_hints import set_profile
from orchestrator.core.console import info, note, print_data, table, terminal_width
from orchestrator.core.errors import UsageError
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import quote
from orchestrator.plan.plan import Plan, PlanWarning
from orchestrator.planner.add.host_profile import profile_on_host
from orchestrator.planner.estimate import UpStep, steps_table
from orchestrator.runtimes import REGISTRY, runtime_class
from orchestrator.servers.rollback import resolve_request
from orchestrator.servers.start.host import resolve_host_ref, runner_for
from orchestrator.servers.start.preview import Preview, preview
from orchestrator.servers.start.request import UpRequest
from orchestrator.servers.start.up import up

ModelOption: TypeAlias = Annotated[
    str | None, typer.Option("--model", metavar="DIR|HUB_ID", help="checkpoint to serve on this host; writes a profile")
]
FromOption: TypeAlias = Annotated[
    str | None, typer.Option("--from", metavar="RUN", help="start an earlier run again with its plan")
]
OutputOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="with `--dry-run`: directory for the files")
]
ReplaceOption: TypeAlias = Annotated[
    bool, typer.Option("--replace", help="replace the server of that name (replicas: rolling update)")
]
MaxReplicasOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="rolling update: replace at most N replicas")
]
MinGsm8kOption: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, max=1, metavar="SCORE", help="rolling update: GSM8K score that each new replica needs"),
]
TimeoutOption: TypeAlias = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="start timeout (seconds); default: the profile's progress deadline"),
]


@dataclass(frozen=True, kw_only=True)
class PreviewOutput:
    """With `--dry-run`: what `up` would do and write; `digest` is that of the plan."""

    name: str
    profile: str
    digest: str
    steps: tuple[UpStep, ...]
    warnings: tuple[PlanWarning, ...]
    plan: Plan
    files: tuple[FileOutput, ...]


OUTPUT: Final = JsonOutput[UpOutput | PreviewOutput](UpOutput, PreviewOutput)


def command(
    *,
    profile: ProfileOrRunArgument = None,
    model: ModelOption = None,
    gpus: GpusOption = None,
    from_: FromOption = None,
    locked: Annotated[bool, typer.Option("--locked", help="start only what the lockfile of PROFILE pins")] = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="server name; default: the profile's name")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the steps and warnings, and stop")] = False,
    output: OutputOption = None,
    replace: ReplaceOption = False,
    drain: DrainOption = None,
    max_replicas: MaxReplicasOption = None,
    min_gsm8k: MinGsm8kOption = None,
    keep_failed: Annotated[bool, typer.Option("--keep-failed", help="keep a failed server for inspection")] = False,
    stage: Annotated[bool, typer.Option("--stage/--no-stage", help="download a missing checkpoint")] = True,
    allow_untuned: AllowUntuned = False,
    strict_kernels: StrictKernels = False,
    timeout: TimeoutOption = None,
    revision: RevisionOption = None,
    image: ImageOption = None,
    host: HostsOption = None,
    runtime: RuntimeOption = None,
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Start a server from a profile and verify it. Steps already done are skipped.

    With `--model`, `deploy` reads the checkpoint's files and the host's GPUs and first writes a profile for them into
    `$DEPLOY_HOME/profiles`. A later `up` of the same model uses that profile.
    """
    home, hosts = Home.from_environment(), tuple(host or ())
    _require_one_source(model, [profile, from_, locked], gpus)
    _require_preview(output, dry_run=dry_run)
    overrides = overridden(set_, revision=revision, runtime=runtime)
    if model is not None:
        profile = profile_of_model(model, home, gpus=gpus, host=hosts[0] if hosts else None, runtime=runtime)
        set_profile(profile, overrides)
    request = UpRequest(
        profile=profile or "",
        name=name,
        overrides=overrides,
        host=hosts[0] if hosts else None,
        rank_hosts=hosts[1:],
        image=image,
        replace=replace,
        drain=drain,
        max_replicas=max_replicas,
        min_gsm8k=min_gsm8k,
        keep_failed=keep_failed,
        stage=stage,
        allow_untuned=allow_untuned,
        strict_kernels=strict_kernels,
        timeout=timeout,
    )
    request = resolve_request(request, home, run=from_, locked=locked)
    if dry_run:
        _show_preview(preview(request, home), output, json=json)
    else:
        show_up(up(request, home), json=json)


def _require_one_source(model: str | None, other_sources: Sequence[object], gpus: int | None) -> None:
    """Raise UsageError for `--model` with a profile, a run or a lockfile, and for `--gpus` without `--model`."""
    if model is not None and any(other_sources):
        raise UsageError("`--model` takes no profile, run or lockfile", hint=f"`deploy up --model {quote([model])}`")
    if model is None and gpus is not None:
        raise UsageError("`--gpus` needs `--model`", hint="`--set hardware.gpus=N` for a profile")


def profile_of_model(model: str, home: Home, *, gpus: int | None, host: str | None, runtime: str | None) -> str:
    """Return the name of the profile of a checkpoint on the GPUs of this host, or of `--host`.

    Raises UsageError for a runtime that chooses its host later, and errors as `profile_on_host` does.
    """
    if runtime is not None and runtime in REGISTRY and runtime_class(runtime).cluster_managed:
        hint = f"`deploy add model {model}`, then `deploy add profile --model NAME --hardware NAME`"
        raise UsageError(f"`--model` reads the GPUs of a host; `{runtime}` chooses one later", hint=hint)
    runner = runner_for(resolve_host_ref(runtime or "docker", home, host))
    profile = profile_on_host(model, home, runner, environ, gpus=gpus)
    hardware = profile.hardware
    info(f"hardware: {hardware.name}, {hardware.gpus or 'no'} GPU{'s' * (hardware.gpus != 1)} found")
    if profile.proposal is None:
        info(f"profile `{profile.name}`: {profile.path}")
    else:
        info(table(["key", "value", "reason"], profile.proposal.rows(), width=terminal_width()))
        info(f"wrote {profile.path}")
    if profile.similar:
        note(f"other profiles of this model on this hardware: {', '.join(profile.similar)}")
    return profile.name


def _require_preview(output: Path | None, *, dry_run: bool) -> None:
    if output is not None and not dry_run:
        raise UsageError("`--output` needs `--dry-run`", hint="add `--dry-run`")


def _show_preview(planned: Preview, output: Path | None, *, json: bool) -> None:
    """Print the steps, then the warnings; files only as JSON, or into the folder `output`."""
    if json:
        result = PreviewOutput(
            name=planned.name,
            profile=planned.plan.profile,
            digest=planned.plan.digest,
            steps=planned.steps,
            warnings=planned.warnings,
            plan=planned.plan,
            files=file_outputs(planned.files, output),
        )
        OUTPUT.show(result)
    else:
        print_data(steps_table(planned.steps))
        planned.report()
    if output is not None:
        write_rendered(output, planned.files)
