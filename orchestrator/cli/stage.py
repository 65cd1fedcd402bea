"""The command `deploy stage`."""

from pathlib import Path
from typing import Annotated, Final

import typer

from orchestrator.checkpoints import staging
from orchestrator.checkpoints.verify import VerifiedCheckpoint, checkpoint_directory
from orchestrator.cli.options import HostOption, Json, ParallelOption, ProfileArgument, RevisionOption, SetOption
from orchestrator.cli.overrides import overridden
from orchestrator.core.console import info, note
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.paths import Home
from orchestrator.planner.planning import load
from orchestrator.servers.start.host import resolve_host_ref
from orchestrator.servers.start.prepare import remote_directory

OUTPUT: Final = JsonOutput(VerifiedCheckpoint)


def command(
    *,
    profile: ProfileArgument,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="directory of the checkpoint; default: under the tool's home"),
    ] = None,
    allow_mismatch: Annotated[
        bool, typer.Option("--allow-mismatch", help="accept tensors that do not match `config.json`")
    ] = False,
    revision: RevisionOption = None,
    host: HostOption = None,
    parallel: ParallelOption = 2,  # noqa: ARG001 - read by the fan-out over hosts
    set_: SetOption = None,
    json: Json = False,
) -> None:
    """Download and verify a checkpoint. An interrupted download resumes; a local checkpoint is only verified.

    With `--host` that host downloads it. The host needs Python 3.8 and nothing else.
    """
    plan, home = load(profile, overrides=overridden(set_, revision=revision)).plan, Home.from_environment()
    if (remote := resolve_host_ref(plan.runtime, home, host).remote) is not None:
        path = str(directory or remote_directory(plan))
        verified = staging.stage_remote(plan, path, remote, allow_mismatch=allow_mismatch)
    else:
        target = (directory or checkpoint_directory(plan.model, home)).absolute()
        verified = staging.download(plan, target, allow_mismatch=allow_mismatch)
    if json:
        OUTPUT.show(verified)
        return
    info(f"{f'{remote}: ' if remote else ''}{verified.directory} is complete: {verified}")
    if directory is not None and plan.model.checkpoint.source == "hub":
        note(f"to serve it: `--set model.checkpoint.source=local --set model.checkpoint.path={verified.directory}`")
