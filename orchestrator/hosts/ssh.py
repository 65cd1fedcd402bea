"""The ssh connection to a remote host; it carries the Docker socket, server ports and short commands.

`deploy` runs the `ssh` program, so that the user's configuration, agent and jump hosts apply. The connection always
ends with this process, even after a kill: the remote command is `cat`, which exits when its standard input is closed.
"""

import errno
import re
import signal
import socket
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from orchestrator.core.errors import HostError, UsageError
from orchestrator.core.files import open_new
from orchestrator.core.subprocesses import (
    DEVNULL,
    PIPE,
    CompletedProgram,
    Program,
    ProgramMissingError,
    quote,
    run,
    run_or_127,
    start,
)
from orchestrator.hosts.ports import free_port

# A host is a name, an address or an alias. A leading `-` is rejected, because ssh would parse it as an option.
_URL: Final = re.compile(
    r"ssh://(?P<user>\w[\w.-]*@)?(?P<host>\w[\w.-]*|\[[0-9A-Fa-f:.%\w]+\])(:(?P<port>\d{1,5}))?(?P<socket>/\S*)?\Z"
)
_LAST_PORT: Final = 65535
# Closes the connection a minute after the network fails.
_ALIVE: Final = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
_GRACE: Final = 5.0  # seconds that ssh has to close the connection
_READY: Final = "deploy-home="
REMOTE_HOME: Final = '"${DEPLOY_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/deploy}"'  # `deploy`'s home, in shell
_REMOTE_COMMAND: Final = f'printf "{_READY}%s\\n" {REMOTE_HOME}; exec cat'


@dataclass(frozen=True, kw_only=True)
class SshHost:
    """A remote host, parsed from `ssh://[user@]host[:port][/socket]` like the docker command does."""

    address: str  # [user@]host, as an argument of ssh
    port: int | None
    socket: str  # path of the Docker socket on the remote host

    @classmethod
    def parse(cls, url: str) -> "SshHost":
        """Parse an ssh URL. Raises UsageError if it is invalid or contains a password.

        The host keeps its case, because it may be an alias in the ssh configuration.
        """
        if re.match(r"ssh://[^/@]*:[^/@]*@", url):
            hint = "`ssh-copy-id USER@HOST` installs your key"
            raise UsageError("the URL of the Docker host has a password", hint=hint)
        match = _URL.match(url)
        if match is None or int(match["port"] or 0) > _LAST_PORT:
            raise UsageError(f"`{url}` is not the URL of a remote host", hint="write ssh://[user@]host[:port]")
        return cls(
            address=(match["user"] or "") + match["host"].strip("[]"),
            port=int(match["port"]) if match["port"] else None,
            socket=match["socket"] or "/var/run/docker.sock",
        )


def is_ssh_url(url: str) -> bool:
    """Return whether `url` names a remote host."""
    try:
        SshHost.parse(url)
    except UsageError:
        return False
    return True


def ssh_runner(url: str) -> Callable[[Sequence[str]], CompletedProgram]:
    """Return a function that runs a program on a remote host and waits at most 150 s for it to exit.

    ssh never asks for a password. Raises UsageError if `url` is not a valid ssh URL.
    """
    prefix = _ssh(SshHost.parse(url))
    return lambda argv: run_or_127([*prefix, quote(argv)], timeout=150)


def ssh_argv(url: str, argv: Sequence[str]) -> list[str]:
    """Return the argv that runs a program on a remote host; ssh never asks for a password. Raises UsageError."""
    return [*_ssh(SshHost.parse(url)), quote(argv)]


def ssh_hostname(url: str) -> str:
    """Return the name or address to which ssh connects for a URL, according to the user's configuration."""
    host = SshHost.parse(url)
    options = run_or_127(_ssh(host, None, "-G"), timeout=20).stdout
    match = re.search(r"^hostname (\S+)$", options, re.MULTILINE)
    return match[1] if match else host.address.rpartition("@")[2]


def ssh_start(url: str, argv: Sequence[str], errors: IO[bytes]) -> Program:
    """Start a program on a remote host over a new connection, with pipes as its standard input and output.

    The connection ends with this process; the remote program must exit when its connection closes. The error output of
    ssh and of the program goes to `errors`. Raises UsageError if `url` is not a valid ssh URL, HostError if `ssh` is
    not installed.
    """
    host = SshHost.parse(url)
    try:
        return start([*_ssh(host, None, *_ALIVE), quote(argv)], stdin=PIPE, output=PIPE, errors=errors, tied=True)
    except ProgramMissingError as error:
        raise _no_ssh() from error


