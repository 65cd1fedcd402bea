"""The command `deploy diagnose`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Final

import typer

from orchestrator.cli.options import HostOption, Json, server_names
from orchestrator.core.console import print_data
from orchestrator.core.errors import UsageError
from orchestrator.core.json_output import JsonOutput
from orchestrator.core.logs.lines import Lines, LogTail, complete_lines
from orchestrator.core.paths import Home
from orchestrator.core.suggest import did_you_mean
from orchestrator.diagnose.match import diagnose
from orchestrator.diagnose.report import DiagnosisOutput
from orchestrator.plan.plan import NAME
from orchestrator.runs.run_dir import known_names, latest_run, latest_runs, note_request
from orchestrator.servers.group import exit_problem
from orchestrator.servers.logs import saved_log
from orchestrator.servers.servers import exited_processes, open_servers
from orchestrator.servers.status import statuses

OUTPUT: Final = JsonOutput(DiagnosisOutput)


def command(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|LOGFILE",
            help="server, log file or - for stdin; default: last run",
            autocompletion=server_names,
        ),
    ] = None,
    *,
    host: HostOption = None,
    json: Json = False,
) -> None:
    """Find the cause of a failure in a log. Only known causes are named, with their log lines."""
    home = Home.from_environment()
    subject = subject or _last_started(home)
    if (run := latest_run(home, subject)) is not None:
        note_request(run)
    try:
        with _log_of(subject, home, host) as (lines, ended):
            diagnosis = diagnose(lines)
    except OSError as error:
        raise UsageError(f"cannot read the log of `{subject}`: {error.strerror}") from error
    healthy = not diagnosis.matches and not ended and _is_healthy(subject, home, host)
    if json:
        OUTPUT.show(diagnosis.to_output(healthy=healthy, ended=ended))
    elif healthy:
        print_data(f"`{subject}` is healthy, and its log of {diagnosis.lines} lines shows no known fault")
    else:
        print_data("\n\n".join(filter(None, [ended, diagnosis.to_text()])))


def _is_healthy(subject: str, home: Home, host: str | None) -> bool:
    """Return whether the subject is a healthy server."""
    if subject not in known_names(home):
        return False
    with open_servers(home, host, name=subject) as servers:
        return any(server.health == "healthy" for server in statuses(servers, subject, check_health=True))


@contextmanager
def _log_of(subject: str, home: Home, host: str | None) -> Iterator[tuple[Iterator[str], str]]:
    """Yield the lines of a file, stdin, a server, or the last run of a name, and the server's exit summary.

    The summary is needed because a killed server does not log its end. It is "" for a running server.
    """
    if subject == "-":
        yield Lines(complete_lines(iter(lambda: sys.stdin.buffer.read(1 << 16), b""))), ""
    elif Path(subject).is_file():
        yield LogTail(Path(subject), single_file=True).to_end(), ""
    else:
        with open_servers(home, host, name=subject) as servers:
            found = servers.find(subject) if NAME.match(subject) else ()
            if found:
                server, state = found[0], found[0].state
                ended = exit_problem(subject, state)
                detail = "" if ended else state.detail
                extra_lines = filter(None, [exited_processes(server), detail])
                yield chain(server.logs(follow=False), extra_lines), ended.message if ended else ""
            elif (saved := saved_log(servers, subject)) is not None:
                yield saved, ""
            else:
                raise UsageError(
                    f"no log file or server `{subject}` found",
                    hint=did_you_mean(subject, known_names(home)) or "`deploy status` lists servers",
                )


def _last_started(home: Home) -> str:
    runs = latest_runs(home)
    if not runs:
        raise UsageError("no run found", hint="pass a log file: `deploy diagnose server.log`")
    return max(runs, key=lambda run: run.path.name).path.parent.name
