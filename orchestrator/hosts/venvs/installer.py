"""Installation of a pinned requirement file into a new virtual environment with uv."""

import ast
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from uv import find_uv_bin

from orchestrator.core import subprocesses
from orchestrator.core.console import Progress
from orchestrator.core.errors import BuildError

_SHOWN_LINES: Final = 15  # last lines of uv in an error
_BIG: Final = 10.0  # MiB; a download of at least this size is named in the progress
_FULL: Final = "No space left"
# A pinned list is complete: uv must neither resolve dependencies nor compile packages.
_AS_IT_STANDS: Final = ("--no-deps", "--only-binary", ":all:")
# A line of uv's output: "Downloading torch (182.4MiB)".
_DOWNLOADING: Final = re.compile(r"^Downloading (?P<name>\S+) \((?P<size>[\d.]+)(?P<unit>[KMG])iB\)$")
_MIB: Final = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
# For each setting of pip: uv's environment variable for it, and the separator between several values.
_PIP_IN_UV: Final[Mapping[str, tuple[str, str]]] = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
}


@dataclass(frozen=True, kw_only=True)
class PinnedRequirements:
    """A requirement file; `torch` is its platform-specific torch (`torch==2.13.0+cpu`), found at `torch_index`."""

    file: Path
    torch: str | None
    torch_index: str

    @property
    def name(self) -> str:
        """Name of the environment in messages."""
        return f"environment `{self.file.stem}`"


def install(folder: Path, pinned: PinnedRequirements, progress: Progress) -> None:
    """Create a virtual environment at `folder` and install every pinned package into it.

    If several indexes are configured, any index that has the pinned version is used, as with pip. uv runs in the parent
    folder, so that it does not read the settings of a project in the working directory. Raises BuildError with the last
    lines of uv if a step fails.
    """
    steps = _Steps(pinned=pinned, progress=progress)
    uv, cwd = find_uv(), folder.parent
    listed = subprocesses.run_or_127(subprocesses.python_module_argv("pip", "config", "list"), timeout=30)
    env = {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1", **pip_settings_for_uv(listed.stdout)}
    add = [uv, "pip", "install", "--python", str(folder), *_AS_IT_STANDS, "--compile-bytecode"]
    add += ["--index-strategy", "unsafe-best-match"]
    steps.run("creating", [uv, "venv", "--python", sys.executable, str(folder)], cwd=cwd, env=env)
    if pinned.torch is not None:
        doing = f"installing {pinned.torch}"
        try:
            steps.run(doing, [*add, pinned.torch], cwd=cwd, env=env)
        except BuildError as error:
            if "no version of torch" not in error.details:
                raise
            steps.run(doing, [*add, "--index", pinned.torch_index, pinned.torch], cwd=cwd, env=env)
    steps.run("installing the pinned packages", [*add, "-r", str(pinned.file)], cwd=cwd, env=env)


def find_uv() -> str:
    """Return the path of the uv program that is installed with `deploy`. Raises BuildError if it is missing."""
    try:
        return str(find_uv_bin())
    except FileNotFoundError as error:
        raise BuildError(
            "no `uv` found in this tool's environment", hint="`pip install --force-reinstall uv` installs it"
        ) from error


def pip_settings_for_uv(listed: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    r"""Convert pip's settings for indexes and certificates to environment variables of uv.

    `listed` is the output of `pip config list`, with lines such as `global.index-url='https://…'`; later sections
    override earlier ones. A variable that is already set in `environ` is left out, so that it keeps its value.
    """
    found: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        for name, value in re.findall(rf"^{section}\.([\w-]+)=(['\"].*)$", listed, re.MULTILINE):
            if name in _PIP_IN_UV:
                variable, between = _PIP_IN_UV[name]
                found[variable] = between.join(str(ast.literal_eval(value)).split())
    return {variable: value for variable, value in found.items() if variable not in environ}


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """A runner for the steps of one build that shows each step and the size of its downloads."""

    pinned: PinnedRequirements
    progress: Progress
    sizes: dict[str, float] = field(default_factory=dict)  # announced downloads, MiB by package

    def run(
        self, doing: str, argv: list[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """Run one step. Raises BuildError with the last lines of its output if it fails."""
        last: deque[str] = deque(maxlen=_SHOWN_LINES)
        show = self._show(doing)

        def take(line: str) -> None:
            last.append(line)
            show(line)

        self.progress.update(f"{self.pinned.name}: {doing}")
        if subprocesses.follow(argv, take, cwd=cwd, env=env) != 0:
            said = "\n".join(last)
            raise BuildError(
                f"cannot build {self.pinned.name}: {doing} failed",
                location=str(self.pinned.file),
                hint=hint(said),
                details=said,
            )

    def _show(self, doing: str) -> Callable[[str], None]:
        shown = f"{self.pinned.name}: {doing}"

        def show(line: str) -> None:
            nonlocal shown
            now = line.strip()
            if announced := _DOWNLOADING.match(line):
                size = float(announced["size"]) * _MIB[announced["unit"]]
                self.sizes[announced["name"]] = size
                now = f"{sum(self.sizes.values()):.0f} MiB in {len(self.sizes)} packages"
                if size >= _BIG:
                    shown = f"{self.pinned.name}: downloading {announced['name']}, {size:.0f} MiB"
            self.progress.update(shown, transient=now[:60])

        return show


def hint(said: str) -> str:
    """Return the hint for a failed installation, from the last lines of its output."""
    if _FULL in said:
        return "free up disk space, or point DEPLOY_HOME at a larger disk"
    if "torch==" in said:
        return (
            "allow access to https://download.pytorch.org/whl/cpu, or provide a wheel: "
            "PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS"
        )
    return "allow access to a package index (PIP_INDEX_URL or UV_DEFAULT_INDEX), and repeat the command"