class SshForward:
    """A port of a remote host, forwarded to a Unix socket in a private directory.

    With a local TCP port, another user's program could listen first and receive the API key.
    """

    def __init__(self, url: str, port: int) -> None:
        """Start an ssh process that forwards to 127.0.0.1:`port` of a host; it connects later and exits with this one.

        Raises UsageError if `url` is not a valid ssh URL, HostError if `ssh` is not installed.
        """
        self._host = SshHost.parse(url)
        temporary = tempfile.TemporaryDirectory(prefix="deploy-ssh-", ignore_cleanup_errors=True)
        self._socket, self._errors = Path(temporary.name) / "server.sock", Path(temporary.name) / "stderr"
        # `-S none`: over a connection that the user's ssh shares, the forward would outlive this process.
        options = ("-S", "none", *_ALIVE, "-N", "-L", f"{self._socket}:127.0.0.1:{port}")
        try:
            with open_new(self._errors) as errors:
                self._program = start(_ssh(self._host, None, *options), output=DEVNULL, errors=errors, tied=True)
        except ProgramMissingError as error:
            temporary.cleanup()
            raise _no_ssh() from error
        self.close = weakref.finalize(self, _close, self._program, temporary)

    @property
    def runs(self) -> bool:
        """Whether the ssh process is running; it may not be connected yet."""
        return self._program.code is None

    def connect(self, timeout: float) -> socket.socket:
        """Connect to the port; `timeout` is the limit of each operation in seconds.

        Raises OSError while ssh is not connected; its `strerror` ends with the last line that ssh wrote.
        """
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        try:
            connection.connect(str(self._socket))
        except OSError as error:
            connection.close()
            last = "".join(self._errors.read_text(errors="replace").splitlines()[-1:])
            reason = f"ssh to `{self._host.address}` is not connected{last and f': {last}'}"
            raise ConnectionRefusedError(errno.ECONNREFUSED, reason) from error
        return connection


class Tunnel:
    """An open connection to a remote host."""

    def __init__(
        self, program: Program, *, host: SshHost, temporary: tempfile.TemporaryDirectory[str], home: str
    ) -> None:
        folder = Path(temporary.name)
        self.docker_url = f"unix://{folder / 'docker.sock'}"
        self.home = home  # home directory of `deploy` on the remote host
        self._host = host
        self._folder = folder
        self._ports: dict[int, int] = {}
        self.close = weakref.finalize(self, _close, program, temporary)

    @classmethod
    def open(cls, host: SshHost) -> "Tunnel":
        """Connect to a host. Raises HostError with the output of ssh if the connection fails."""
        temporary = tempfile.TemporaryDirectory(prefix="deploy-ssh-", ignore_cleanup_errors=True)
        folder = Path(temporary.name)
        argv = _ssh(host, folder, "-M", "-L", f"{folder / 'docker.sock'}:{host.socket}")
        try:
            with open_new(folder / "stderr") as stderr:
                # `start` opens a new session: after Ctrl-C the cleanup still needs the tunnel.
                program = start([*argv, _REMOTE_COMMAND], stdin=PIPE, output=PIPE, errors=stderr)
        except ProgramMissingError as error:
            temporary.cleanup()
            raise _no_ssh() from error
        try:
            ready = (line.removeprefix(_READY) for line in program.lines() if line.startswith(_READY))
            home = next(ready, None)  # after the banners of login scripts; None if ssh exits first
        except BaseException:  # Ctrl-C does not reach ssh, so close it here
            _close(program, temporary)
            raise
        if home is None:
            errors = (folder / "stderr").read_text().strip()
            _close(program, temporary)
            hint = f"`ssh {host.address} true` must work without a prompt: key, agent, known host"
            raise HostError(f"cannot connect to `{host.address}` with ssh", hint=hint, details=f"  {errors}")
        return cls(program, host=host, temporary=temporary, home=home)

    def forward(self, port: int) -> int:
        """Return the local port that is forwarded to 127.0.0.1:`port` of the remote host.

        The first call for a port opens the forward. Raises HostError if ssh cannot open it.
        """
        if port not in self._ports:
            local = free_port()
            result = self._ask("-O", "forward", "-L", f"127.0.0.1:{local}:127.0.0.1:{port}")
            if not result.ok:
                message = f"cannot open a tunnel to port {port} of `{self._host.address}`"
                raise HostError(message, details=f"  {result.stderr.strip()}")
            self._ports[port] = local
        return self._ports[port]

    def forward_argv(self, port: int) -> list[str]:
        """Return the ssh command that forwards the same local port after this process has exited."""
        number = ["-p", str(self._host.port)] if self._host.port is not None else []
        return ["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}", *number, self._host.address]

    def run(self, argv: Sequence[str]) -> CompletedProgram:
        """Run a program on the remote host and wait at most 60 s for it to exit."""
        return self._ask(command=quote(argv))

    def write(self, path: str, text: str) -> None:
        """Write a file on the remote host atomically, and create its directory. Raises HostError on failure."""
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1.new" && mv "$1.new" "$1"'
        result = self._ask(command=quote(["sh", "-c", script, "sh", path]), stdin=text)
        if not result.ok:
            raise HostError(f"cannot write `{path}` on `{self._host.address}`", details=f"  {result.stderr}")

    def _ask(self, *options: str, command: str = "", stdin: str | None = None) -> CompletedProgram:
        argv = _ssh(self._host, self._folder, *options)
        return run([*argv, command] if command else argv, stdin=stdin, timeout=60)


def _ssh(host: SshHost, folder: Path | None = None, *options: str) -> list[str]:
    """Return the ssh argv up to the remote command; `folder` holds the control socket of an open connection."""
    port = ["-p", str(host.port)] if host.port is not None else []
    settings = ("BatchMode=yes", "ExitOnForwardFailure=yes", "ControlPersist=no", "RequestTTY=no", "ConnectTimeout=20")
    fixed = [word for setting in settings for word in ("-o", setting)]
    control = ["-S", str(folder / "control")] if folder is not None else []
    return ["ssh", *fixed, *control, *port, *options, "--", host.address]


def _no_ssh() -> HostError:
    return HostError("no `ssh` found on this host", hint="`apt-get install openssh-client`")


def _close(program: Program, temporary: tempfile.TemporaryDirectory[str]) -> None:
    program.end(signal.SIGTERM, grace=_GRACE)
    temporary.cleanup()
