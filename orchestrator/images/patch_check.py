"""The state of every patch in a wheel, a directory or any image, also one that `deploy` did not build."""

import errno
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from packaging.version import InvalidVersion, Version

from orchestrator.core.errors import BuildError, HostError, UsageError
from orchestrator.core.files import move, unpack
from orchestrator.core.safe_paths import UnsafeValueError
from orchestrator.core.subprocesses import CompletedProgram, python_module_argv, quote, run
from orchestrator.core.text import parse_json
from orchestrator.images.client import DockerCli
from orchestrator.images.sources import program_paths
from orchestrator.patches.ledger import manifest, read_diffs, read_ledger
from orchestrator.patches.schema import Patch

_WHEEL_HINT: Final = "such as 0.5.15.post1, or a wheel file"
_VERSION_LINE: Final = re.compile(r"^__version__ = .*'(.+)'$", re.MULTILINE)  # as images/apply_patches.py reads it
_CHECK: Final = ("check", "--manifest", "-")
CONFLICT: Final = "conflict"  # applier state: the sources neither accept nor contain the patch
# Independent of the Python that runs `deploy`: every wheel of a version has the same sources.
_PLATFORMS: Final = ("manylinux_2_34_x86_64", "manylinux2014_x86_64", "any")
_PIP_TARGET: Final = ("--python-version=3.11", "--implementation=cp", *(f"--platform={name}" for name in _PLATFORMS))


@dataclass(frozen=True, kw_only=True)
class PatchState:
    """The state of one patch in some sources (needed, applied, conflict, …), with the evidence for it."""

    id: str
    state: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SourceChecker:
    """A checker of sources: the patches with their diffs, and the programs that read the sources."""

    programs: tuple[Path, ...]
    patches: Sequence[Patch]
    diffs: Mapping[str, str]

    @classmethod
    def of_ledger(cls) -> "SourceChecker":
        """Return a checker for the whole ledger. Raises ProfileError if the ledger is invalid."""
        ledger = read_ledger()
        return cls(programs=program_paths(), patches=ledger, diffs=read_diffs(ledger))

    def check_directory(self, directory: Path) -> tuple[PatchState, ...]:
        """Check a checkout, installed package or unpacked wheel. Raises UsageError if it has no sglang sources."""
        package = package_in(directory)
        roots = ("--root", f"sglang={package}", "--root", f"aiter={sibling_aiter(package, directory)}")
        return self._states(run([sys.executable, str(self.programs[0]), *_CHECK, *roots], stdin=self._manifest()))

    def check_wheel(self, wheel: Path) -> tuple[PatchState, ...]:
        """Check a wheel file. Raises UsageError if the file is not a wheel of sglang."""
        with tempfile.TemporaryDirectory(prefix="deploy-wheel-") as folder:
            names = self._searched_files()  # a wheel has thousands of other files
            unpack_wheel(wheel, lambda path: PurePosixPath(path).name in names, Path(folder))
            return self.check_directory(Path(folder))

    def check_image(self, docker: DockerCli, image: str) -> tuple[PatchState, ...]:
        """Check the packages that an image's own Python imports. Raises BuildError if the check fails.

        The program is passed as text; nothing is mounted, and the container has no network.
        """
        return self._states(python_in(docker, image, inline_modules(*self.programs), *_CHECK, stdin=self._manifest()))

    def _manifest(self) -> str:
        return manifest(self.patches, self.diffs)

    def _searched_files(self) -> frozenset[str]:
        patterns = [pattern for patch in self.patches for pattern in (*patch.detect.needed, *patch.detect.present)]
        return frozenset(PurePosixPath(pattern.file).name for pattern in patterns)

    def _states(self, result: CompletedProgram) -> tuple[PatchState, ...]:
        if not result.ok:
            raise BuildError("cannot check the sources", details=result.stderr.strip())
        return tuple(
            PatchState(id=entry["id"], state=entry["state"], evidence=tuple(entry["evidence"]))
            for entry in parse_json(result.stdout)
        )


def python_in(
    docker: DockerCli,
    image: str,
    text: str,
    *arguments: str,
    stdin: str | None = None,
    env: Sequence[tuple[str, str]] = (),
) -> CompletedProgram:
    """Run the text of a program with an image's own Python, in a temporary container without network."""
    return docker.run_inside(image, "python3", "-B", "-c", text, *arguments, stdin=stdin, env=env)


