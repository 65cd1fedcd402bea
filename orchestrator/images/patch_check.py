"""What the patches find in sources that are not (yet) an image of ours: a wheel, a directory, somebody's image."""

import errno
import os
import re
import sys
import tempfile
import uuid
import zipfile
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
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

_VERSIONS: Final = re.compile(r"\(from versions: ([^)]+)\)")  # pip, of a requirement that none satisfies
_NEAR: Final = 2
_WHEEL: Final = "such as 0.5.15.post1, or a wheel file"
_VERSION_LINE: Final = re.compile(r"^__version__ = .*'(.+)'$", re.MULTILINE)  # as images/apply_patches.py reads it
_CHECK: Final = ("check", "--manifest", "-")
CONFLICT: Final = "conflict"  # the applier's word for sources that a patch neither fits nor is in
# Whatever Python runs this tool: the sources are the same in every wheel of a version.
_PLATFORMS: Final = ("manylinux_2_34_x86_64", "manylinux2014_x86_64", "any")
_TARGET: Final = ("--python-version=3.11", "--implementation=cp", *(f"--platform={name}" for name in _PLATFORMS))


@dataclass(frozen=True, kw_only=True)
class PatchState:
    """One patch as the sources see it: needed, present upstream, applied, not applicable, conflict; and why."""

    id: str
    state: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SourceChecker:
    """The ledger with the program that reads sources for it, and what that imports."""

    programs: tuple[Path, ...]
    patches: Sequence[Patch]
    diffs: Mapping[str, str]

    @classmethod
    def of_ledger(cls) -> "SourceChecker":
        """The checker of the whole ledger. Raises ProfileError for a ledger that is not valid."""
        ledger = read_ledger()
        return cls(programs=program_paths(), patches=ledger, diffs=read_diffs(ledger))

    def check_directory(self, directory: Path) -> tuple[PatchState, ...]:
        """The states in a checkout, an installed package or an unpacked wheel. Raises UsageError for no sources."""
        package = package_in(directory)
        roots = ("--root", f"sglang={package}", "--root", f"aiter={aiter_beside(package, directory)}")
        return self._states(run([sys.executable, str(self.programs[0]), *_CHECK, *roots], stdin=self._manifest()))

    def check_wheel(self, wheel: Path) -> tuple[PatchState, ...]:
        """The states in a wheel file. Raises UsageError for a file that is none."""
        with tempfile.TemporaryDirectory(prefix="deploy-wheel-") as folder:
            _unpack(wheel, self._names(), Path(folder))
            return self.check_directory(Path(folder))

    def check_image(self, docker: DockerCli, image: str) -> tuple[PatchState, ...]:
        """The states inside an image, by its own Python, for the packages that Python would import.

        The program comes along as text; nothing is mounted, and the container has no network.
        """
        return self._states(python_in(docker, image, inline_modules(*self.programs), *_CHECK, stdin=self._manifest()))

    def _manifest(self) -> str:
        return manifest(self.patches, self.diffs)

    def _names(self) -> frozenset[str]:
        probes = [probe for patch in self.patches for probe in (*patch.detect.needed, *patch.detect.present)]
        return frozenset(PurePosixPath(probe.file).name for probe in probes)

    def _states(self, done: CompletedProgram) -> tuple[PatchState, ...]:
        if not done.ok:
            raise BuildError("the sources cannot be checked", details=done.stderr.strip())
        return tuple(
            PatchState(id=found["id"], state=found["state"], evidence=tuple(found["evidence"]))
            for found in parse_json(done.stdout)
        )


def python_in(
    docker: DockerCli,
    image: str,
    text: str,
    *arguments: str,
    stdin: str | None = None,
    env: Sequence[tuple[str, str]] = (),
) -> CompletedProgram:
    """Run a program's text by an image's own Python, in a container that has no network and is gone afterwards."""
    name = f"deploy-ask-{uuid.uuid4().hex[:12]}"
    variables = (word for variable, value in env for word in ("--env", f"{variable}={value}"))
    options = ("--rm", "--interactive", "--name", name, "--network", "none", *variables, "--entrypoint", "python3")
    ended = False
    try:
        done = docker.run("run", *options, image, "-B", "-c", text, *arguments, stdin=stdin)
        ended = True
    finally:
        if not ended:  # Ctrl-C ends the client alone
            docker.run("rm", "--force", name)
    return done


