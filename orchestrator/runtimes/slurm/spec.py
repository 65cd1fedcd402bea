"""The slurm runtime, put together."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.core.console import note
from orchestrator.core.errors import KernelsError
from orchestrator.core.paths import Home
from orchestrator.core.secrets import redact
from orchestrator.hosts.context import Space
from orchestrator.hosts.survey import Runner
from orchestrator.plan.plan import Plan
from orchestrator.plan.replicas import replica_plans
from orchestrator.render.artifacts import Artifacts, ContextFile, gateway_command, server_command
from orchestrator.render.scripts import replica_folder, script_file
from orchestrator.runtimes.base import Cache, Place, Prepared, RuntimeKind, ServerState, TakenImage
from orchestrator.runtimes.slurm.checks import cluster, node_interpreter
from orchestrator.runtimes.slurm.record import CHECKER, FILE, QUESTION, REFUSAL, SERVER, START
from orchestrator.runtimes.slurm.rules import RULES, settings
from orchestrator.runtimes.slurm.script import JOB_LOG, SCRIPT, container_words, job_of, job_script
from orchestrator.runtimes.supervisor.patched_copies import copies
from orchestrator.runtimes.supervisor.prepare import (
    commanded,
    launcher_files,
    model_path,
    own_tables,
    prepare,
    rendered,
)
from orchestrator.runtimes.supervisor.record import CONFIG

_EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - which of a node's addresses clients reach is known to none before it runs


def _rendered(plan: Plan, inputs: Mapping[str, bytes]) -> Artifacts:
    """As a process, or within the site's container, whose image has the patches."""
    if not _in_container(plan):
        return rendered(plan, inputs, _EVERYWHERE)
    servers = tuple(_contained(each, None) for each in replica_plans(plan))
    if plan.gateway is None:
        return servers[0]
    gateway = gateway_command(plan, host=_EVERYWHERE, metrics_host=_EVERYWHERE)
    return Artifacts(plan=plan, command=gateway, build=None, replicas=servers)


def _prepare(artifacts: Artifacts, place: Place) -> Prepared:
    """Make what the nodes need in the home that they share. Raises BuildError, PatchError.

    A gateway has an environment there, whatever its servers run in.
    """
    plan = artifacts.plan
    if not _in_container(plan):
        return prepare(artifacts, place, place.home.job_packages, _EVERYWHERE)
    note(f"`{job_of(plan).image}` is taken as it is: the smoke test tells what it lacks")
    home = str(place.home.root)
    made = commanded(artifacts, place.home, lambda each: _contained(each, home).command, _EVERYWHERE)
    return Prepared(artifacts=made, records={})


def _in_container(plan: Plan) -> bool:
    return job_of(plan).container != "none"


def _takes(plan: Plan) -> TakenImage | None:
    """The image of the site's container, where it is not pinned. Of apptainer's forms `docker://` takes a digest."""
    job = job_of(plan)
    image = job.image or ""
    if job.container == "none" or "@sha256:" in image:
        return None
    scheme, of_registry, reference = image.partition("://")
    pinnable = job.container == "apptainer" and scheme == "docker" and bool(of_registry)
    why = f"{job.container} takes `{image}` as it is, and its digest is not known"
    return TakenImage(
        key="slurm.image", scheme="docker://", reference=reference if pinnable else "", unpinned=redact(why)
    )


def _contained(plan: Plan, home: str | None) -> Artifacts:
    command = server_command(plan, model_path=model_path(plan), host=_EVERYWHERE, in_home=True)
    argv = (*container_words(plan, home), *command.argv)
    return Artifacts(plan=plan, command=replace(command, argv=argv), build=None)


def _files(artifacts: Artifacts, name: str) -> tuple[ContextFile, ...]:
    """The job of the server, or that of the gateway and one in each server's folder."""
    own = (script_file(SCRIPT, job_script(artifacts.plan, name)), *launcher_files(artifacts, name))
    replicas = enumerate(artifacts.replicas, start=1)
    return own + tuple(
        script_file(f"{replica_folder(number)}/{SCRIPT}", job_script(each.plan, name)) for number, each in replicas
    )


def _tables(plan: Plan, home: Home) -> tuple[Path, ...]:
    if _in_container(plan):
        raise KernelsError(f"the tables in `{job_of(plan).image}` cannot be read", hint="`--accept-untuned`")
    return own_tables(plan, home)


def _no_space(_: Plan, __: Runner) -> Iterator[Space]:
    return iter(())


def _caches(home: Home, _: str | None) -> tuple[Cache, ...]:
    from orchestrator.runtimes.slurm.runtime import SlurmRuntime  # noqa: PLC0415

    return copies(home.job_packages, SlurmRuntime(home))


def _kept(run_dir: Path) -> ServerState | None:
    from orchestrator.runtimes.slurm.state import kept_state  # noqa: PLC0415

    return kept_state(run_dir)


SLURM: Final = RuntimeKind(
    name="slurm",
    contained=False,
    rules=RULES,
    checks=(cluster, node_interpreter),
    spaces=_no_space,
    far=None,
    render=_rendered,
    files=_files,
    prepare=_prepare,
    tables=_tables,
    caches=_caches,
    kept=_kept,
    leaves=frozenset({FILE, SERVER, START, JOB_LOG, CONFIG, SCRIPT, QUESTION, CHECKER, REFUSAL}),
    here=False,
    settings=settings,
    takes=_takes,
)
