"""Installing a pinned list into a fresh environment: with uv, and with pip where uv is missing or cannot."""

import ast
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import dropwhile
from pathlib import Path
from typing import Final

from orchestrator.core import subprocesses
from orchestrator.core.console import Progress, note
from orchestrator.core.errors import BuildError

_SHOWN_LINES: Final = 15
_BIG: Final = 10.0  # MiB from which a download has a line of its own
_FULL: Final = "No space left"
# Of a pinned list nothing is resolved and nothing compiled: it is installed as it stands.
_AS_IT_STANDS: Final = ("--no-deps", "--only-binary", ":all:")
# Lines of uv ("Downloading torch (182.4MiB)") and of pip ("  Downloading torch-2.13.0-cp311-….whl (191.2 MB)").
_DOWNLOADING: Final = re.compile(
    r"^ *Downloading (?P<name>\S+?)(?:-\d\S*\.whl)? \((?P<size>[\d.]+) ?(?P<unit>[kKMG])i?B\)$"
)
_MIB: Final = {"k": 1 / 1024, "K": 1 / 1024, "M": 1.0, "G": 1024.0}
# How uv is told what pip is told by its own configuration, and what stands between several values.
_PIP_IN_UV: Final[Mapping[str, tuple[str, str]]] = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
}


@dataclass(frozen=True, kw_only=True)
class PinnedRequirements:
    """A requirement file; `torch` is its torch of one platform (`torch==2.13.0+cpu`), which `torch_index` holds."""

    file: Path
    torch: str | None
    torch_index: str

    @property
    def name(self) -> str:
        """What its environment is called in messages."""
        return f"environment `{self.file.stem}`"


def install(folder: Path, pinned: PinnedRequirements, progress: Progress) -> str:
    """Make an environment at `folder` with everything that is listed; returns what installed it, `uv` or `pip`.

    Raises BuildError with the installer's last lines.
    """
    steps = _Steps(pinned=pinned, progress=progress)
    try:
        _with_uv(find_uv(), folder, steps)
    except BuildError as error:
        if _FULL in error.details:
            raise
        progress.done()
        note(f"{error.message}{_reason(error.details)}; pip goes on")
    else:
        return "uv"
    _with_pip(folder, steps)
    return "pip"


def find_uv() -> str:
    """The uv that was installed with this tool. Raises BuildError where there is none, as on an unknown platform."""
    try:
        from uv import find_uv_bin  # noqa: PLC0415 - it may be missing

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        raise BuildError("there is no uv beside this tool") from error


def pip_settings_for_uv(listed: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    r"""What pip knows of indexes and certificates, as uv's variables; what uv is told by its own variables stands.

    `listed` is what `pip config list` prints, least important file first: `global.index-url='https://…'`.
    """
    found: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        for name, value in re.findall(rf"^{section}\.([\w-]+)=(['\"].*)$", listed, re.MULTILINE):
            if name in _PIP_IN_UV:
                variable, between = _PIP_IN_UV[name]
                found[variable] = between.join(str(ast.literal_eval(value)).split())
    return {variable: value for variable, value in found.items() if variable not in environ}


def _with_uv(uv: str, folder: Path, steps: "_Steps") -> None:
    """Raises BuildError.

    Of several indexes the one that has the pinned version counts, as with pip. uv's commands run in the folder of
    environments, so that the settings of a project that the user stands in are not taken.
    """
    pinned = steps.pinned
    told = subprocesses.run_or_127(subprocesses.python_module_argv("pip", "config", "list"), timeout=30)
    env = {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1", **pip_settings_for_uv(told.stdout)}
    add = [uv, "pip", "install", "--python", str(folder), *_AS_IT_STANDS, "--compile-bytecode"]
    add += ["--index-strategy", "unsafe-best-match"]
    steps.run("creating", [uv, "venv", "--python", sys.executable, str(folder)], cwd=folder.parent, env=env)
    if pinned.torch is not None:
        doing = f"installing {pinned.torch} with uv"
        try:
            steps.run(doing, [*add, pinned.torch], cwd=folder.parent, env=env)
        except BuildError as error:
            if "no version of torch" not in error.details:
                raise
            steps.run(doing, [*add, "--index", pinned.torch_index, pinned.torch], cwd=folder.parent, env=env)
    steps.run("installing the pinned packages with uv", [*add, "-r", str(pinned.file)], cwd=folder.parent, env=env)


def _with_pip(folder: Path, steps: "_Steps") -> None:
    """Raises BuildError. pip goes on without PyTorch's own index where that cannot be reached."""
    pinned = steps.pinned
    add = subprocesses.python_module_argv(
        "pip", "--disable-pip-version-check", "install", python=str(folder / "bin" / "python")
    )
    add += [*_AS_IT_STANDS, "--no-input", "--progress-bar", "off"]
    steps.run("creating", subprocesses.python_module_argv("venv", "--clear", str(folder)))
    if pinned.torch is not None:
        index = ["--extra-index-url", pinned.torch_index, "--retries", "1", "--timeout", "15"]
        steps.run(f"installing {pinned.torch} with pip", [*add, *index, pinned.torch])
    steps.run("installing the pinned packages with pip", [*add, "-r", str(pinned.file)])


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """Runs the steps of one build, and shows them: what is done, what is downloaded and how much it is."""

    pinned: PinnedRequirements
    progress: Progress
    sizes: dict[str, float] = field(default_factory=dict)  # MiB by package, of the downloads that were announced

    def run(
        self, doing: str, argv: list[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """Run one step. Raises BuildError with its last lines."""
        last: deque[str] = deque(maxlen=_SHOWN_LINES)
        show = self._show(doing)

        def take(line: str) -> None:
            last.append(line)
            show(line)

        self.progress.update(f"{self.pinned.name}: {doing}")
        if subprocesses.follow(argv, take, cwd=cwd, env=env) != 0:
            said = "\n".join(last)
            raise BuildError(
                f"{self.pinned.name} could not be built: {doing} failed",
                where=str(self.pinned.file),
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
                now = f"{sum(self.sizes.values()):.0f} MiB in {len(self.sizes)} packages so far"
                if size >= _BIG:
                    shown = f"{self.pinned.name}: downloading {announced['name']}, {size:.0f} MiB"
            self.progress.update(shown, transient=now[:60])

        return show


def _reason(said: str) -> str:
    """What uv says is wrong, for the end of a message: its line, and where it breaks off the next one."""
    lines = dropwhile(lambda line: not line.startswith("error: "), said.splitlines())
    first, second = next(lines, "").removeprefix("error: "), next(lines, "").strip()
    return f" ({first} {second})" if first.endswith(":") else f" ({first})" if first else ""


def hint(said: str) -> str:
    """What to do next, told from the last lines of an installer."""
    if _FULL in said:
        return "free disk space, or set DEPLOY_HOME to where there is some"
    if "ensurepip" in said:
        return "install Python's venv module (Debian, Ubuntu: `apt-get install python3-venv`)"
    if "for torch==" in said:
        return (
            "let pip reach https://download.pytorch.org/whl/cpu, or a wheel of it: PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS"
        )
    return "let pip reach a package index (PIP_INDEX_URL), and run the command again"
