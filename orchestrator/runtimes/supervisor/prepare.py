"""The preparation of a process: a Python with the engine, and its sources with the plan's patches."""

import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from orchestrator.checkpoints.overlay import overlay_path
from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.console import Progress, note, warn
from orchestrator.core.errors import BuildError, HostError, KernelsError
from orchestrator.core.paths import Home
from orchestrator.core.subprocesses import run
from orchestrator.core.text import parse_json
from orchestrator.engine.gateway import LAUNCHER
from orchestrator.hosts.venvs.venv import engine_python, ensure_venv
from orchestrator.images.patch_drift import startup_patches, unexpected_patches
from orchestrator.images.sources import ledger_patches
from orchestrator.kernels.disk.archive import KernelStore
from orchestrator.kernels.disk.files import tables_below
from orchestrator.kernels.disk.kernel_folders import KernelFolders
from orchestrator.patches.ledger import read_diffs
from orchestrator.patches.schema import AddedFile
from orchestrator.plan.plan import NO_DETECTED_PATCHES, DetectedPatches, Gateway, Plan
from orchestrator.render.artifacts import (
    Artifacts,
    Command,
    RenderedFile,
    gateway_command,
    render_units,
    server_command,
)
from orchestrator.runtimes.base import EnginePython, HostRef, PreparedRun
from orchestrator.runtimes.supervisor.patched import (
    PatchedCopy,
    SourcePatches,
    find_sources,
    patched_copy,
    sources_identity,
    table_in,
)

_PATH: Final = "PYTHONPATH"
_ANSWERS: Final = 300.0  # seconds for a program in the interpreter: imports take 9 s, 35 s on a busy host
_PLACEHOLDER: Final = "$PATCHED_SGLANG"  # stands for the copy's path in scripts
# Packages that compile kernels or are compiled into them: a kernel from another version is stale. ninja's records
# contain the prefix.
_PACKAGES: Final = (
    *("sglang", "sglang-kernel", "sgl-kernel", "torch", "triton", "pytorch-triton-rocm", "apache-tvm-ffi", "tilelang"),
    *("flashinfer-python", "flashinfer-cubin", "deep-gemm", "amd-aiter", "aiter", "flydsl"),
)
_VERSIONS: Final = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
found = {"python": platform.python_version(), "prefix": sys.prefix}
for name in json.load(sys.stdin):
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def rendered(plan: Plan, inputs: Mapping[str, bytes], host: str | None = None) -> Artifacts:
    """Return the command, with paths below the tool's home, and the patches of its sources.

    The server listens on the plan's own address, or on `host`. The interpreter of a virtual environment is inserted
    once it is built. The path of the patched sources is unknown until they are made; until then, a variable in
    the script stands for it.
    """

    def gateway(_: Gateway) -> Artifacts:
        command = gateway_command(plan, host=host, metrics_host=host)
        sources = source_patches(plan, inputs) if plan.patches else None
        return Artifacts(plan=plan, command=command, build=None, spec=sources)

    return render_units(plan, lambda item: _rendered_server(item, inputs, host), gateway)


def _rendered_server(plan: Plan, inputs: Mapping[str, bytes], host: str | None) -> Artifacts:
    command = _command(plan, host)
    if not plan.patches:
        return Artifacts(plan=plan, command=command, build=None)
    sources = source_patches(plan, inputs)
    tables = {name: table_in(_PLACEHOLDER, value) for name, value in command.env if value in sources.tables}
    env = tuple((name, value) for name, value in command.env if name not in tables)
    script = (
        "# `deploy up` makes a copy of the interpreter's sglang and sees to these patches in it, by content:",
        *(f"#   {patch.id}" for patch in sources.patches),
        f': "${{{_PLACEHOLDER[1:]}:?the absolute path of that copy, a folder below packages in the home of deploy}}"',
        f'export {_PATH}="{_PLACEHOLDER}/python${{{_PATH}:+:${_PATH}}}"',
        *(f'export {name}="{path}"' for name, path in tables.items()),
    )
    return Artifacts(plan=plan, command=replace(command, env=env, script=script), build=None, spec=sources)


