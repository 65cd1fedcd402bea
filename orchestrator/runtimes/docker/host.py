"""The machine whose Docker daemon is used: this one, or one at the other end of an ssh connection."""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property

import docker
from docker.errors import DockerException

from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import RelativePath
from orchestrator.core.subprocesses import CompletedProgram, quote, run_or_127
from orchestrator.hosts.daemon import docker_endpoint, remote_host
from orchestrator.hosts.ssh import SshHost, Tunnel
from orchestrator.runtimes.docker.container import ContainerSpec
from orchestrator.runtimes.docker.errors import daemon_errors


class DockerHost:
    """The daemon that `url` names, else DOCKER_HOST, else this machine's. It is reached at the first use."""

    def __init__(self, home: Home, url: str | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._local_home = home
        self._environ = environ
        self._url = docker_endpoint(url, environ)
        self.named = url is not None or remote_host(self._url, environ) is not None

    @cached_property
    def client(self) -> docker.DockerClient:
        """The SDK's client; to be used within `errors`."""
        url = self._tunnel.docker_url if self._tunnel is not None else self._url
        try:
            return docker.from_env(environment={**self._environ, "DOCKER_HOST": url})
        except ValueError as error:  # what the SDK's own reading of a URL does not expect
            raise DockerException(str(error)) from error

    def errors(self) -> AbstractContextManager[None]:
        """Turns a daemon that does not answer into a HostError."""
        return daemon_errors(self._url)

    @property
    def home(self) -> str:
        """The tool's home directory on that machine."""
        return self._tunnel.home if self._tunnel is not None else str(self._local_home.root)

    def reach(self, url: str) -> str:
        """A server's URL on that machine as this machine reaches it: no port of a far host is opened to the public."""
        if self._tunnel is None:
            return url
        return f"http://127.0.0.1:{self._tunnel.forward(int(url.rpartition(':')[2]))}"

    def way_to(self, url: str) -> str:
        """The command that leads from this machine to a server there, at the same URL; "" for one of this machine."""
        return "" if self._tunnel is None else quote(self._tunnel.argv_of_way(int(url.rpartition(":")[2])))

    def copy_files(self, spec: ContainerSpec) -> None:
        """Bring the files that were made here to a far host, a patched config.json; checkpoints are staged there."""
        if self._tunnel is None:
            return
        for mount in (mount for mount in spec.mounts if not mount.source.startswith("/")):  # else of the far host alone
            if (local := self._local_home.made_for(self._url) / RelativePath(mount.source)).is_file():
                self._tunnel.write(f"{self._tunnel.home}/{mount.source}", local.read_text())

    def group_id(self, name: str) -> str | None:
        """The id of a group there, None where there is none of that name."""
        result = self._run(["getent", "group", name])
        return result.stdout.split(":")[2] if result.ok else None

    def port_holder(self, port: int) -> str | None:
        """Who listens on a port there: a container, else a process as far as we may see it."""
        for container in self.client.containers.list(filters={"publish": str(port)}):
            return f"container `{container.name}`"
        result = self._run(["ss", "-Hltnp", f"sport = :{port}"])
        found = re.search(r'users:\(\("(?P<name>[^"]+)",pid=(?P<pid>\d+)', result.stdout)
        return f"`{found['name']}`, pid {found['pid']}" if found else None

    def close(self) -> None:
        """End the connections; what runs there runs on."""
        if "client" in self.__dict__:
            self.client.close()
        if "_tunnel" in self.__dict__ and self._tunnel is not None:
            self._tunnel.close()

    @cached_property
    def _tunnel(self) -> Tunnel | None:
        return Tunnel.open(SshHost.parse(self._url)) if self._url.startswith("ssh://") else None

    def _run(self, argv: Sequence[str]) -> CompletedProgram:
        return self._tunnel.run(argv) if self._tunnel is not None else run_or_127(argv, timeout=60)
