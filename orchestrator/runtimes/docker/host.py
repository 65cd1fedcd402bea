"""The host of the Docker daemon: this host, or a remote one over ssh."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property

from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import RelativePath
from orchestrator.core.subprocesses import CompletedProgram, quote, run_or_127
from orchestrator.hosts import ports
from orchestrator.hosts.daemon import docker_endpoint, remote_host
from orchestrator.hosts.ssh import SshHost, Tunnel
from orchestrator.runtimes.docker.container import ContainerSpec
from orchestrator.runtimes.docker.errors import daemon_errors, ignore_missing
from orchestrator.runtimes.docker.sdk import docker


class DockerHost:
    """The daemon of `url`, else of DOCKER_HOST, else of this host. Connects on first use."""

    def __init__(self, home: Home, url: str | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._local_home = home
        self._environ = environ
        self.url = docker_endpoint(url, environ)
        self.is_explicit = url is not None or remote_host(self.url, environ) is not None

    @cached_property
    def client(self) -> docker.DockerClient:
        """The SDK's client; use it within `errors`."""
        url = self._tunnel.docker_url if self._tunnel is not None else self.url
        try:
            return docker.from_env(environment={**self._environ, "DOCKER_HOST": url})
        except ValueError as error:  # the SDK cannot parse the URL
            raise docker.errors.DockerException(str(error)) from error

    def errors(self) -> AbstractContextManager[None]:
        """Return a context that raises HostError if the daemon does not answer in its block."""
        return daemon_errors(self.url)

    @contextmanager
    def errors_except_missing(self) -> Iterator[None]:
        """Raise HostError as `errors` does; ignore that another process has removed the container of the block."""
        with self.errors(), ignore_missing():
            yield

    @property
    def home(self) -> str:
        """The tool's home directory on that host."""
        return self._tunnel.home if self._tunnel is not None else str(self._local_home.root)

    def reach(self, url: str) -> str:
        """Return a server's URL as reached from this host: a tunnel, since remote hosts open no port to the public."""
        if self._tunnel is None:
            return url
        return f"http://127.0.0.1:{self._tunnel.forward(int(url.rpartition(':')[2]))}"

    def forward_command(self, url: str) -> str:
        """Return the command that makes a remote server reachable at the same URL on this host; "" for this host."""
        return "" if self._tunnel is None else quote(self._tunnel.forward_argv(int(url.rpartition(":")[2])))

    def copy_files(self, spec: ContainerSpec) -> None:
        """Copy generated files (a patched config.json) to a remote host; checkpoints are staged there."""
        if self._tunnel is None:
            return
        for mount in (mount for mount in spec.mounts if not mount.source.startswith("/")):  # absolute: remote only
            if (local := self._local_home.for_remote(self.url) / RelativePath(mount.source)).is_file():
                self._tunnel.write(f"{self._tunnel.home}/{mount.source}", local.read_text())

    def group_id(self, name: str) -> str | None:
        """Return the id of a group on that host, None if there is no such group."""
        result = self._run(["getent", "group", name])
        return result.stdout.split(":")[2] if result.ok else None

    def port_holder(self, port: int) -> str | None:
        """Return the container or process that listens on a port of that host, if any."""
        for container in self.client.containers.list(filters={"publish": str(port)}):
            return f"container `{container.name}`"
        holder = ports.port_holder(port, self._run)
        return None if holder is None else str(holder)

    def close(self) -> None:
        """Close the connections; containers continue to run."""
        if "client" in self.__dict__:
            self.client.close()
        if "_tunnel" in self.__dict__ and self._tunnel is not None:
            self._tunnel.close()

    @cached_property
    def _tunnel(self) -> Tunnel | None:
        return Tunnel.open(SshHost.parse(self.url)) if self.url.startswith("ssh://") else None

    def _run(self, argv: Sequence[str]) -> CompletedProgram:
        return self._tunnel.run(argv) if self._tunnel is not None else run_or_127(argv, timeout=60)
