"""The Docker daemon in use, resolved in one place: images are built where their containers start."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from orchestrator.core.subprocesses import run_or_127
from orchestrator.core.text import parse_json
from orchestrator.hosts.ssh import SshHost

DEFAULT: Final = "unix:///var/run/docker.sock"


def docker_endpoint(host: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the Docker daemon.

    Precedence, as in the docker command: `host`, DOCKER_HOST, the current context, the default socket.
    """
    return host or environ.get("DOCKER_HOST") or _of_context(environ) or DEFAULT


def remote_host(host: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the `ssh://user@host` URL of a remote Docker daemon; None if the daemon is local.

    Raises UsageError if the endpoint is neither a local socket nor an ssh URL.
    """
    url = docker_endpoint(host, environ)
    if url.startswith("unix://"):
        return None
    SshHost.parse(url)
    return url


def _of_context(environ: Mapping[str, str]) -> str | None:
    """Return the endpoint of the current docker context; None for the default context, or if `docker` fails."""
    name = environ.get("DOCKER_CONTEXT")
    if not name:  # reading the file is faster than running `docker`
        folder = environ.get("DOCKER_CONFIG") or str(Path(environ.get("HOME", "~")).expanduser() / ".docker")
        with suppress(OSError, ValueError, AttributeError):
            name = parse_json(Path(folder, "config.json").read_text(encoding="utf-8")).get("currentContext")
    if not isinstance(name, str) or name in {"", "default"}:
        return None
    argv = ["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}", name]
    result = run_or_127(argv, timeout=10)
    return result.stdout.strip() or None if result.ok else None
