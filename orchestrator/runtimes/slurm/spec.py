"""Rules, artifacts and job files of a plan for Slurm, and the preparation of the home that the nodes share."""

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.core.console import note
from orchestrator.core.errors import KernelsError, Problem
from orchestrator.core.paths import Home
from orchestrator.core.secrets import looks_secret, redact
from orchestrator.plan.placement import joins_no_gateway, max_nodes
from orchestrator.plan.plan import Gateway, Plan
from orchestrator.plan.replicas import server_count
from orchestrator.plan.rules import KEY_HINT, RuleContext, RuntimeSettings
from orchestrator.profiles.schema import Profile
from orchestrator.profiles.slurm import SlurmSection
from orchestrator.render.artifacts import Artifacts, RenderedFile, gateway_command, render_units, server_command
from orchestrator.render.scripts import script_file
from orchestrator.runtimes.base import ExternalImage, HostRef, PreparedRun
from orchestrator.runtimes.slurm.script import SCRIPT, container_script, container_words, job_name, job_of, job_script
from orchestrator.runtimes.supervisor import prepare as supervisor

_ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - the node's address is unknown before the job runs
# Options of sbatch that this tool sets, or that conflict with a server: several tasks, no task.
_OURS: Final = (
    {"account", "chdir", "comment", "error", "exclusive", "export", "gpus", "gres", "job-name", "no-requeue", "nodes"}
    | {"ntasks", "open-mode", "output", "parsable", "partition", "qos", "requeue", "signal", "time"}
    | {"array", "ntasks-per-gpu", "ntasks-per-node", "tasks-per-node", "test-only", "wait", "wrap"}
)


def rendered(plan: Plan, inputs: Mapping[str, bytes]) -> Artifacts:
    """Return the artifacts of a process, or of the site's container, whose image has the patches."""
    if not _in_container(plan):
        return supervisor.rendered(plan, inputs, _ANY_ADDRESS)

    def gateway(_: Gateway) -> Artifacts:
        command = gateway_command(plan, host=_ANY_ADDRESS, metrics_host=_ANY_ADDRESS)
        return Artifacts(plan=plan, command=command, build=None)

    return render_units(plan, lambda item: _container_artifacts(item, None), gateway)


def prepare(artifacts: Artifacts, host_ref: HostRef) -> PreparedRun:
    """Prepare the shared home for the nodes. Raises BuildError, PatchError.

    A gateway has a virtual environment there, whatever its replicas run in.
    """
    plan = artifacts.plan
    if not _in_container(plan):
        return supervisor.prepare(artifacts, host_ref, host_ref.home.job_packages, _ANY_ADDRESS)
    note(f"`{job_of(plan).image}` is used unchanged; the smoke test shows missing patches")
    home = str(host_ref.home.root)
    commanded = supervisor.commanded(
        artifacts, host_ref.home, lambda item: _container_artifacts(item, home).command, _ANY_ADDRESS
    )
    return PreparedRun(artifacts=commanded, records={})


def _in_container(plan: Plan) -> bool:
    return job_of(plan).container != "none"


