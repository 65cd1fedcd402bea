"""Installation of a pinned requirement file into a new virtual environment, with uv."""

import ast
import os
import re
import sys
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from uv import find_uv_bin

from orchestrator.core import subprocesses
from orchestrator.core.console import Progress
from orchestrator.core.errors import BuildError

_TAIL_LINES: Final = 15  # last lines of uv in an error
_FULL: Final = "No space left"
# A pinned list is complete: uv must neither resolve dependencies nor compile packages.
_EXACT_FILE: Final = ("--no-deps", "--only-binary", ":all:")
# For each setting of pip: uv's environment variable for it, and the separator between several values.
_PIP_IN_UV: Final[Mapping[str, tuple[str, str]]] = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
}


def install(folder: Path, requirements: Path, progress: Progress, *, torch: str | None, torch_index: str) -> None:
    """Create a virtual environment at `folder` and install every package of a requirement file into it.

    `torch` is the file's platform-specific torch (`torch==2.13.0+cpu`), available from `torch_index`. A package may
    come from any configured index that has the pinned version, as with pip. uv runs in the parent folder, so that it
    does not read the settings of a project in the working directory. Raises BuildError with uv's last lines if a step
    fails.
    """
    uv, cwd = find_uv(), folder.parent
    pip_config = subprocesses.run_or_127(subprocesses.python_module_argv("pip", "config", "list"), timeout=30)
    env = {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1", **pip_settings_for_uv(pip_config.stdout)}
    add = [uv, "pip", "install", "--python", str(folder), *_EXACT_FILE, "--compile-bytecode"]
    add += ["--index-strategy", "unsafe-best-match"]
    run = partial(_run, requirements=requirements, progress=progress, cwd=cwd, env=env)
    run("creating", [uv, "venv", "--python", sys.executable, str(folder)])
    if torch is not None:
        step = f"installing {torch}"
        try:
            run(step, [*add, torch])
        except BuildError as error:
            if "no version of torch" not in error.details:
                raise
            run(step, [*add, "--index", torch_index, torch])
    run("installing the pinned packages", [*add, "-r", str(requirements)])


def find_uv() -> str:
    """Return the path of the uv program installed with `deploy`. Raises BuildError if it is missing."""
    try:
        return str(find_uv_bin())
    except FileNotFoundError as error:
        hint = "`pip install --force-reinstall uv` installs it"
        raise BuildError("no `uv` found in this tool's environment", hint=hint) from error


def pip_settings_for_uv(pip_config: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    r"""Convert pip's settings for indexes and certificates to environment variables of uv.

    `pip_config` is the output of `pip config list`, with lines such as `global.index-url='https://…'`; later sections
    override earlier ones. Variables that are set in `environ` are omitted, so that they keep their values.
    """
    settings: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        for name, value in re.findall(rf"^{section}\.([\w-]+)=(['\"].*)$", pip_config, re.MULTILINE):
            if name in _PIP_IN_UV:
                variable, between = _PIP_IN_UV[name]
                settings[variable] = between.join(str(ast.literal_eval(value)).split())
    return {variable: value for variable, value in settings.items() if variable not in environ}


def _run(
    step: str, argv: list[str], requirements: Path, progress: Progress, *, cwd: Path, env: Mapping[str, str]
) -> None:
    """Run one step and show its last output line. Raises BuildError with the last lines if it fails."""
    last: deque[str] = deque(maxlen=_TAIL_LINES)
    name = environment_name(requirements)

    def collect(line: str) -> None:
        last.append(line)
        progress.update(f"{name}: {step}", transient=line.strip()[:60])

    progress.update(f"{name}: {step}")
    if subprocesses.follow(argv, collect, cwd=cwd, env=env) != 0:
        text = "\n".join(last)
        message = f"cannot build {name}: {step} failed"
        raise BuildError(message, location=str(requirements), hint=hint(text), details=text)


def environment_name(requirements: Path) -> str:
    """Return the name of an environment for messages."""
    return f"environment `{requirements.stem}`"


def hint(text: str) -> str:
    """Return the hint for a failed installation, from the last lines of its output."""
    if _FULL in text:
        return "free up disk space, or point DEPLOY_HOME at a larger disk"
    if "torch==" in text:
        return (
            "allow access to https://download.pytorch.org/whl/cpu, or provide a wheel: "
            "PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS"
        )
    return "allow access to a package index (PIP_INDEX_URL or UV_DEFAULT_INDEX), and repeat the command"
