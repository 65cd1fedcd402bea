"""Containers of one host: created with their secrets, started, and removed after a failed start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.console import warn
from orchestrator.core.errors import HostError
from orchestrator.core.procfs import find_process, process_identity
from orchestrator.engine.launch import SecretDelivery
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.docker.container import spec_of
from orchestrator.runtimes.docker.errors import ignore_missing, start_error
from orchestrator.runtimes.docker.host import DockerHost
from orchestrator.runtimes.docker.options import archive, container_options, host_options, secret_files
from orchestrator.runtimes.docker.sdk import docker
from orchestrator.runtimes.labels import HEAD, RANK, RUN_DIR, STARTER

if TYPE_CHECKING:
    from docker.models.containers import Container


def start_on(
    host: DockerHost, artifacts: Artifacts, name: str, labels: Mapping[str, str], secrets: SecretDelivery
) -> Container:
    """Start a container of that name on a host. Raises StartError, NameTakenError, HostError."""
    with host.errors():
        host.copy_files(spec_of(artifacts))
        try:
            container = _create(host, artifacts, name, labels=labels, secrets=secrets)
            container.start()
        except docker.errors.APIError as error:
            text = str(error.explanation or error)
            raise start_error(text, artifacts, host=host.url, port_holder=host.port_holder) from error
    return container


def _create(
    host: DockerHost, artifacts: Artifacts, name: str, *, labels: Mapping[str, str], secrets: SecretDelivery
) -> Container:
    """Return a new container with its secrets inside, ready to start."""
    api, spec = host.client.api, spec_of(artifacts)
    options = container_options(artifacts, spec, secrets) | {"name": name, "labels": dict(labels)}
    host_config = host_options(artifacts, spec, home=host.home, gid=host.group_id)
    options["host_config"] = api.create_host_config(**host_config)
    try:
        created = api.create_container(**options)
    except docker.errors.APIError as error:
        if error.status_code != HTTPStatus.CONFLICT or not _clear_leftover(host, name, labels):
            raise
        created = api.create_container(**options)
    container = host.client.containers.get(created["Id"])
    container.put_archive("/", archive(secret_files(secrets)))
    return container


def _clear_leftover(host: DockerHost, name: str, labels: Mapping[str, str]) -> bool:
    """Remove the container of a start that was killed midway. Return whether there was one.

    Also remove the container of an exited replica, so that the replica can start again at the same gateway, and of a
    rank whose rank 0 was removed.
    """
    with suppress(docker.errors.NotFound):
        container = host.client.containers.get(name)
        restarts = container.status == "exited" and container.labels.get(RUN_DIR) == labels[RUN_DIR]
        killed = container.status == "created" and _abandoned(container.labels.get(STARTER, ""))
        if not restarts and not killed and not _is_rank_without_head(container.labels, labels):
            return False
        remove(container)
    return True


def _is_rank_without_head(existing: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Return whether a container is a rank of an earlier server of this home and name, whose rank 0 was on this host.

    A start finds and stops that rank 0 first, with the name locked. On another host of rank 0 a server may still run.
    """
    if RANK not in labels or any(existing.get(item) != labels[item] for item in (RANK, HEAD)):
        return False
    earlier = Path(existing.get(RUN_DIR, ""))
    return earlier.is_dir() and earlier.resolve().parent == Path(labels[RUN_DIR]).resolve().parent


def discard(host: DockerHost, starter: str) -> None:
    """Remove everything this start has created. Only report a failure, because the start's own error is raised."""
    label = f"{STARTER}={starter}"
    try:
        with host.errors():
            for container in host.client.containers.list(all=True, filters={"label": label}):
                remove(container)
    except (docker.errors.APIError, HostError) as error:
        hint = f"`docker --host {host.url} ps --all --filter label={label}` finds it"
        warn(f"cannot remove the container: {error}", hint=hint)


def remove(container: Container) -> None:
    """Remove a container and its anonymous volumes, unless another process does."""
    with ignore_missing():
        container.remove(force=True, v=True)


def _abandoned(starter: str) -> bool:
    """Return whether the process of this host that began a start has ended."""
    process = starter.rpartition("/")[0]
    boot = process_identity(os.getpid()).partition("/")[0]
    return process.partition("/")[0] == boot and find_process(process) is None
