"""The docker command line: found, chosen, run. The SDK cannot build with BuildKit, so building goes through it."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import HostError
from orchestrator.core.subprocesses import CompletedProgram, follow, run
from orchestrator.hosts.daemon import docker_endpoint

Line = Callable[[str], None]  # what is done with one line of output
_CLEAN_UP = 10.0  # seconds the daemon has to drop what was half done


@dataclass(frozen=True, kw_only=True)
class DockerCli:
    """One docker client and how it builds."""

    program: str
    version: str
    builder: str  # buildkit | classic
    host: str  # the daemon's URL, `unix:///…` or `ssh://user@host`

    @property
    def env(self) -> dict[str, str]:
        """What makes this client build that way; its messages in plain text."""
        builder = "1" if self.builder == "buildkit" else "0"
        return {"DOCKER_BUILDKIT": builder, "DOCKER_CLI_HINTS": "false", "DOCKER_HOST": self.host}

    def run(self, *arguments: str, stdin: str | None = None) -> CompletedProgram:
        """One short docker command."""
        return run([self.program, *arguments], env=self.env, stdin=stdin)

    def stream(self, arguments: Sequence[str], *, stdin: bytes = b"", line: Line) -> int:
        """A long docker command: its output line by line, its exit code. Ctrl-C ends it first."""
        return follow(
            [self.program, *arguments],
            lambda text: line(text.rstrip()),
            env=self.env,
            stdin=stdin,
            grace=_CLEAN_UP,
        )


def find_docker(host: str | None = None, *, environ: Mapping[str, str] = os.environ) -> DockerCli:
    """The first client on the PATH that can do BuildKit, else the first one at all.

    A client of version 23 or later needs the buildx plugin for it, an older one does it itself; distributions ship the
    plugin apart. Raises HostError where there is no client, or no daemon answers.
    """
    at = docker_endpoint(host, environ)
    clients = [client for program in _programs(environ) if (client := _client(program, at))]
    if not clients:
        raise HostError(
            "docker is not installed", hint="`apt-get install docker.io`, or docs.docker.com/engine/install"
        )
    docker = next((client for client in clients if client.builder == "buildkit"), clients[0])
    server = docker.run("version", "--format", "{{.Server.Version}}")
    if not server.ok:
        raise HostError(
            f"the Docker daemon at `{at}` does not answer",
            hint="`docker version` shows whether it runs and may be used; DOCKER_HOST or --host names another",
            details=f"  {server.stderr.strip()}",
        )
    return docker


def _programs(environ: Mapping[str, str]) -> Iterator[str]:
    for folder in environ.get("PATH", "").split(os.pathsep):
        if program := shutil.which("docker", path=folder):
            yield str(Path(program))


def _client(program: str, host: str) -> DockerCli | None:
    version = re.search(r"version (\d+)([\w.+-]*)", run([program, "--version"]).stdout)
    if version is None:
        return None
    buildkit = int(version[1]) < 23 or run([program, "buildx", "version"]).ok
    builder = "buildkit" if buildkit else "classic"
    return DockerCli(program=program, version=version[1] + version[2], builder=builder, host=host)
