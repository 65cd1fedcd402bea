"""The `slurm` runtime: a server as a job, with a supervisor of this tool on its node.

Slurm knows which jobs are pending and running. Comments identify the jobs of this tool, so they are found from any
terminal, and a requeued job is reached on its current node. An ended job is known from the file next to its log, since
Slurm forgets it after minutes. The run directory is on a file system that the nodes share.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from orchestrator.core import subprocesses
from orchestrator.core.console import Progress, warn
from orchestrator.core.errors import DeployError, HostError, StartError
from orchestrator.core.files import atomic_write, remove_file
from orchestrator.core.imported import Imported
from orchestrator.core.logs.lines import LogTail
from orchestrator.core.paths import Home
from orchestrator.core.polling import poll_until
from orchestrator.core.safe_paths import FileName
from orchestrator.core.secrets import Secret
from orchestrator.core.signals import defer_signals
from orchestrator.core.text import parse_json
from orchestrator.plan.plan import Plan
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.base import LOG, Cache, Runtime, ServerState, Unit
from orchestrator.runtimes.replicas import (
    rank_dir,
    rank_dirs,
    replica_name,
    require_name_free,
    role_of,
)
from orchestrator.runtimes.saved_logs import followed_log, saved_log
from orchestrator.runtimes.slurm import jobs
from orchestrator.runtimes.slurm.arguments import argument_files
from orchestrator.runtimes.slurm.job import start_file
from orchestrator.runtimes.slurm.jobs import Job, wait_for_node
from orchestrator.runtimes.slurm.record import FILE, SERVER, START, JobComment, Submission, read_submission
from orchestrator.runtimes.slurm.script import JOB_LOG, SCRIPT, job_name, job_of, job_options, job_script
from orchestrator.runtimes.slurm.state import found_units, is_stale, saved_state, state_of
from orchestrator.runtimes.supervisor.record import CONFIG, read_record, write_fields, write_stopped
from orchestrator.runtimes.supervisor.request import start_request

_POLL: Final = 0.5  # seconds between two polls of a job
_RECORD_TIMEOUT: Final = 10.0  # seconds for a killed server's record to appear on a shared file system
_DRAINS: Final = 960.0  # seconds: a job's longest wait for VRAM (hosts/vram.py), plus a margin
_ENDS: Final = 90.0  # seconds for Slurm to end a cancelled job: KillWait is 30 s by default, then the epilog
_QUERY_TIMEOUT: Final = 10.0  # timeout of a query to a node, in seconds
_PARTITION_HINT: Final = "set `slurm.gateway_partition` in the profile to a partition without exclusive nodes"


class SlurmRuntime(Runtime):
    """Servers as jobs. Their working directory is the tool's home, which the nodes share."""

    name = "slurm"
    is_local = False
    rules = Imported("orchestrator.runtimes.slurm.spec:RULES")
    checks = Imported("orchestrator.runtimes.slurm.checks:CHECKS")
    engine_python = Imported("orchestrator.runtimes.slurm.checks:engine_python")
    allocated_nodes = Imported("orchestrator.runtimes.slurm.checks:allocated_nodes")
    settings = Imported("orchestrator.runtimes.slurm.spec:settings")
    render = Imported("orchestrator.runtimes.slurm.spec:rendered")
    files = Imported("orchestrator.runtimes.slurm.spec:files")
    prepare = Imported("orchestrator.runtimes.slurm.spec:prepare")
    # The nodes share this user's home directory, or keep caches of their own.
    kernel_store = Imported("orchestrator.runtimes.supervisor.prepare:kernel_store")
    builtin_tables = Imported("orchestrator.runtimes.slurm.spec:tables")
    external_image = Imported("orchestrator.runtimes.slurm.spec:external_image")
    saved_state = staticmethod(saved_state)

    def __init__(self, home: Home, host: str | None = None) -> None:
        super().__init__(home, host)
        self._addresses: dict[str, str] = {}

    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Unit:
        """See `Runtime.start`. Returns when the job has its node. Raises StartError if it can never have one.

        A replica is only queued: `wait_for_placement` waits for its node.
        """
        units = self.find(name)
        require_name_free(run_dir.absolute(), units)
        plan, run = artifacts.plan, str(run_dir.absolute())
        comment = JobComment(name=name, profile=plan.profile, plan=plan.digest, port=plan.server.port, run=run)
        try:
            artifacts = _addressed(artifacts, Path(run), units)
            with defer_signals():
                submission = self._submit(artifacts, comment, secrets)
            queued = self._unit(comment, Job(id=submission.job))
            return queued if replica_name(run_dir) else self.wait_for_placement(queued, plan)
        except BaseException:  # mainly Ctrl-C; otherwise this job would remain without a record
            with defer_signals():
                self._cancel_start(comment)
            raise

    def find(self, name: str | None = None) -> tuple[Unit, ...]:
        """See `Runtime.find`. Raises HostError if Slurm does not answer or the runs of this home cannot be listed."""
        return tuple(found_units(self._home, name, self._listed))

    def wait_for_placement(self, unit: Unit, plan: Plan, *, on_wait: Callable[[], object] = lambda: None) -> Unit:
        hint = _PARTITION_HINT if plan.gateway else ""
        job = wait_for_node(unit.runtime_id, limit=job_of(plan).queue_timeout, hint=hint, on_wait=on_wait)
        return dataclasses.replace(unit, url=f"http://{self._address(job.node)}:{plan.server.port}")

    def state(self, unit: Unit) -> ServerState:
        """See `Runtime.state`. Raises HostError if Slurm does not answer, which does not mean NOT_FOUND."""
        return state_of(Path(unit.run_dir), lambda: jobs.find_job(unit.runtime_id))

    def process_cmdlines(self, unit: Unit) -> tuple[str, ...]:
        """See `Runtime.process_cmdlines`. A job step on the node reads them; () if no step can be started."""
        with suppress(HostError):
            submission = read_submission(Path(unit.run_dir))
            job = jobs.find_job(unit.runtime_id) if submission is not None and not submission.stopped else None
            if submission is not None and job is not None and job.runs:
                return _query_cmdlines(submission, job)
        return ()

    def logs(self, unit: Unit, *, follow: bool) -> Iterator[str]:
        """See `Runtime.logs`. The supervisor has stored the log without secrets, on the shared file system."""
        return followed_log(self, unit) if follow else saved_log(unit)

    def tail(self, unit: Unit) -> Callable[[], Iterator[str]]:
        return LogTail(Path(unit.run_dir, LOG))

    def stop(self, unit: Unit, *, grace: float) -> None:
        """See `Runtime.stop`. Waits for the job to end, which it does once its node's VRAM is released.

        Raises DeployError for a job that Slurm does not end. Raises HostError if Slurm does not answer, or for an
        unreadable record if no queued job is known to be its server.
        """
        run_dir = Path(unit.run_dir)
        if unit.runtime_id:
            self._end(unit.runtime_id, run_dir, grace=grace)
        else:
            read_submission(run_dir)  # raises the record's error
        if self._home.holds(run_dir, unit.name) or _is_run_of(unit.runtime_id, run_dir):
            _note_stopped(run_dir)

    def request_stop(self, unit: Unit) -> None:
        if unit.runtime_id and _server_runs(unit.runtime_id, Path(unit.run_dir)):
            jobs.signal_server(unit.runtime_id)

    def caches(self) -> Sequence[Cache]:
        from orchestrator.runtimes.supervisor.patched import copies  # noqa: PLC0415 - `status` does not need it

        return copies(self._home.job_packages, self)

    def _submit(self, artifacts: Artifacts, comment: JobComment, secrets: Mapping[str, Secret]) -> Submission:
        """Write the request for the node and submit the job. Raises StartError, HostError."""
        plan, run_dir = artifacts.plan, Path(comment.run)
        if plan.server.api_key_env is None and not replica_name(run_dir):
            warn(f"`{comment.name}` has no API key; anyone in the cluster's network can use it")
        job, python = job_of(plan), job_of(plan).python or sys.executable
        ranks = [rank_dir(run_dir, rank) for rank in range(1 if plan.gateway else plan.layout.nodes)]
        requests = {
            folder: start_request(
                artifacts, name=comment.name, run_dir=folder, cwd=self._home.root, secrets=secrets, record=SERVER
            )
            for folder in ranks
        }
        job_called = job_name(comment.name, plan, replica_name(run_dir))
        written = {SCRIPT: job_script(plan, job_called), **argument_files(artifacts)}
        try:
            for folder, request in requests.items():
                folder.mkdir(mode=0o700, exist_ok=True)
                text = start_file(dataclasses.asdict(request), requeue=job.requeue)
                atomic_write(folder / START, text, mode=0o600)
            for file, text in written.items():
                atomic_write(run_dir / FileName(file), text, mode=0o755 if file == SCRIPT else 0o600)
            log = str(run_dir / JOB_LOG).replace("%", "%%")
            fixed_options = (f"--chdir={self._home.root}", f"--output={log}", "--open-mode=append", "--export=ALL")
            options = (*job_options(plan, job_called), *fixed_options, f"--comment={comment.to_text()}")
            number = jobs.submit(options, str(run_dir / SCRIPT), python, comment.run)
            submission = Submission(job=number, comment=comment, python=python, stopped=False)
            write_fields(run_dir / FILE, dataclasses.asdict(submission))
        except OSError as error:
            hint = "`deploy prune` frees disk space"
            raise HostError(f"cannot write below `{run_dir}`: {error.strerror}", hint=hint) from error
        return submission

    def _cancel_start(self, comment: JobComment) -> None:
        """Cancel the jobs of a failed start, even if their numbers were never read; remove the secrets first."""
        run_dir = Path(comment.run)
        with suppress(OSError):
            for folder in (run_dir, *rank_dirs(run_dir)):
                remove_file(folder / START)
        try:
            for number in [number for number, text in jobs.queued() if JobComment.read(text) == comment]:
                self._end(number, run_dir, grace=0)
        except DeployError as error:
            warn(f"cannot check for jobs of `{comment.name}`: {error.message}", hint="`squeue --me`")
            return
        _note_stopped(run_dir)

    def _end(self, number: str, run_dir: Path, *, grace: float) -> None:
        job = jobs.find_job(number)
        if job is None or job.is_over:
            return
        if job.runs:
            _end_server(number, run_dir, grace=grace)
        jobs.cancel(number)
        job = poll_until(
            lambda job: job is None or job.is_over, lambda: jobs.find_job(number), timeout=_ENDS, interval=_POLL
        )
        if job is not None and not job.is_over:
            hint = f"`scontrol show job {number}`; on a dead node it ends when the node returns or is set to down"
            raise DeployError(f"cannot stop job {number}: it is {job.state} on {job.node or 'no node'}", hint=hint)

    def _unit(self, comment: JobComment, job: Job) -> Unit:
        return Unit(
            runtime="slurm",
            name=comment.name,
            profile=comment.profile,
            plan_digest=comment.plan,
            url=f"http://{self._address(job.node)}:{comment.port}" if job.node else "",
            run_dir=comment.run,
            runtime_id=job.id,
            role=role_of(Path(comment.run).name),
        )

    def _listed(self, comment: JobComment, job: Job) -> Unit:
        """Return a unit with its state. A job that Slurm has forgotten has no state of its own."""
        reported = job if job.state else None
        return dataclasses.replace(self._unit(comment, job), state=state_of(Path(comment.run), lambda: reported))

    def _address(self, node: str) -> str:
        if node not in self._addresses:
            self._addresses[node] = jobs.node_address(node)
        return self._addresses[node]