def inline_modules(program: Path, *imported: Path) -> str:
    """Return the text of a program with its imported modules inlined; `imported` is in the order of import."""
    modules = "".join(
        f"module = sys.modules[{path.stem!r}] = types.ModuleType({path.stem!r})\n"
        f"exec({path.read_text(encoding='utf-8')!r}, vars(module))\n"
        for path in imported
    )
    return f"import sys, types\n{modules}{program.read_text(encoding='utf-8')}"


def package_in(directory: Path) -> Path:
    """Return the package `sglang` in a directory: the directory itself, or its path in a wheel, checkout or image.

    Raises UsageError if the directory has no sources of sglang.
    """
    for path in ("", "sglang", "python/sglang", "sglang/python/sglang"):
        if (directory / path / "srt").is_dir():
            return (directory / path).absolute()
    raise UsageError(
        f"no sources of sglang found in `{directory}`",
        hint="name a checkout or the package folder: `deploy patches check --source PACKAGE`",
    )


def sibling_aiter(package: Path, directory: Path) -> Path:
    """Return the package `aiter` next to sglang: in the same site-packages, or in an adjacent checkout.

    If there is none, the returned path does not exist, so that the aiter of this Python is not checked instead.
    """
    checkout = directory.absolute() / "aiter/aiter"
    candidates = [checkout, package.parent / "aiter"]
    if package.parent.name == "python":
        candidates.append(package.parents[2] / "aiter/aiter")
    return next((path for path in candidates if (path / "__init__.py").is_file()), checkout)


def unpack_wheel(wheel: Path, include: Callable[[str], bool], folder: Path) -> None:
    """Unpack the files of a wheel whose paths `include` accepts. Raises UsageError if the file is not a wheel."""
    with _open_wheel(wheel) as archive:
        unpack(archive, filter(include, archive.namelist()), folder)


@contextmanager
def _open_wheel(wheel: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except zipfile.BadZipFile as error:
        raise UsageError(f"`{wheel}` is not a wheel", hint=_WHEEL_HINT) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:  # the target's disk is full; the wheel is fine
            raise
        raise UsageError(f"cannot read `{wheel}`: {error.strerror}", hint=_WHEEL_HINT) from error
    except UnsafeValueError as error:
        raise UsageError(f"cannot unpack `{wheel}`: {error}", hint=_WHEEL_HINT) from error


def wheel_version(wheel: Path) -> str | None:
    """Return the version of sglang in a wheel; None if it has none. Raises UsageError if the file is not a wheel."""
    with _open_wheel(wheel) as archive:
        text = archive.read("sglang/_version.py").decode() if "sglang/_version.py" in archive.namelist() else ""
    match = _VERSION_LINE.search(text)
    return match and match[1]


def fetch_wheel(version: str, folder: Path) -> Path:
    """Return the wheel of an sglang version in `folder`, and download it if it is missing.

    Raises UsageError if the version is invalid, or pip cannot download it; HostError if the disk is full.
    """
    try:
        version = str(Version(version))
    except InvalidVersion as error:
        raise UsageError(f"`{version}` is not a version of sglang", hint=_WHEEL_HINT) from error
    if saved := sorted(folder.glob(f"sglang-{version}-*.whl")):
        return saved[0]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as partial:
        options = ["--quiet", "--no-deps", "--only-binary=:all:", *_PIP_TARGET, "--dest", partial]
        result = run(python_module_argv("pip", "download", *options, f"sglang=={version}"), env={"TMPDIR": partial})
        wheels = sorted(Path(partial).glob("sglang-*.whl"))
        if "No space left on device" in result.stderr or "No usable temporary directory" in result.stderr:
            raise HostError(
                os.strerror(errno.ENOSPC),
                location=str(folder),
                hint="`deploy prune --caches` frees disk space, or set DEPLOY_HOME",
            )
        if not result.ok or not wheels:
            raise UsageError(
                f"cannot download a wheel of sglang {version}",
                details=result.stderr.strip()[-2000:],
                hint=f"`{quote(['pip', 'download', f'sglang=={version}'])}` downloads the wheel; then name the file",
            )
        return move(wheels[0], folder / wheels[0].name)
