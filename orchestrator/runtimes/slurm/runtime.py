"""The `slurm` runtime: a server as a job, below a supervisor of ours on its node.

The truth about what waits and runs is Slurm's: our jobs are told by their comments, so they are found from any
terminal, and one that was requeued is reached where it runs now. A job that has ended is known by the file beside its
log, as Slurm forgets it after minutes. The run directory lies where the nodes see it.
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Final

from orchestrator.core import shell
from orchestrator.core.console import Progress, note, warn
from orchestrator.core.errors import DeployError, HostError, NameTakenError, StartError
from orchestrator.core.files import write_whole
from orchestrator.core.log_lines import LogTail
from orchestrator.core.paths import Home
from orchestrator.core.secret import Secret
from orchestrator.core.signals import held
from orchestrator.core.text import parse_json
from orchestrator.core.waiting import look_until
from orchestrator.plan import NAME
from orchestrator.render import Artifacts
from orchestrator.runtimes.base import LOG, Handle, ServerState, Status, since_then
from orchestrator.runtimes.slurm import jobs
from orchestrator.runtimes.slurm.job import start_file
from orchestrator.runtimes.slurm.jobs import Job
from orchestrator.runtimes.slurm.reasons import never_runs, why_it_ended, why_it_waits
from orchestrator.runtimes.slurm.record import (
    SERVER,
    START,
    JobComment,
    Submission,
    read_submission,
    write_submission,
)
from orchestrator.runtimes.slurm.script import JOB_LOG, SCRIPT, job_of, job_options, job_script
from orchestrator.runtimes.slurm.state import is_stale, server_state
from orchestrator.runtimes.supervised.record import CONFIG, read_record
from orchestrator.runtimes.supervised.start import start_request

_POLL: Final = 0.5  # seconds between two looks at a job
_STANDS: Final = 5.0  # seconds after which a reason is meant: the first one is often not the scheduler's
_LOG_POLL: Final = 0.2
_LAST_WORD: Final = 10.0  # seconds a killed server's record may take to come over a shared file system
_DRAINS: Final = 960.0  # seconds a job waits for VRAM at most (host/drain.py), and a bit
_ENDS: Final = 90.0  # seconds Slurm may take to end what was cancelled: KillWait is 30 s by default, then the epilog
_ASKED: Final = 10.0  # seconds a question to a node may take


class SlurmRuntime:
    """Servers as jobs; their working directory is the tool's home, which the nodes share."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._addresses: dict[str, str] = {}

    def start(self, artifacts: Artifacts, *, name: str, run_dir: Path, secrets: Mapping[str, Secret]) -> Handle:
        """See `Runtime.start`. Returns when the job has its node; one that can never have one is a StartError."""
        if taken := self.find(name):
            raise NameTakenError(f"there is a server `{name}`", where=taken[0].run_dir, hint=f"`deploy down {name}`")
        plan = artifacts.plan
        comment = JobComment(
            name=name, profile=plan.profile, plan=plan.digest, port=plan.server.port, run=str(run_dir.absolute())
        )
        try:
            with held():
                submission = self._submit(artifacts, comment, secrets)
            job = _await_node(submission.job, limit=job_of(plan).pending)
            return self._handle(comment, job)
        except BaseException:  # Ctrl-C, above all: nobody would know of this job
            with held():
                self._take_back(comment)
            raise

    def find(self, name: str | None = None) -> tuple[Handle, ...]:
        """See `Runtime.find`. Raises HostError where Slurm, or the runs of this home, cannot be asked."""
        found: list[Handle] = []
        runs: set[str] = set()
        for number, text in jobs.queued():
            comment = JobComment.read(text)
            if comment is None or name not in {None, comment.name}:
                continue
            if (job := jobs.find_job(number)) is not None and not job.is_over:
                found.append(self._handle(comment, job))
                runs.add(comment.name)
        found += [handle for each in self._names(name) - runs if (handle := self._last(each)) is not None]
        return tuple(sorted(found, key=lambda handle: (handle.name, handle.run_dir)))

    def state(self, handle: Handle) -> ServerState:
        """See `Runtime.state`. Raises HostError where Slurm does not answer: that is not the same as "gone"."""
        run_dir = Path(handle.run_dir)
        try:
            submission = read_submission(run_dir)
            record = read_record(run_dir, SERVER)
        except HostError as error:
            return ServerState(status=Status.UNKNOWN, exit_code=None, restarts=0, started_at=None, detail=error.message)
        if submission is not None and submission.stopped:
            return ServerState(status=Status.ABSENT, exit_code=None, restarts=0, started_at=None, detail="")
        return server_state(jobs.find_job(handle.identity), record, run_dir)

    def titles(self, handle: Handle) -> tuple[str, ...]:
        """See `Runtime.titles`. A step of the job looks on the node; where none can be started they cannot be told."""
        with suppress(HostError):
            submission = read_submission(Path(handle.run_dir))
            job = jobs.find_job(handle.identity) if submission is not None and not submission.stopped else None
            if submission is not None and job is not None and job.runs:
                return _asked_titles(submission, job)
        return ()

    def logs(self, handle: Handle, *, follow: bool, since: datetime | None = None) -> Iterator[str]:
        """See `Runtime.logs`. The supervisor has stored it without the secrets, where the nodes and we see it."""
        tail = LogTail(Path(handle.run_dir, LOG))
        if since is not None:
            started = self.state(handle).started_at
            begun = datetime.fromisoformat(started) if started else None
            yield from since_then(tail() if follow else tail.to_end(), since, started=begun, zone=None)
        while follow and self.state(handle).status in {Status.RUNNING, Status.PENDING}:
            for _ in range(5):  # a look at the log costs nothing, one at the job a program
                yield from tail()
                time.sleep(_LOG_POLL)
        yield from tail.to_end()

    def tail(self, handle: Handle) -> Callable[[], Iterator[str]]:
        """See `Runtime.tail`."""
        return LogTail(Path(handle.run_dir, LOG))

    def stop(self, handle: Handle, *, grace: float) -> None:
        """See `Runtime.stop`. Waits until the VRAM is given back, which the job itself does on its node.

        Raises DeployError for a job that Slurm does not end, HostError where Slurm does not answer, or for a record
        that cannot be read where no job in the queue tells that it is its server.
        """
        if not handle.identity:
            read_submission(Path(handle.run_dir))  # it says what is wrong with it
        self._end(handle.identity, Path(handle.run_dir), grace=grace)
        _note_stopped(Path(handle.run_dir))

    def close(self) -> None:
        """See `Runtime.close`. Nothing is held."""

    def _submit(self, artifacts: Artifacts, comment: JobComment, secrets: Mapping[str, Secret]) -> Submission:
        """Hand the start to the node and the job to Slurm. Raises StartError, HostError."""
        plan, run_dir = artifacts.plan, Path(comment.run)
        if plan.server.api_key_env is None:
            warn(f"`{comment.name}` asks for no API key: it answers everyone in the cluster's network")
        job, python = job_of(plan), job_of(plan).python or sys.executable
        request = start_request(
            artifacts, name=comment.name, run_dir=run_dir, cwd=self._home.root, secrets=secrets, record=SERVER
        )
        written = {START: start_file(dataclasses.asdict(request), requeue=job.requeue)}
        written[SCRIPT] = job_script(plan, comment.name)
        try:
            for file, text in written.items():
                write_whole(run_dir / file, text, mode=0o600 if file == START else 0o755)
            log = str(run_dir / JOB_LOG).replace("%", "%%")
            placed = (f"--chdir={self._home.root}", f"--output={log}", "--open-mode=append", "--export=ALL")
            options = (*job_options(plan, comment.name), *placed, f"--comment={comment.to_text()}")
            hidden = [secret.reveal() for secret in secrets.values()]
            number = jobs.submit(options, str(run_dir / SCRIPT), python, comment.run, secrets=hidden)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            submission = Submission(job=number, comment=comment, python=python, submitted_at=now, stopped=False)
            write_submission(run_dir, submission)
        except OSError as error:
            raise HostError(f"cannot write below `{run_dir}`: {error.strerror}", hint="free disk space") from error
        return submission

    def _take_back(self, comment: JobComment) -> None:
        """Cancel what a start that failed has left, also where its number was never read; its secrets go first."""
        run_dir = Path(comment.run)
        with suppress(OSError):
            (run_dir / START).unlink(missing_ok=True)
        try:
            for number in [number for number, text in jobs.queued() if JobComment.read(text) == comment]:
                self._end(number, run_dir, grace=0)
        except DeployError as error:
            warn(f"whether a job of `{comment.name}` is left is not known: {error.message}", hint="`squeue --me`")
            return
        _note_stopped(run_dir)

    def _end(self, number: str, run_dir: Path, *, grace: float) -> None:
        job = jobs.find_job(number)
        if job is None or job.is_over:
            return
        if job.runs:
            _end_server(number, run_dir, grace=grace)
        jobs.cancel(number)
        job = look_until(_is_over, lambda: jobs.find_job(number), within=_ENDS, pause=_POLL)
        if job is not None and not job.is_over:
            raise DeployError(
                f"job {number} does not end: it is {job.state} on {job.node or 'no node'}",
                hint=f"`scontrol show job {number}`; a node that does not answer keeps it until it is back or set down",
            )

    def _handle(self, comment: JobComment, job: Job) -> Handle:
        return Handle(
            runtime="slurm",
            name=comment.name,
            profile=comment.profile,
            plan_digest=comment.plan,
            url=f"http://{self._address(job.node)}:{comment.port}" if job.node else "",
            run_dir=comment.run,
            identity=job.id,
        )

    def _address(self, node: str) -> str:
        if node not in self._addresses:
            self._addresses[node] = jobs.node_address(node)
        return self._addresses[node]

    def _names(self, name: str | None) -> set[str]:
        if name is not None:
            return {name}
        try:
            return {path.name for path in self._home.runs.iterdir() if NAME.match(path.name)}
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except OSError as error:
            why = f"`{self._home.runs}` cannot be looked through: {error.strerror}"
            raise HostError(why, hint="set DEPLOY_HOME") from error

    def _last(self, name: str) -> Handle | None:
        """The last job of a name in this home, which has ended, unless somebody stopped it."""
        folder = self._home.runs / name
        if folder.is_symlink() or not folder.is_dir():
            return None
        for run_dir in sorted((path for path in folder.iterdir() if path.is_dir()), reverse=True):
            try:
                submission = read_submission(run_dir)
            except HostError:
                return _lost(name, run_dir)
            if submission is not None and submission.comment.run == str(run_dir.absolute()):
                if submission.stopped:
                    return None
                job = jobs.find_job(submission.job) or _forgotten(submission.job)
                return self._handle(submission.comment, job)
        return None


