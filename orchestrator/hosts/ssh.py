"""One ssh connection to a far host: the Docker daemon's socket, the server's port and short commands go through it.

The ssh program does the work, so the user's own configuration, agent and jump hosts apply. The connection ends with
this process, however that ends: the far side runs `cat`, which leaves when our end of the pipe is closed.
"""

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
    PIPE,
    CompletedProgram,
    Program,
    ProgramMissingError,
    quote,
    run,
    run_or_127,
    start,
)

# A host is a name, an address or an alias; one that begins with `-` would be an option of ssh.
_URL: Final = re.compile(
    r"ssh://(?P<user>\w[\w.-]*@)?(?P<host>\w[\w.-]*|\[[0-9A-Fa-f:.%\w]+\])(:(?P<port>\d{1,5}))?(?P<socket>/\S*)?\Z"
)
_LAST_PORT: Final = 65535
_ALIVE: Final = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")  # a network that is gone is noticed
_GRACE: Final = 5.0  # seconds ssh has to close the connection
_READY: Final = "deploy-home="
_FAR_COMMAND: Final = (
    f'printf "{_READY}%s\\n" "${{DEPLOY_HOME:-${{XDG_DATA_HOME:-$HOME/.local/share}}/deploy}}"; exec cat'
)


@dataclass(frozen=True, kw_only=True)
class SshHost:
    """`ssh://[user@]host[:port][/socket]`, read as the docker command reads it."""

    address: str  # what ssh is given: [user@]host
    port: int | None
    socket: str  # of the Docker daemon there

    @classmethod
    def parse(cls, url: str) -> "SshHost":
        """Raises UsageError for what is not one. Case is kept: the name may be an alias of the ssh configuration."""
        if re.match(r"ssh://[^/@]*:[^/@]*@", url):
            raise UsageError("a Docker host's URL holds a password", hint="let ssh use a key or an agent")
        found = _URL.match(url)
        if found is None or int(found["port"] or 0) > _LAST_PORT:
            raise UsageError(f"`{url}` is not a far host", hint="write ssh://[user@]host[:port]")
        return cls(
            address=(found["user"] or "") + found["host"].strip("[]"),
            port=int(found["port"]) if found["port"] else None,
            socket=found["socket"] or "/var/run/docker.sock",
        )


def ssh_runner(url: str) -> Callable[[Sequence[str]], CompletedProgram]:
    """What runs a program on a far machine, to its end, without asking for a password. Raises UsageError."""
    far = SshHost.parse(url)
    return lambda argv: run_or_127([*_ssh(far), quote(argv)], timeout=150)


def ssh_start(url: str, argv: Sequence[str], errors: IO[bytes]) -> Program:
    """Start a program on a far machine over a connection of its own; what it reads and prints goes through ours.

    It is asked to end with the connection, and that ends with this process. What ssh says goes to `errors`. Raises
    UsageError for what is no URL, HostError where there is no ssh.
    """
    far = SshHost.parse(url)
    try:
        return start([*_ssh(far, None, *_ALIVE), quote(argv)], stdin=PIPE, output=PIPE, errors=errors, tied=True)
    except ProgramMissingError as error:
        raise _no_ssh() from error


class Tunnel:
    """An open connection to a far host."""

    def __init__(
        self, program: Program, *, far: SshHost, temporary: tempfile.TemporaryDirectory[str], home: str
    ) -> None:
        folder = Path(temporary.name)
        self.docker_url = f"unix://{folder / 'docker.sock'}"
        self.home = home  # the tool's home directory there
        self._far = far
        self._folder = folder
        self._ports: dict[int, int] = {}
        self.close = weakref.finalize(self, _close, program, temporary)

    @classmethod
    def open(cls, far: SshHost) -> "Tunnel":
        """Connect. Raises HostError with what ssh said."""
        temporary = tempfile.TemporaryDirectory(prefix="deploy-ssh-", ignore_cleanup_errors=True)
        folder = Path(temporary.name)
        argv = _ssh(far, folder, "-M", "-L", f"{folder / 'docker.sock'}:{far.socket}")
        try:
            with open_new(folder / "stderr") as stderr:
                # In a session of its own: after Ctrl-C the tunnel is still needed for the clean-up.
                program = start([*argv, _FAR_COMMAND], stdin=PIPE, output=PIPE, errors=stderr)
        except ProgramMissingError as error:
            temporary.cleanup()
            raise _no_ssh() from error
        try:
            home = _await_ready(program)
        except BaseException:  # Ctrl-C, which does not reach it
            _close(program, temporary)
            raise
        if home is None:
            said = (folder / "stderr").read_text().strip()
            _close(program, temporary)
            raise HostError(
                f"`{far.address}` cannot be reached by ssh",
                hint=f"`ssh {far.address} true` has to work without a question: key, agent, known host",
                details=f"  {said}",
            )
        return cls(program, far=far, temporary=temporary, home=home)

    def forward(self, port: int) -> int:
        """The local port that leads to 127.0.0.1:`port` there, opened at the first call."""
        if port not in self._ports:
            local = _free_port()
            result = self._ask("-O", "forward", "-L", f"127.0.0.1:{local}:127.0.0.1:{port}")
            if not result.ok:
                raise HostError(
                    f"no tunnel to port {port} of `{self._far.address}`", details=f"  {result.stderr.strip()}"
                )
            self._ports[port] = local
        return self._ports[port]

    def argv_of_way(self, port: int) -> list[str]:
        """The command by which a person makes that way, at the same port here; it stays as long as they need it."""
        number = ["-p", str(self._far.port)] if self._far.port is not None else []
        return ["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}", *number, self._far.address]

    def run(self, argv: Sequence[str]) -> CompletedProgram:
        """Run a short program there."""
        return self._ask(command=quote(argv))

    def write(self, path: str, text: str) -> None:
        """Write a file there whole or not at all, making its directory."""
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1.new" && mv "$1.new" "$1"'
        result = self._ask(command=quote(["sh", "-c", script, "sh", path]), stdin=text)
        if not result.ok:
            raise HostError(f"`{path}` cannot be written on `{self._far.address}`", details=f"  {result.stderr}")

    def _ask(self, *options: str, command: str = "", stdin: str | None = None) -> CompletedProgram:
        argv = _ssh(self._far, self._folder, *options)
        return run([*argv, command] if command else argv, stdin=stdin, timeout=60)


def _ssh(far: SshHost, folder: Path | None = None, *options: str) -> list[str]:
    """The argv up to the command; with `folder` through the connection whose control socket is kept there."""
    port = ["-p", str(far.port)] if far.port is not None else []
    settings = ("BatchMode=yes", "ExitOnForwardFailure=yes", "ControlPersist=no", "RequestTTY=no", "ConnectTimeout=20")
    fixed = [word for setting in settings for word in ("-o", setting)]
    control = ["-S", str(folder / "control")] if folder is not None else []
    return ["ssh", *fixed, *control, *port, *options, "--", far.address]


def _no_ssh() -> HostError:
    return HostError("there is no `ssh` on this machine", hint="install the OpenSSH client")


def _await_ready(program: Program) -> str | None:
    """The far home directory once the connection stands, None where ssh gave up; banners of login scripts pass by."""
    for line in program.lines():
        if line.startswith(_READY):
            return line.removeprefix(_READY)
    return None


def _close(program: Program, temporary: tempfile.TemporaryDirectory[str]) -> None:
    program.end(signal.SIGTERM, grace=_GRACE)
    temporary.cleanup()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
