"""The check of server arguments by the engine's own parser, before the checkpoint is downloaded."""

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from orchestrator.checkpoints.checkpoint import Checkpoint
from orchestrator.checkpoints.hub import HubFiles, list_files
from orchestrator.checkpoints.staging import hub_of
from orchestrator.core.catalog import Catalog
from orchestrator.core.command_hints import profile_words
from orchestrator.core.console import Progress, note
from orchestrator.core.errors import HostError, Problem, ProfileError
from orchestrator.core.files import write_cache
from orchestrator.core.paths import Home
from orchestrator.core.safe_paths import FileName
from orchestrator.engine.server_args import ArgumentRejection, ArgumentVerdict, read_verdicts
from orchestrator.images.argument_checker import argument_checker, argument_question
from orchestrator.images.client import DockerCli
from orchestrator.plan.plan import Plan
from orchestrator.planner.planning import read_profile
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.base import EnginePython, HostRef
from orchestrator.runtimes.image import engine_in
from orchestrator.servers.start.prepare import known_checkpoint

Locate = Callable[[tuple[str, ...]], str]  # maps a key path of the profile to `file:line`
_MAX_SHOWN: Final = 300  # characters of a program's error


def engine_files(plan: Plan, host_ref: HostRef, *, fetch: bool) -> dict[str, str] | None:
    """Return the files from which the engine reads the model's shape; None if they are not available.

    With `fetch`, get the files from the hub if they are not on disk.
    """
    source = plan.model.checkpoint
    with suppress(HostError):  # later steps report a problem of the checkpoint
        if (checkpoint := known_checkpoint(plan.model, host_ref)) is not None:
            return checkpoint.engine_files()
        if fetch and source.source == "hub":
            hub = hub_of(os.environ)
            return Checkpoint(HubFiles(list_files(source.path, source.revision, hub), hub)).engine_files()
    return None


def require_accepted(
    artifacts: Artifacts, engine: EnginePython, home: Home, files: Mapping[str, str] | None, locate: Locate
) -> None:
    """Check the arguments with the engine, equal ones only once. Raises ProfileError if it rejects them.

    If the check is impossible, print a note and continue.
    """
    plan, question = artifacts.plan, argument_question(artifacts, files)
    try:
        verdicts = _check_arguments(question.to_json(), engine, home, artifacts.first_server.command.env)
        servers = dict(zip(question.argv, verdicts, strict=True))
    except (HostError, ValueError) as error:
        note(f"arguments not checked by sglang: {error}")
        return
    problems = [
        _problem(verdict.rejection, argv, plan, locate)
        for argv, verdict in servers.items()
        if verdict.rejection is not None
    ]
    if problems:
        message = f"sglang {plan.engine.version} rejects arguments of `{plan.profile}`"
        raise ProfileError(message, problems=dict.fromkeys(problems))
    for reason in dict.fromkeys(verdict.unchecked for verdict in verdicts if verdict.unchecked):
        note(f"arguments not checked by sglang: {reason}")
    if any(verdict.parsed_only for verdict in verdicts):
        note(f"sglang parsed the arguments but did not validate them: no config.json of `{plan.model.name}`")


def require_accepted_by_image(
    artifacts: Artifacts, docker: DockerCli, image: str, host_ref: HostRef, *, profile: str, overrides: Sequence[str]
) -> None:
    """Check the arguments of a profile with the engine in a built image. Raises the errors of `require_accepted`."""

    def locate(path: tuple[str, ...]) -> str:
        return read_profile(profile, overrides=overrides, catalog=Catalog.of(home)).composed.location(path)

    engine, home = engine_in(docker, image, artifacts), host_ref.home
    require_accepted(artifacts, engine, home, engine_files(artifacts.plan, host_ref, fetch=True), locate)


def _problem(rejection: ArgumentRejection, argv: Sequence[str], plan: Plan, locate: Locate) -> Problem:
    """Return the problem for a rejection, located at the settings that cause it."""
    requested = [word.removeprefix("--") for word in argv if word.startswith("--")]
    keys = rejection.keys(requested)
    hint = "" if keys else f"`deploy show {profile_words(plan.profile)}` shows each option with its origin"
    return Problem(rejection.text, ", ".join(dict.fromkeys(filter(None, map(locate, keys)))), hint)


def _check_arguments(
    question: str, engine: EnginePython, home: Home, env: Sequence[tuple[str, str]]
) -> tuple[ArgumentVerdict, ...]:
    """Return the verdicts, from the cache if possible; do not cache `unchecked` verdicts.

    Raises HostError or ValueError if the check is impossible.
    """
    program = argument_checker()
    cache_file = None
    if engine.identity is not None:
        digest = hashlib.sha256("\0".join((engine.identity, program, repr(env), question)).encode()).hexdigest()
        cache_file = home.argument_checks / FileName(f"{digest[:32]}.json")
        with suppress(OSError, ValueError):
            return read_verdicts(cache_file.read_text(encoding="utf-8"))
    began = time.monotonic()
    printed = _ask(program, question, engine)
    verdicts = read_verdicts(printed)
    note(f"sglang checked the arguments in {time.monotonic() - began:.0f} s")
    if cache_file is not None and not any(verdict.unchecked for verdict in verdicts):
        with suppress(OSError):  # a full disk: the next start checks again
            write_cache(cache_file, printed.splitlines()[-1] + "\n")
    return verdicts


def _ask(program: str, question: str, engine: EnginePython) -> str:
    with Progress() as progress:
        progress.update("checking the arguments with sglang")
        done = engine.run(program, question)
    if not done.ok:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.code}"])[-1]
        raise ValueError(last[:_MAX_SHOWN])
    return done.stdout