def _command(plan: Plan, host: str | None, detected: DetectedPatches = NO_DETECTED_PATCHES) -> Command:
    python, host, model = plan.engine.python or "python3", host or plan.server.host, model_path(plan, detected)
    return server_command(plan, model_path=model, host=host, python=python, in_home=True, detected=detected)


def source_patches(plan: Plan, inputs: Mapping[str, bytes]) -> SourcePatches:
    """Return the plan's patches with their diffs and input files."""
    patches = ledger_patches(plan)
    tables = {
        patch.apply.destination: inputs[patch.apply.input]
        for patch in patches
        if isinstance(patch.apply, AddedFile) and patch.apply.input in inputs
    }
    unexpected = frozenset(use.id for use in plan.patches if not use.expected)
    return SourcePatches(patches=patches, diffs=read_diffs(patches), tables=tables, unexpected=unexpected)


def model_path(plan: Plan, detected: DetectedPatches = NO_DETECTED_PATCHES) -> str:
    """Return the path of the checkpoint, or of its overlay with the patched config.json."""
    if overlay := overlay_path(plan, detected):
        return str(PurePosixPath(overlay).parent)
    return plan.model.checkpoint.path if plan.model.checkpoint.source == "local" else f"models/{plan.model.name}"


def prepare(
    artifacts: Artifacts, host_ref: HostRef, packages: Path | None = None, host: str | None = None
) -> PreparedRun:
    """Return the artifacts with the interpreter that has the engine, and with the patched copy of its sources.

    The copy is below `packages`, by default those of the home; `host` is that of `rendered`. Raises BuildError, or
    PatchError if a patch cannot be applied.
    """
    plan = artifacts.plan
    python = engine_python(plan.engine, host_ref.home)
    if artifacts.spec is None:
        commanded_artifacts = commanded(
            artifacts, host_ref.home, lambda item: _started_by(python, _command(item, host)), host
        )
        return PreparedRun(
            artifacts=commanded_artifacts,
            records={},
            engine=_engine_python(python, commanded_artifacts, host_ref.home, identity=_identity(plan, python)),
        )
    sources = artifacts.spec
    assert isinstance(sources, SourcePatches)  # noqa: S101 - for the type: `rendered` puts it there
    copy = patched_copy(python, sources, packages or host_ref.home.packages)
    states = ", ".join(f"{record.id} {record.state}" for record in copy.receipt.patches)
    note(f"patched sglang {'made' if copy.made else 'found'} at {copy.folder}: {states}")
    gone = "the patched copy was deleted; deploy up creates it again"  # or the server would import unpatched sources
    script = (f"[ -e {shlex.quote(copy.python_path)}/sglang ] || {{ echo '{gone}' >&2; exit 1; }}",)
    for text in unexpected_patches(plan, copy.receipt):
        warn(text, hint=f"`{copy.folder}` has the details")
    detected = startup_patches(plan, copy.receipt)

    def command(server: Plan) -> Command:
        started = _started_by(python, _command(server, host, detected))
        return replace(started, env=_env(started, sources, copy), script=script)

    commanded_artifacts = commanded(artifacts, host_ref.home, command, host)
    return PreparedRun(
        artifacts=commanded_artifacts,
        records={"patches.json": asdict(copy.receipt)},
        not_needed=copy.receipt.handled_at_build(plan.patches),
        detected_patches=detected,
        engine=_engine_python(python, commanded_artifacts, host_ref.home, identity=f"{python} {copy.folder}"),
    )


def _engine_python(python: str, artifacts: Artifacts, home: Home, *, identity: str | None) -> EnginePython:
    """Return the interpreter of a server's command, with the server's variables and working directory."""
    env = {"PYTHONSAFEPATH": "1", **dict(artifacts.first_server.command.env)}
    cwd = home.root if home.root.is_dir() else None
    return EnginePython(
        identity=identity,
        run=lambda program, stdin: run([python, "-c", program], cwd=cwd, env=env, stdin=stdin, timeout=_ANSWERS),
    )


