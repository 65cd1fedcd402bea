"""`deploy watch --install`: the systemd unit that keeps a watch running."""

import os
import pwd
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orchestrator.core.errors import Interrupted, RestartLimitError, StartError, UsageError
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import SAFE_LENGTH, is_secret_name, looks_secret
from orchestrator.core.subprocesses import python_module_argv
from orchestrator.plan.plan import Plan
from orchestrator.runs.run_dir import latest_run, not_started, read_plan, require_name, require_plan, runs_of
from orchestrator.servers.watch.recovery import require_not_cluster_managed

WEBHOOK: Final = "DEPLOY_WEBHOOK"  # the variable with the webhook's URL
# Paths and addresses; a URL may contain a password.
_PASSED_ON: Final = ("DOCKER_HOST", "DOCKER_CONTEXT", "HF_HOME", "HF_ENDPOINT", "KUBECONFIG", "SLURM_CONF")
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
# no restart after exit codes that a restart does not change: usage, failed start, gave up
RestartPreventExitStatus={usage} {start} {given_up}
SuccessExitStatus={interrupted}
# a server that it has started again belongs to this unit's group and stays when the watch is stopped
KillMode=process
TimeoutStopSec=180

[Install]
WantedBy=multi-user.target
"""


def unit_text(names: Sequence[str], home: Home, *, command: str | None) -> str:
    """Return the text of the unit, which reads secrets, such as keys and a webhook's URL, from a file.

    Raises UsageError if the command contains a secret, StartError if a name has no run.
    """
    for name in names:
        _watched_plan(home, name)
    secrets = secrets_file(names, home)
    if command and _holds_secret(command):
        hint = f"pass a script that reads the secret from its environment: write `NAME=VALUE` into `{secrets}`"
        raise UsageError("`--exec` contains a secret, which the unit and `ps` would show", hint=hint)
    words = python_module_argv("orchestrator", "watch", *names, "--json")
    words += ["--exec", command] if command else []
    passed = {"DEPLOY_HOME": str(home.root), "PATH": os.environ.get("PATH", os.defpath)}
    passed |= {name: value for name, value in os.environ.items() if name in _PASSED_ON and not looks_secret(value)}
    return _UNIT.format(
        names=" ".join(names),
        user=_user(),
        directory=_specifier(str(Path.cwd())),  # a relative path in a command starts here
        environment="\n".join(f"Environment={_quoted(f'{name}={value}')}" for name, value in passed.items()),
        secrets=_specifier(str(secrets)),
        command=" ".join(_quoted(word).replace("$", "$$") for word in words),
        usage=UsageError.exit_code,
        start=StartError.exit_code,
        given_up=RestartLimitError.exit_code,
        interrupted=Interrupted.exit_code,
    )


def secrets_file(names: Sequence[str], home: Home) -> Path:
    """Return the file of `NAME=VALUE` lines that the unit reads if it exists."""
    return home.root / FileName(f"watch-{names[0]}.env")


def secret_variables(names: Sequence[str], home: Home) -> tuple[str, ...]:
    """Return the variables that the watch needs but the unit does not contain."""
    keys = (_watched_plan(home, name).server.api_key_env for name in names)
    secret = (name for name in _PASSED_ON if looks_secret(os.environ.get(name, "")))
    return tuple(dict.fromkeys(filter(None, (*keys, WEBHOOK if os.environ.get(WEBHOOK) else None, *secret))))


def _holds_secret(command: str) -> bool:
    """Return whether a command contains a likely secret, an option named like one, or the value of such a variable."""
    words = re.split(r"[\s=:'\"]+", command)
    options = (word.lstrip("-").replace("-", "_") for word in words if word.startswith("-"))
    values = (value for name, value in os.environ.items() if is_secret_name(name) and len(value) >= SAFE_LENGTH)
    return looks_secret(command) or any(map(is_secret_name, options)) or any(value in command for value in values)


def _user() -> str:
    """Return the user of this process; `su` or a container may have left another user in LOGNAME."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _watched_plan(home: Home, name: str) -> Plan:
    require_name(name)
    if (newest := latest_run(home, name)) is None:
        raise not_started(home, name)
    plan = next(filter(None, map(read_plan, runs_of(home, name))), None) or require_plan(newest, name)
    require_not_cluster_managed(plan, name)
    return plan


def _quoted(text: str) -> str:
    """Quote a word for a line of a unit (systemd.syntax(7)). Raises UsageError if it contains a line break."""
    text = _specifier(text)
    if not _NEEDS_QUOTES.search(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _specifier(text: str) -> str:
    if "\n" in text:
        raise UsageError("a line of a systemd unit cannot contain a line break", hint="remove it from the option")
    return text.replace("%", "%%")
