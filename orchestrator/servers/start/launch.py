"""From artifacts to a running, verified server. A failure or an interrupt leaves nothing behind."""

from contextlib import suppress
from typing import Final

from orchestrator.core.console import info, warn
from orchestrator.core.errors import DeployError, HostError, Interrupted, interrupts_as_errors
from orchestrator.core.files import remove_tree
from orchestrator.core.paths import Home
from orchestrator.core.signals import allow_signals, defer_signals
from orchestrator.core.streams import ignore_sigpipe
from orchestrator.core.subprocesses import quote
from orchestrator.kernels.plan_table import kernel_gate
from orchestrator.planner.lock import input_copies, lock_of_start
from orchestrator.planner.planning import rendered_files
from orchestrator.runs.run_dir import REQUEST_FILE, RunDir, open_run
from orchestrator.runtimes.base import Runtime, Status
from orchestrator.servers.exit_record import failure_reason, record_exit
from orchestrator.servers.group import Server, servers_of, start_unit
from orchestrator.servers.rollout.join import join, join_again, join_or_warn, leave
from orchestrator.servers.rollout.replicas import ReplicatedStart
from orchestrator.servers.servers import Servers
from orchestrator.servers.soaks import save_report
from orchestrator.servers.start.request import StartSpec, UpRequest, UpResult
from orchestrator.servers.start.verify import explain_failure, run_smoke_test, wait_for_server

_NOTHING_LEFT: Final = "nothing is left running"


def open_run_dir(start: StartSpec, home: Home) -> RunDir:
    """Create the run directory and write its files. Raises HostError, after it has removed the directory."""
    ignore_sigpipe()
    run = open_run(home, start.name, start.artifacts.plan)
    try:
        _fill(run, start, home)
    except BaseException:
        remove_tree(run.path, within=home.runs)
        raise
    return run


def _fill(run: RunDir, start: StartSpec, home: Home) -> None:
    plan, request = start.artifacts.plan, start.request
    lock = lock_of_start(plan, request.profile, request.overrides, home, run.path)
    rendered = (*rendered_files(start.artifacts, start.name), *input_copies(plan, home), lock)
    run.write(rendered)
    for file, record in start.records.items():
        run.save_state(file, record)
    run.save_state(REQUEST_FILE, request.to_record(start.name))


def start_server(start: StartSpec, servers: Servers) -> UpResult:
    """Start a server, wait until it is ready and verify it. A failure stops it and raises a DeployError."""
    name, plan, key = start.name, start.artifacts.plan, start.key
    backend = servers.runtimes[plan.runtime]
    run = open_run_dir(start, servers.home)
    server = joining = None
    with defer_signals():  # nothing interrupts the stop after a failure
        try:
            with interrupts_as_errors(), allow_signals():
                if plan.gateway is None:
                    server = start_unit(backend, start.artifacts, name=name, run_dir=run.path, secrets=start.secrets)
                    info(f"started `{name}`; log: {_log_location(start.request, run, name)}")
                    seconds = wait_for_server(server, plan=plan, key=key, timeout=start.request.timeout)
                    report = run_smoke_test(server, plan=plan, key=key)
                else:
                    replicas = ReplicatedStart(start=start, run=run, home=servers.home, backend=backend)
                    seconds = replicas.start_servers()
                    server = replicas.start_gateway()
                    report = replicas.report
                save_report(run, report, of_start=True)
                report.require()
                logged = server.logs(follow=False)
                kernel_gate(logged, plan=plan, run=run, strict=start.request.strict_kernels)
                if plan.gateway is None:
                    joining = server
                    (join_or_warn if start.request.run else join)(server, servers)
                else:
                    join_again(server, servers)
                start.on_verified()  # after this, an interrupt would report a failure although the server keeps running
        except BaseException as error:
            if joining is not None and not start.request.keep_failed:
                leave(joining, servers, seconds=0)
            server = server or _started(backend, name, run)
            _stop_and_explain(error, server, run=run, keep=start.request.keep_failed)
            raise
    return UpResult(server=server, served_name=plan.model.served_name, smoke=report, seconds=seconds)


def _started(backend: Runtime, name: str, run: RunDir) -> Server | None:
    """Find the server of this run; an interrupt may have come before `start` returned it."""
    with suppress(HostError):
        return next(
            (server for server in servers_of(backend, backend.find(name)) if server.run_dir == str(run.path)), None
        )
    return None


def _log_location(request: UpRequest, run: RunDir, name: str) -> str:
    """Return the path of the log, or the command that shows it while the runtime keeps it."""
    if run.log.exists():
        return str(run.log)
    return f"`{quote(['deploy', 'logs', name, *(['--host', request.host] if request.host else [])])}`"


def _stop_and_explain(error: BaseException, server: Server | None, *, run: RunDir, keep: bool) -> None:
    """Stop the server; add to the error its remaining processes, the next command and a diagnosis of the log.

    `Runtime.start` leaves no server if it fails.
    """
    interrupted = isinstance(error, Interrupted)
    if server is None:
        record_exit(run, failure_reason(error))
        if interrupted:
            raise Interrupted("interrupted; no server was started", hint=_NOTHING_LEFT) from error
        return
    detail = "" if keep else stop_after_failure(server, run, failure_reason(error))
    if not isinstance(error, DeployError):
        return
    if keep:
        error.hint = f"`{server.name}` is kept; see `deploy logs {server.name}`, then `deploy down {server.name}`"
    elif interrupted:
        runs = _might_run(server)
        error.hint = f"`{server.name}` " + (
            f"may still be running; stop with `deploy down {server.name}`" if runs else f"was stopped; {_NOTHING_LEFT}"
        )
    if not interrupted:
        error.hint = error.hint or f"`deploy logs {server.name}` shows the whole log"
        error.details = "\n\n".join(filter(None, [error.details, explain_failure(server, detail)]))


def _might_run(server: Server) -> bool:
    try:
        return server.current_state().status in {Status.PENDING, Status.RUNNING, Status.UNKNOWN}
    except DeployError:
        return True


def stop_after_failure(server: Server, run: RunDir | None, reason: str) -> str:
    """Stop a server even if its state is unknown; return the detail of its state.

    Print an error instead of raising it, because the caller raises an earlier one.
    """
    detail = ""
    with suppress(DeployError):
        detail = server.current_state().detail
    try:
        server.stop(grace=0)
        if run is not None:
            record_exit(run, reason)
    except (DeployError, OSError) as error:
        warn(f"`{server.name}` may still run: {error}", hint=f"`deploy down {server.name}` stops it")
    return detail