def _asked_titles(submission: Submission, job: Job) -> tuple[str, ...]:
    argv = shell.own("orchestrator.runtimes.slurm.titles", submission.comment.run, python=submission.python)
    try:
        return tuple(map(str, parse_json(jobs.in_step(job.id, argv, within=_ASKED))))
    except ValueError:
        return ()


def _lost(name: str, run_dir: Path) -> Handle:
    """A server whose record cannot be read, and of which no job in the queue tells."""
    place = str(run_dir.absolute())
    return Handle(runtime="slurm", name=name, profile="", plan_digest="", url="", run_dir=place, identity="")


def _is_over(job: Job | None) -> bool:
    return job is None or job.is_over


def _await_node(number: str, *, limit: float | None) -> Job:
    """Wait, saying why, until a job runs or has run.

    Raises StartError where it never will, was cancelled meanwhile, or has waited for `limit` seconds.
    """
    progress, began = Progress(), time.monotonic()
    reasons: dict[str, float] = {}  # since when each stands, the last one alone

    def meanwhile(job: Job) -> None:
        now, word = time.monotonic(), job.reason.partition(",")[0]
        since = reasons.get(word, now)
        reasons.clear()
        reasons[word] = since
        if now - since >= _STANDS and (hint := never_runs(job)):
            raise StartError(why_it_waits(job), hint=hint)
        progress.update(why_it_waits(job), transient=f"{now - began:.0f} s")

    try:
        job = look_until(
            lambda job: not job.waits,
            lambda: _known(number),
            within=inf if limit is None else limit,
            pause=_POLL,
            meanwhile=meanwhile,
        )
    finally:
        progress.done()
    if job.waits:
        hint = "a longer `slurm.pending` in the profile waits longer"
        raise StartError(f"{why_it_waits(job)}; {limit:g} s are over", hint=hint)
    if not job.node:
        raise StartError(f"job {number} ended before it ran: {why_it_ended(job) or job.state}", hint=_show(number))
    note(f"job {number} runs on {job.node}")
    return job