def _query_cmdlines(submission: Submission, job: Job) -> tuple[str, ...]:
    argv = subprocesses.python_module_argv(
        "orchestrator.runtimes.slurm.processes", submission.comment.run, python=submission.python
    )
    try:
        return tuple(map(str, parse_json(jobs.run_in_job_step(job.id, argv, timeout=_QUERY_TIMEOUT))))
    except ValueError:
        return ()


def _addressed(artifacts: Artifacts, run_dir: Path, units: Sequence[Unit]) -> Artifacts:
    """Return a gateway's artifacts with its replicas' addresses. Raises StartError if a replica has none."""
    plan, urls = artifacts.plan, {}
    if plan.gateway is None:
        return artifacts
    urls_by_run = {Path(unit.run_dir): unit.url for unit in units}
    for name, server in plan.servers.items():
        if not (url := urls_by_run.get(run_dir / FileName(name))):
            message = f"{name.replace('-', ' ')} has lost its node"
            raise StartError(message, hint=f"see `squeue --me` and the log in `{run_dir}`")
        urls[server.server.url] = url
    argv = tuple(urls.get(word, word) for word in artifacts.command.argv)
    return dataclasses.replace(artifacts, command=dataclasses.replace(artifacts.command, argv=argv))


def _end_server(number: str, run_dir: Path, *, grace: float) -> None:
    """Let the supervisor end its server, or kill it if that fails; wait until the job has released the GPUs."""
    for timeout in (grace, _RECORD_TIMEOUT):
        jobs.signal_server(number)
        if not poll_until(
            lambda alive: not alive, lambda: _server_runs(number, run_dir), timeout=timeout, interval=_POLL
        ):
            break
    else:
        return
    began = time.monotonic()

    def on_tick(_: object) -> None:
        if (waited := time.monotonic() - began) > 2:
            progress.update("waiting for the node to release its VRAM", transient=f"{waited:.0f} s")

    def find() -> Job | None:
        return jobs.find_job(number)

    with Progress() as progress:
        poll_until(lambda job: job is None or not job.runs, find, timeout=_DRAINS, interval=_POLL, on_tick=on_tick)


def _server_runs(number: str, run_dir: Path) -> bool:
    """Return whether the server of a job is running; the job of an ended server may still wait for VRAM."""
    job = jobs.find_job(number)
    if job is None or not job.runs:
        return False
    try:
        record = read_record(run_dir, SERVER)
    except HostError:
        return True  # assume so until the job has ended
    return record is None or is_stale(record, job) or record.exit_code is None


def _is_run_of(number: str, run_dir: Path) -> bool:
    """Return whether the record in a directory names this job; a comment alone could name any directory."""
    with suppress(HostError):
        return (submission := read_submission(run_dir)) is not None and submission.job == number
    return False


def _note_stopped(run_dir: Path) -> None:
    """Record the requested end, and remove the files from which a requeued job would start."""
    try:
        for folder in (run_dir, *rank_dirs(run_dir)):
            for name in (START, CONFIG):
                remove_file(folder / name)
        if (submission := read_submission(run_dir)) is not None:
            write_stopped(run_dir / FILE, dataclasses.asdict(submission))
    except (OSError, HostError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.message
        warn(f"the job has ended, but cannot write its record in `{run_dir}`: {reason}")
