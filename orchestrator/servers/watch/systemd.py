"""`deploy watch --install`: the systemd unit that keeps a watch running, and the file for its secrets."""

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from orchestrator.core.errors import HostError, Interrupted, RestartLimitError, StartError, UsageError
from orchestrator.core.files import atomic_write
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import SAFE_LENGTH, is_secret_name, looks_secret
from orchestrator.core.subprocesses import python_module_argv, quote
from orchestrator.runs.run_dir import latest_run, not_started, read_plan, require_name, require_plan, runs_of
from orchestrator.servers.watch.recovery import require_not_cluster_managed

WEBHOOK: Final = "DEPLOY_WEBHOOK"  # the variable for its URL
_SYSTEM: Final = Path("/etc/systemd/system")
_PASSED_ON: Final = (
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "HF_HOME",
    "HF_ENDPOINT",
    "KUBECONFIG",
    "SLURM_CONF",
)  # where things are; a URL may hold a password
_NEEDS_QUOTES: Final = re.compile(r"[^\w@+=:,./-]")

_UNIT: Final = """\
[Unit]
Description=deploy watch {names}
After=network-online.target docker.service
Wants=network-online.target

[Service]
Type=exec
User={user}
WorkingDirectory=-{directory}
{environment}
EnvironmentFile=-{secrets}
ExecStart={command}
Restart=always
RestartSec=5
# what it has given up on, and what a restart of it cannot mend, waits for a person
RestartPreventExitStatus={usage} {start} {given_up}
SuccessExitStatus={interrupted}
# a server that it has started again belongs to this unit's group and stays when the watch is stopped
KillMode=process
TimeoutStopSec=180

[Install]
WantedBy=multi-user.target
"""


def install_unit(names: Sequence[str], home: Home, *, command: str | None, output: Path | None) -> str:
    """Write the unit, and an empty file for secrets; the commands that come next.

    Raises UsageError for a command that holds a secret, StartError for a name
    that nothing was started under, HostError where it may not be written.
    """
    variables = [variable for name in names for variable in _key_of(home, name)]
    secrets = home.root / FileName(f"watch-{names[0]}.env")
    if command and _holds_secret(command):
        hint = f"let a script of yours read it from a file, or from its environment: `{secrets}` has variables for it"
        raise UsageError(
            "`--exec` holds what looks like a secret, and the unit and every `ps` would show it", hint=hint
        )
    unit = f"deploy-watch-{names[0]}.service"
    file = output or _SYSTEM / FileName(unit)
    try:
        if not secrets.exists():
            atomic_write(secrets, "", mode=0o600)
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, unit_text(names, home, command=command, secrets=secrets), mode=0o644)
    except OSError as error:
        hint = f"`--output {unit}` writes it here; then `sudo install -m 644 {unit} {_SYSTEM}`"
        raise HostError(f"cannot write the unit: {error.strerror}", where=str(error.filename), hint=hint) from error
    steps = [f"wrote `{file}`; next:"]
    variables += [WEBHOOK] if os.environ.get(WEBHOOK) else []
    variables += [name for name in _PASSED_ON if looks_secret(os.environ.get(name, ""))]
    steps += [f"    printf '{each}=%s\\n' \"${each}\" >> {quote([str(secrets)])}" for each in dict.fromkeys(variables)]
    if file.parent != _SYSTEM:
        steps.append(f"    sudo install -m 644 {quote([str(file)])} {_SYSTEM / FileName(unit)}")
    steps += ["    sudo systemctl daemon-reload", f"    sudo systemctl enable --now {unit}"]
    return "\n".join([*steps, f"    journalctl -u {unit} -f"])


def unit_text(
    names: Sequence[str], home: Home, *, command: str | None, secrets: Path, environ: Mapping[str, str] = os.environ
) -> str:
    """The unit. What may be secret, keys and a webhook's URL, is read from the file `secrets`."""
    words = python_module_argv("orchestrator", "watch", *names, "--json")
    words += ["--exec", command] if command else []
    passed = {"DEPLOY_HOME": str(home.root), "PATH": environ.get("PATH", os.defpath)}
    passed |= {name: environ[name] for name in _PASSED_ON if name in environ and not looks_secret(environ[name])}
    return _UNIT.format(
        names=" ".join(names),
        user=_user(),
        directory=_specifier(str(Path.cwd())),  # a command may be written as it is seen from here
        environment="\n".join(f"Environment={_word(f'{name}={value}')}" for name, value in passed.items()),
        secrets=_specifier(str(secrets)),
        command=" ".join(_word(word).replace("$", "$$") for word in words),
        usage=UsageError.exit_code,
        start=StartError.exit_code,
        given_up=RestartLimitError.exit_code,
        interrupted=Interrupted.exit_code,
    )


def _holds_secret(command: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether it looks so, has an option called so, or has the value of a variable that is called so."""
    words = re.split(r"[\s=:'\"]+", command)
    options = (word.lstrip("-").replace("-", "_") for word in words if word.startswith("-"))
    values = (value for name, value in environ.items() if is_secret_name(name) and len(value) >= SAFE_LENGTH)
    return looks_secret(command) or any(map(is_secret_name, options)) or any(value in command for value in values)


def _user() -> str:
    """Who runs this, whatever `su` or a container has left in LOGNAME."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _key_of(home: Home, name: str) -> Sequence[str]:
    """The variables that hold what the server of a name is asked with."""
    require_name(name)
    if (newest := latest_run(home, name)) is None:
        raise not_started(home, name)
    plan = next(filter(None, map(read_plan, runs_of(home, name))), None) or require_plan(newest, name)
    require_not_cluster_managed(plan, name)
    return [plan.server.api_key_env] if plan.server.api_key_env else []


def _word(text: str) -> str:
    """One word of a unit's line (systemd.syntax(7)). Raises UsageError for one that a line cannot hold."""
    text = _specifier(text)
    if not _NEEDS_QUOTES.search(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _specifier(text: str) -> str:
    if "\n" in text:
        raise UsageError("a unit's line holds no line end")
    return text.replace("%", "%%")