def external_image(plan: Plan) -> ExternalImage | None:
    """Return the image of the site's container if it is not pinned.

    With apptainer, a `docker://` reference accepts a digest.
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


def _container_artifacts(plan: Plan, home: str | None) -> Artifacts:
    command = server_command(plan, model_path=supervisor.model_path(plan), host=_ANY_ADDRESS, in_home=True)
    argv, script = (*container_words(plan, home), *command.argv), () if home else container_script(plan)
    return Artifacts(plan=plan, command=replace(command, argv=argv, script=script), build=None)


def files(artifacts: Artifacts, name: str) -> tuple[RenderedFile, ...]:
    """Return the job files of the server; or those of the gateway and, in its own folder, of each replica."""
    plan = artifacts.plan
    job_files = (
        script_file(SCRIPT, job_script(plan, job_name(name, plan))),
        *supervisor.launcher_files(artifacts, name),
    )
    return job_files + tuple(
        script_file(f"{folder}/{SCRIPT}", job_script(named_replica.plan, job_name(name, named_replica.plan, folder)))
        for folder, named_replica in artifacts.named_replicas
    )


def tables(plan: Plan, home: Home) -> tuple[Path, ...]:
    """Return the tables of the interpreter. Raises KernelsError for a container, which cannot be inspected."""
    if _in_container(plan):
        raise KernelsError(f"cannot read the tables in `{job_of(plan).image}`", hint="`--allow-untuned`")
    return supervisor.aiter_tables(plan, home)


def settings(profile: Profile) -> RuntimeSettings:
    """Return the settings of the job. Each replica has a job and its own port, since two may share a node."""
    return RuntimeSettings(slurm=profile.slurm, one_node=False)


def has_engine(context: RuleContext) -> Iterator[Problem]:
    """Check that the node has an interpreter for the engine, or the container an image."""
    section, engine = context.profile.slurm, context.profile.engine
    if section.container == "none":
        if engine.requirements is None and engine.python is None:
            yield Problem(
                "on Slurm this engine needs a Python interpreter on the nodes, or a container",
                context.location("engine"),
                "`--set engine.python=PATH` for a Python that has sglang; or `--set slurm.container=apptainer` (or "
                "pyxis) with `--set slurm.image=…`",
            )
        if section.image is not None:
            hint = "`--set slurm.container=apptainer`, or pyxis"
            yield Problem("`slurm.image` needs `slurm.container`", context.location("slurm", "image"), hint)
        return
    if section.container == "pyxis" and max_nodes(context) > 1:
        message = "cannot start a server on several nodes with pyxis: it needs the job step that starts each rank"
        hint = "`--set slurm.container=apptainer`"
        yield Problem(message, context.location("slurm", "container"), hint)
    if section.image is None:
        hint = "`deploy build PROFILE` builds it; set `slurm.image` to its name in the cluster"
        yield Problem(f"`{section.container}` needs an image", context.location("slurm", "container"), hint)


def address_is_routable(context: RuleContext) -> Iterator[Problem]:
    """Check that the address is not a specific one, since the node is unknown before the job runs.

    The server listens on all addresses of its node, so it needs an API key, or an explicit exception.
    """
    server = context.profile.server
    try:
        address = ipaddress.ip_address("127.0.0.1" if server.host == "localhost" else server.host)
    except ValueError:
        return  # `public_address_is_allowed` reports it
    if not (address.is_loopback or address.is_unspecified):
        message = f"`{server.host}` may not be an address of the job's node"
        hint = "remove `server.host`: on Slurm a server listens on all addresses of its node"
        yield Problem(message, context.location("server", "host"), hint)
    elif server.api_key_env is None and not server.allow_unauthenticated:
        message = "on Slurm the server is open to the cluster's network and has no API key"
        yield Problem(message, context.location("runtime"), KEY_HINT)


def no_requeue_with_replicas(context: RuleContext) -> Iterator[Problem]:
    """Check that replicas are not requeued, since the gateway would not find a replica on another node."""
    count = server_count(context.profile)
    if count > 1 and context.profile.slurm.requeue:
        message = f"`slurm.requeue` needs a single server, not {count}: the gateway cannot follow it to another node"
        hint = "remove it: `deploy watch` restarts an exited server as a new job and registers it at the gateway"
        yield Problem(message, context.location("slurm", "requeue"), hint)


def options_are_free(context: RuleContext) -> Iterator[Problem]:
    """Check that `sbatch_options` contains neither an option that this tool sets nor a secret."""
    for index, option in enumerate(context.profile.slurm.sbatch_options):
        location, name = context.location("slurm", "sbatch_options", index), option[2:].partition("=")[0]
        if reserved := min((item for item in _OURS if item.startswith(name)), default=""):  # as in getopt_long(3)
            hint = f"`slurm.{reserved}` sets it" if reserved in SlurmSection.model_fields else "omit it"
            yield Problem(f"cannot set `--{reserved}`: `deploy` sets it", location, hint)
        if looks_secret(option):
            message = f"`--{name}` looks like a secret"
            yield Problem(message, location, "remove the option: Slurm shows the options of a job to everyone")


RULES: Final = (has_engine, address_is_routable, options_are_free, no_requeue_with_replicas, joins_no_gateway)