def _known(number: str) -> Job:
    job = jobs.find_job(number)
    if job is None:
        raise StartError(f"job {number} is gone from Slurm before it ran", hint="`sacct` may know more")
    return job


def _show(number: str) -> str:
    return f"`scontrol show job {number}` says more"


def _forgotten(number: str) -> Job:
    """A job that has ended and that Slurm no longer tells of."""
    return Job(id=number, state="", reason="", node="", restarts=0, exit_code=0, begins=None, ended_at=None)


def _end_server(number: str, run_dir: Path, *, grace: float) -> None:
    """Let the supervisor end its server, then kill it, then wait until the job has given the GPUs back."""

    def serves() -> bool:
        job = jobs.find_job(number)
        if job is None or not job.runs:
            return False
        try:
            record = read_record(run_dir, SERVER)
        except HostError:
            return True  # until its job has ended
        return record is None or is_stale(record, job) or record.exit_code is None

    for within in (grace, _LAST_WORD):
        jobs.signal_server(number)
        if not look_until(lambda alive: not alive, serves, within=within, pause=_POLL):
            break
    else:
        return
    progress, began = Progress(), time.monotonic()

    def meanwhile(_: object) -> None:
        if (waited := time.monotonic() - began) > 2:
            progress.update("waiting for the node to give back its VRAM", transient=f"{waited:.0f} s")

    try:
        look_until(
            lambda job: job is None or not job.runs,
            lambda: jobs.find_job(number),
            within=_DRAINS,
            pause=_POLL,
            meanwhile=meanwhile,
        )
    finally:
        progress.done()


def _note_stopped(run_dir: Path) -> None:
    """Note that somebody asked for the end, and take away what a requeued job would have started from."""
    try:
        for name in (START, CONFIG):
            (run_dir / name).unlink(missing_ok=True)
        if (submission := read_submission(run_dir)) is not None:
            write_submission(run_dir, dataclasses.replace(submission, stopped=True))
    except (OSError, HostError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.message
        warn(f"the job has ended, and its record in `{run_dir}` cannot be written: {reason}")
