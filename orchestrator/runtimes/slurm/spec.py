"""Artifacts and job files of a plan for Slurm, and the preparation of the home that the nodes share."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.core.console import note
from orchestrator.core.errors import KernelsError
from orchestrator.core.paths import Home
from orchestrator.core.secrets import redact
from orchestrator.plan.plan import Gateway, Plan
from orchestrator.render.artifacts import Artifacts, RenderedFile, gateway_command, render_units, server_command
from orchestrator.render.scripts import script_file
from orchestrator.runtimes.base import ExternalImage, HostRef, PreparedRun
from orchestrator.runtimes.slurm.script import SCRIPT, container_script, container_words, job_name, job_of, job_script
from orchestrator.runtimes.supervisor import prepare as supervisor

_EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - the node's address is unknown before the job runs


def rendered(plan: Plan, inputs: Mapping[str, bytes]) -> Artifacts:
    """Return the artifacts of a process, or of the site's container, whose image has the patches."""
    if not _in_container(plan):
        return supervisor.rendered(plan, inputs, _EVERYWHERE)

    def gateway(_: Gateway) -> Artifacts:
        command = gateway_command(plan, host=_EVERYWHERE, metrics_host=_EVERYWHERE)
        return Artifacts(plan=plan, command=command, build=None)

    return render_units(plan, lambda item: _contained(item, None), gateway)


def prepare(artifacts: Artifacts, host_ref: HostRef) -> PreparedRun:
    """Prepare the shared home for the nodes. Raises BuildError, PatchError.

    A gateway has a virtual environment there, whatever its replicas run in.
    """
    plan = artifacts.plan
    if not _in_container(plan):
        return supervisor.prepare(artifacts, host_ref, host_ref.home.job_packages, _EVERYWHERE)
    note(f"`{job_of(plan).image}` is used unchanged; the smoke test shows missing patches")
    home = str(host_ref.home.root)
    made = supervisor.commanded(artifacts, host_ref.home, lambda item: _contained(item, home).command, _EVERYWHERE)
    return PreparedRun(artifacts=made, records={})


def _in_container(plan: Plan) -> bool:
    return job_of(plan).container != "none"


def external_image(plan: Plan) -> ExternalImage | None:
    """Return the image of the site's container if it is not pinned.

    Of apptainer's forms, `docker://` accepts a digest.
    """
    job = job_of(plan)
    image = job.image or ""
    if job.container == "none" or "@sha256:" in image:
        return None
    scheme, of_registry, reference = image.partition("://")
    pinnable = job.container == "apptainer" and scheme == "docker" and bool(of_registry)
    reason = f"{job.container} uses `{image}` unchanged; its digest is unknown"
    return ExternalImage(
        key="slurm.image", scheme="docker://", reference=reference if pinnable else "", unpinned=redact(reason)
    )


def _contained(plan: Plan, home: str | None) -> Artifacts:
    command = server_command(plan, model_path=supervisor.model_path(plan), host=_EVERYWHERE, in_home=True)
    argv, script = (*container_words(plan, home), *command.argv), () if home else container_script(plan)
    return Artifacts(plan=plan, command=replace(command, argv=argv, script=script), build=None)


def files(artifacts: Artifacts, name: str) -> tuple[RenderedFile, ...]:
    """Return the job files of the server, or those of the gateway and of each replica in its folder."""
    plan = artifacts.plan
    own = (script_file(SCRIPT, job_script(plan, job_name(name, plan))), *supervisor.launcher_files(artifacts, name))
    return own + tuple(
        script_file(f"{folder}/{SCRIPT}", job_script(named_replica.plan, job_name(name, named_replica.plan, folder)))
        for folder, named_replica in artifacts.named_replicas
    )


def tables(plan: Plan, home: Home) -> tuple[Path, ...]:
    """Return the tables of the interpreter. Raises KernelsError for a container, which cannot be inspected."""
    if _in_container(plan):
        raise KernelsError(f"cannot read the tables in `{job_of(plan).image}`", hint="`--allow-untuned`")
    return supervisor.aiter_tables(plan, home)