def inline_modules(program: Path, *imported: Path) -> str:
    """One text that does what the program does: what it imports is made first, in this order."""
    made = "".join(
        f"module = sys.modules[{path.stem!r}] = types.ModuleType({path.stem!r})\n"
        f"exec({path.read_text(encoding='utf-8')!r}, vars(module))\n"
        for path in imported
    )
    return f"import sys, types\n{made}{program.read_text(encoding='utf-8')}"


def package_in(directory: Path) -> Path:
    """The package `sglang` in a directory: the directory itself, or where a wheel, a checkout or an image keeps it."""
    for place in ("", "sglang", "python/sglang", "sglang/python/sglang"):
        if (directory / place / "srt").is_dir():
            return (directory / place).absolute()
    raise UsageError(f"there are no sources of sglang in `{directory}`", hint="give a checkout or the package itself")


def aiter_beside(package: Path, directory: Path) -> Path:
    """The package `aiter` beside that of sglang: in the same site-packages, or in a checkout beside its checkout.

    A path that does not exist where there is none: the aiter that this tool's own Python has is not meant.
    """
    checkout = directory.absolute() / "aiter/aiter"
    places = [checkout, package.parent / "aiter"]
    if package.parent.name == "python":
        places.append(package.parents[2] / "aiter/aiter")
    return next((place for place in places if (place / "__init__.py").is_file()), checkout)


def _unpack(wheel: Path, names: frozenset[str], folder: Path) -> None:
    """Unpack the files of a wheel that have one of these names; a wheel has thousands of others."""
    with _opened(wheel) as archive:
        unpack(archive, [entry for entry in archive.namelist() if PurePosixPath(entry).name in names], folder)


@contextmanager
def _opened(wheel: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except zipfile.BadZipFile as error:
        raise UsageError(f"`{wheel}` is not a wheel", hint=_WHEEL) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:  # of where it is unpacked
            raise
        raise UsageError(f"`{wheel}` cannot be read: {error.strerror}", hint=_WHEEL) from error
    except UnsafeValueError as error:
        raise UsageError(f"`{wheel}` cannot be unpacked: {error}", hint=_WHEEL) from error


def wheel_version(wheel: Path) -> str | None:
    """What a wheel of sglang calls itself, None where it does not say. Raises UsageError for a file that is none."""
    with _opened(wheel) as archive:
        said = archive.read("sglang/_version.py").decode() if "sglang/_version.py" in archive.namelist() else ""
    named = _VERSION_LINE.search(said)
    return named and named[1]


def _no_wheel(version: str, said: str) -> UsageError:
    """Why pip gave none: there is no such version, and these are near; or else what it said."""
    listed = _VERSIONS.search(said)
    if listed is None or not (near := _nearest(Version(version), listed[1].split(", "))):
        download = quote(["pip", "download", f"sglang=={version}"])
        return UsageError(
            f"the package index gave no wheel of sglang {version}",
            details=said.strip()[-2000:],
            hint=f"download it yourself and give the file: `{download}`",
        )
    names = ", ".join(f"`{each}`" for each in near)
    return UsageError(
        f"the package index has no sglang {version}", hint=f"the nearest it has: {names}; or give a wheel file"
    )


def _nearest(version: Version, listed: Sequence[str]) -> list[str]:
    """The next ones below it and above it that are listed, a few, in their order."""
    try:
        ordered = sorted(map(Version, listed))
    except InvalidVersion:
        return []
    at = bisect_left(ordered, version)
    return [str(each) for each in ordered[max(at - _NEAR, 0) : at + _NEAR]]


def fetch_wheel(version: str, folder: Path) -> Path:
    """The wheel of one sglang version in `folder`, downloaded where it is missing.

    Raises UsageError for what is no version, or where the index has no such version or cannot be reached.
    """
    try:
        version = str(Version(version))
    except InvalidVersion as error:
        raise UsageError(f"`{version}` is not a version of sglang", hint=_WHEEL) from error
    if kept := sorted(folder.glob(f"sglang-{version}-*.whl")):
        return kept[0]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as partial:
        options = ["--quiet", "--no-deps", "--only-binary=:all:", *_TARGET, "--dest", partial]
        done = run(python_module_argv("pip", "download", *options, f"sglang=={version}"), env={"TMPDIR": partial})
        found = sorted(Path(partial).glob("sglang-*.whl"))
        if "No space left on device" in done.stderr or "No usable temporary directory" in done.stderr:
            raise HostError(os.strerror(errno.ENOSPC), where=str(folder), hint="free disk space, or set DEPLOY_HOME")
        if not done.ok or not found:
            raise _no_wheel(version, done.stderr)
        return move(found[0], folder / found[0].name)