def _identity(plan: Plan, python: str) -> str | None:
    """Return an identity for an unpatched interpreter's sglang; None if it cannot be determined.

    The path of a virtual environment made by this tool contains its digest.
    """
    if plan.engine.python is None:
        return python
    try:
        return sources_identity(python)
    except (BuildError, HostError):
        return None


def _started_by(python: str, command: Command) -> Command:
    return replace(command, argv=(python, *command.argv[1:]))


def commanded(artifacts: Artifacts, home: Home, command: Callable[[Plan], Command], host: str | None) -> Artifacts:
    """Return the artifacts with final commands: the server's, or those of each replica and the gateway.

    Raises BuildError if the gateway's virtual environment cannot be made.
    """
    plan = artifacts.plan

    def gateway(planned: Gateway) -> Artifacts:
        catalog = Catalog.of(home)
        requirements = catalog.path(EntryKind.IMAGE_FILE, planned.requirements)
        python = str(ensure_venv(requirements, home=home, progress=Progress()).python)
        launcher = str(catalog.path(EntryKind.IMAGE_FILE, LAUNCHER))
        started = gateway_command(plan, python=python, launcher=launcher, host=host, metrics_host=host)
        return replace(artifacts, command=started)

    def server(item: Plan) -> Artifacts:
        return Artifacts(plan=item, command=command(item), build=None, spec=artifacts.spec if item is plan else None)

    return render_units(plan, server, gateway)


def launcher_files(artifacts: Artifacts, name: str) -> tuple[RenderedFile, ...]:  # noqa: ARG001 - a file for any name
    """Return the launcher that `gateway.sh` runs from its own folder."""
    if artifacts.plan.gateway is None:
        return ()
    content = Catalog.from_environment().path(EntryKind.IMAGE_FILE, LAUNCHER).read_bytes()
    return (RenderedFile(path=LAUNCHER, content=content, executable=False),)


def aiter_tables(plan: Plan, home: Home) -> tuple[Path, ...]:
    """Return the tables that the interpreter's aiter reads by default. Raises KernelsError if it has none."""
    python = engine_python(plan.engine, home)
    source = find_sources(python).get("aiter")
    if source is None or not (tables := tables_below(Path(source["root"]) / "configs")):
        raise KernelsError(f"`{python}` has no aiter with tuned tables", hint="use the interpreter of a ROCm image")
    return tables


def _env(command: Command, sources: SourcePatches, copy: PatchedCopy) -> tuple[tuple[str, str], ...]:
    """Return the server's variables: local paths for input files, and the copy first on PYTHONPATH."""
    env = {name: table_in(copy.folder, value) if value in sources.tables else value for name, value in command.env}
    before = env.get(_PATH, os.environ.get(_PATH))
    return tuple(sorted({**env, _PATH: os.pathsep.join(filter(None, [copy.python_path, before]))}.items()))


def kernel_store(prepared: PreparedRun, host_ref: HostRef) -> KernelStore | None:  # noqa: ARG001 - of this user
    """Return the server's folders of compiled kernels; None if only its node has the interpreter."""
    if prepared.engine is None:
        return None
    first = prepared.artifacts.first_server
    tree = first.plan.engine.aiter_dir  # exists if this host is a pod with the engine's image
    return KernelFolders.of(
        dict(first.command.env),
        partial(_package_versions, prepared.engine),
        aiter_dir=tree if tree is not None and Path(tree).is_dir() else None,
    )


def _package_versions(engine: EnginePython) -> Mapping[str, str]:
    done = engine.run(_VERSIONS, json.dumps(_PACKAGES))
    if not done.ok:
        raise HostError("cannot read the versions of the engine's packages", details=done.stderr.strip())
    return {str(name): str(value) for name, value in parse_json(done.stdout.splitlines()[-1]).items()}
