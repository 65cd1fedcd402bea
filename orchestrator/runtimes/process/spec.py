"""The process runtime, put together."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.core.errors import Problem
from orchestrator.core.paths import Home
from orchestrator.hosts.context import Space
from orchestrator.hosts.survey import Runner
from orchestrator.plan.plan import Plan
from orchestrator.plan.rules import Case, replicas_share_the_node
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.base import Cache, Place, Prepared, RuntimeKind, ServerState
from orchestrator.runtimes.process.checks import device_access, locked_memory
from orchestrator.runtimes.supervisor.interpreter import compiler, interpreter
from orchestrator.runtimes.supervisor.patched_copies import copies
from orchestrator.runtimes.supervisor.prepare import launcher_files, own_tables, prepare, rendered
from orchestrator.runtimes.supervisor.record import CONFIG, FILE, UNREADABLE


def has_interpreter(case: Case) -> Iterator[Problem]:
    """There is an interpreter with the engine, or a list to install one from."""
    engine = case.profile.engine
    if engine.requirements is None and engine.python is None:
        yield Problem(
            "the process runtime needs an engine with a requirement file or an interpreter",
            case.place("engine"),
            "inside a container that has sglang: `--set engine.python=python3`; otherwise `--set runtime=docker`",
        )


def _prepare(artifacts: Artifacts, place: Place) -> Prepared:
    return prepare(artifacts, place, place.home.packages)


def _no_space(_: Plan, __: Runner) -> Iterator[Space]:
    return iter(())


def _caches(home: Home, _: str | None) -> tuple[Cache, ...]:
    from orchestrator.runtimes.process.runtime import ProcessRuntime  # noqa: PLC0415

    return copies(home.packages, ProcessRuntime(home))


def _kept(run_dir: Path) -> ServerState | None:
    from orchestrator.runtimes.process.runtime import kept_state  # noqa: PLC0415

    return kept_state(run_dir)


PROCESS: Final = RuntimeKind(
    name="process",
    contained=False,
    rules=(has_interpreter, replicas_share_the_node),
    checks=(device_access, locked_memory, interpreter, compiler),
    spaces=_no_space,
    far=None,
    render=rendered,
    files=launcher_files,
    prepare=_prepare,
    tables=own_tables,
    caches=_caches,
    kept=_kept,
    leaves=frozenset({FILE, UNREADABLE, CONFIG}),
)
