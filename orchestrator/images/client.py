"""The docker command-line client. Builds use it because the Docker SDK for Python does not support BuildKit."""

import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.console import Progress
from orchestrator.core.errors import HostError
from orchestrator.core.subprocesses import CompletedProgram, follow, run
from orchestrator.hosts.daemon import docker_endpoint

_CLEANUP_TIMEOUT = 10.0  # seconds for the daemon to discard partial work after Ctrl-C or a lost connection


@dataclass(frozen=True, kw_only=True)
class DockerCli:
    """A docker client program, its builder and its daemon."""

    program: str
    version: str
    builder: str  # buildkit | classic
    host: str  # the daemon's URL, `unix:///…` or `ssh://user@host`

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that select the builder and the daemon, and turn off hints."""
        builder = "1" if self.builder == "buildkit" else "0"
        return {"DOCKER_BUILDKIT": builder, "DOCKER_CLI_HINTS": "false", "DOCKER_HOST": self.host}

    def run(self, *arguments: str, stdin: str | None = None) -> CompletedProgram:
        """Run a short docker command and return its output."""
        return run([self.program, *arguments], env=self.env, stdin=stdin)

    def follow(
        self, arguments: Sequence[str], parse: Callable[[str], str | None], *, stdin: bytes = b"", stage: str = ""
    ) -> tuple[int, list[str]]:
        """Run a long docker command with a progress line; return its exit code and its output. Ctrl-C stops it first.

        `parse` returns the text of the progress line for a line of output; None leaves it unchanged.
        """
        log: list[str] = []

        def on_line(line: str) -> None:
            log.append(line.rstrip())
            if text := parse(log[-1]):
                progress.update(text, stage=stage or None)

        with Progress() as progress:
            code = follow([self.program, *arguments], on_line, env=self.env, stdin=stdin, grace=_CLEANUP_TIMEOUT)
        return code, log

    def run_inside(
        self, image: str, *command: str, stdin: str | None = None, env: Iterable[tuple[str, str]] = ()
    ) -> CompletedProgram:
        """Run a program of an image in a temporary container without network, and return its output."""
        name, (program, *arguments) = f"deploy-run-{uuid.uuid4().hex[:12]}", command
        variables = (word for variable, value in env for word in ("--env", f"{variable}={value}"))
        options = ("--rm", "--interactive", "--name", name, "--network", "none", *variables, "--entrypoint", program)
        result = None
        try:
            result = self.run("run", *options, image, *arguments, stdin=stdin)
        finally:
            if result is None or not result.ok:  # Ctrl-C, or a lost connection, ends only the client, not the container
                run([self.program, "rm", "--force", name], env=self.env, timeout=_CLEANUP_TIMEOUT)
        return result


def find_docker(host: str | None = None) -> DockerCli:
    """Return the first docker client on the PATH that supports BuildKit, else the first client.

    A client of version 23 or later needs the buildx plugin for BuildKit; distributions package the plugin separately.
    An older client has BuildKit built in. Raises HostError if there is no client or the daemon does not respond.
    """
    endpoint = docker_endpoint(host)
    clients = [client for program in _programs() if (client := _client(program, endpoint))]
    if not clients:
        raise HostError(
            "docker is not installed", hint="`apt-get install docker.io`, or docs.docker.com/engine/install"
        )
    docker = next((client for client in clients if client.builder == "buildkit"), clients[0])
    server = docker.run("version", "--format", "{{.Server.Version}}")
    if not server.ok:
        raise HostError(
            f"the Docker daemon at `{endpoint}` does not answer",
            hint="`docker version` shows whether it runs and may be used; DOCKER_HOST or --host names another",
            details=f"  {server.stderr.strip()}",
        )
    return docker


def _programs() -> Iterator[str]:
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if program := shutil.which("docker", path=folder):
            yield str(Path(program))


def _client(program: str, host: str) -> DockerCli | None:
    version = re.search(r"version (\d+)([\w.+-]*)", run([program, "--version"]).stdout)
    if version is None:
        return None
    buildkit = int(version[1]) < 23 or run([program, "buildx", "version"]).ok
    builder = "buildkit" if buildkit else "classic"
    return DockerCli(program=program, version=version[1] + version[2], builder=builder, host=host)
